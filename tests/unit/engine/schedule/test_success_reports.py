"""Successes of one turn are reported together, with exact sums of their times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from aioparallel.config.handling import Ordering
from aioparallel.engine.isolation import ENDED
from aioparallel.engine.schedule import success_reports, turn
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.engine.schedule.success_reports import SuccessReports
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.records.record import Record


async def test_only_similar_times_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their mean, so that the sum is exact; one slow record does not make 15 quick ones slow."""
    now = 100.0
    monkeypatch.setattr(success_reports, "perf_counter", lambda: now)
    found: list[tuple[list[int], int, float, float]] = []

    def attempted(records: Sequence[Record[Any, Any]], calls: int, began: float, seconds: float, _: object) -> None:
        found.append(([record.offset for record in records], calls, round(now - began, 6), round(seconds, 6)))

    signals = Signals(attempted=attempted)
    reports, source = SuccessReports(signals), Source("one")
    for offset, took in enumerate([0.010, 0.012, 3.0, 0.014, 0.0]):
        record = Record("topic", 0, offset, None, None)
        record._source = source
        reports.add(record, now - took)
    await asyncio.sleep(0)
    assert found == [([0, 1, 3], 3, 0.01, 0.012), ([2], 1, 3.0, 3.0), ([4], 1, 0.0, 0.0)]


async def test_sixteen_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the end of the turn, and the rest when somebody asks."""
    monkeypatch.setattr(success_reports, "perf_counter", lambda: 1.0)
    ended: list[int] = []
    reports, source = SuccessReports(Signals(completed=lambda records, _: ended.append(len(records)))), Source("one")
    for offset in range(20):
        record = Record("topic", 0, offset, None, None)
        record._source = source
        reports.add(record, 0.0)
    assert ended == [16]
    reports.flush()
    assert ended == [16, 4]
    await asyncio.sleep(0)
    assert ended == [16, 4]


def test_no_time_of_a_turn_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last record of a turn suspends. Its time begins where that of the others ends."""
    now, found = 100.0, list[tuple[int, float]]()
    monkeypatch.setattr(turn, "perf_counter", lambda: now)

    def attempted(records: Sequence[Record[Any, Any]], calls: int, began: float, seconds: float, _: object) -> None:
        assert began == 100.0
        found.append((calls, seconds))

    def step(record: Record[Any, Any]) -> object:
        nonlocal now
        now += 1
        return ENDED if record.offset < 3 else "suspended"

    scheduler, source = Scheduler(Ordering.UNORDERED, signals=Signals(attempted=attempted)), Source("one")
    scheduler.admit(source, [Record("topic", 0, offset, None, None) for offset in range(5)])
    taken = scheduler.run_ready(step, lambda record, ended: None, range(9))
    assert taken is not None
    assert taken[1] == "suspended"
    assert found == [(3, 1.0)]
    assert scheduler.turn.began == 103.0
