"""What is seen of the machine beside a run."""

from __future__ import annotations

import pytest

from benchmarks.machine import Machine, Surroundings, moved


def of(before: float, after: float) -> Surroundings:
    return Surroundings(before, after, None, None)


@pytest.mark.parametrize(
    ("seen", "is_moved"),
    [
        ([], False),
        ([of(10.0, 10.4)], False),
        ([of(10.0, 10.6)], True),
        ([of(10.6, 10.0)], True),
        ([of(10.0, 10.0), of(10.4, 10.4)], False),
        ([of(10.0, 10.0), of(10.6, 10.6)], True),
    ],
)
def test_a_machine_that_moved(seen: list[Surroundings], is_moved: bool) -> None:
    """By more than 5 %, within a run or between the runs of a round."""
    assert moved(seen) == is_moved


def test_it_is_seen() -> None:
    """The loop takes time; what was stolen is a part of all."""
    seen = Machine().seen()
    assert 0 < seen.before < 1_000
    assert 0 < seen.after < 1_000
    assert seen.steal is None or 0 <= seen.steal <= 1
    assert seen.mhz is None or seen.mhz > 0
