"""When an outage of the database is a problem, and when it is over."""

from __future__ import annotations

import pytest

from aioparallel.observe.health import ProblemKind
from aioparallel.persistence.sql import outages
from aioparallel.persistence.sql.outages import DatabaseOutages


class Clock:
    """In the place of the module ``time``."""

    now = 1_000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of the module, which moves only by hand."""
    clock = Clock()
    monkeypatch.setattr(outages, "time", clock)
    return clock


def test_an_outage_is_a_problem_with_its_duration_and_cause(clock: Clock) -> None:
    """It counts from the first failure, and names the last."""
    away = DatabaseOutages("postgresql db")
    assert away.problems() == ()
    away.away(ConnectionRefusedError("refused"))
    clock.now += 7
    away.away(ConnectionRefusedError("refused again"))
    (problem,) = away.problems()
    assert problem.kind is ProblemKind.DATABASE_AWAY
    assert "postgresql db" in problem.message
    assert "for 7 s" in problem.message
    assert "refused again" in problem.message


def test_an_answer_ends_an_outage(clock: Clock) -> None:
    """At once, and the next outage begins anew."""
    away = DatabaseOutages("postgresql db")
    away.away(ConnectionRefusedError())
    clock.now += 5
    away.answered()
    assert away.problems() == ()
    away.away(ConnectionRefusedError())
    assert "for 0 s" in away.problems()[0].message


def test_silence_ends_an_outage(clock: Clock) -> None:
    """Ten seconds after the last failure; the next one then begins anew."""
    away = DatabaseOutages("postgresql db")
    away.away(ConnectionRefusedError())
    clock.now += 10
    assert len(away.problems()) == 1
    clock.now += 0.1
    assert away.problems() == ()
    away.away(ConnectionRefusedError())
    assert "for 0 s" in away.problems()[0].message
