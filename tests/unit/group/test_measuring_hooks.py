"""The hooks for measurements: each attempt, each outcome and each commit is reported once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import pytest

from aioparallel import (
    CommitFault,
    Committed,
    Extension,
    FailurePolicy,
    Outgoing,
    Record,
    RetryPolicy,
    TopicPartition,
    batches,
)
from tests.support.extensions import P0, broker_of, consumer_of, nothing


class Measuring(Extension):
    """Notes what is reported."""

    def __init__(self) -> None:
        self.attempts: list[tuple[list[int], int, str]] = []
        self.ended: list[tuple[int, str]] = []
        self.commits: list[tuple[int, bool]] = []

    def attempts_ended(
        self, records: Sequence[Record[Any, Any]], calls: int, began: float, seconds: float, error: BaseException | None
    ) -> None:
        assert began <= began + seconds <= perf_counter()
        self.attempts.append(([record.offset for record in records], calls, type(error).__name__ if error else ""))

    def records_ended(self, records: Sequence[Record[Any, Any]], outcome: str) -> None:
        self.ended += [(record.offset, outcome) for record in records]

    def commit_ended(
        self,
        positions: Mapping[TopicPartition, Committed],
        faults: Mapping[TopicPartition, CommitFault],
        seconds: float,
    ) -> None:
        assert seconds >= 0
        self.commits.append((positions[P0].offset, bool(faults)))


async def test_each_attempt_and_outcome_is_reported_once() -> None:
    """Of handlers that return at once, suspend, fail, produce or ask for statistics in the middle."""
    broker, measuring = broker_of(), Measuring()
    for number in range(40):
        broker.append("t", b"v", key=b"%d" % (number % 7), partition=0)

    async def handle(record: Record) -> Outgoing | None:
        if record.offset % 5 == 0:
            await asyncio.sleep(0.001)
        if record.offset == 11 or (record.offset == 12 and record.attempt == 1):
            raise ValueError
        if record.offset == 13:
            consumer.stats()
        return Outgoing("out", b"x") if record.offset % 3 == 0 else None

    policy = FailurePolicy(retry=RetryPolicy(first_delay=0.001, max_attempts=2), give_up="skip")
    consumer = consumer_of(broker, measuring, failures=policy, until="end")
    async with consumer:
        await consumer.run(handle)
    reported = [(offset, error) for offsets, _, error in measuring.attempts for offset in offsets]
    assert all(len(offsets) == calls for offsets, calls, _ in measuring.attempts)
    failed = [(11, "ValueError"), (11, "ValueError"), (12, "ValueError")]
    assert sorted(reported) == sorted([*((offset, "") for offset in range(40) if offset != 11), *failed])
    outcomes = dict.fromkeys(range(40), "succeeded") | {11: "skipped"}
    assert sorted(measuring.ended) == sorted(outcomes.items())
    assert measuring.commits[-1] == (40, False)


async def test_a_batch_is_one_call() -> None:
    """With all its records."""
    broker, measuring = broker_of(), Measuring()
    for _ in range(20):
        broker.append("t", b"v", partition=0)

    async def handle(records: Any) -> None:
        await asyncio.sleep(0)

    consumer = consumer_of(broker, measuring, until="end")
    async with consumer:
        await consumer.run(batches(handle, size=10))
    assert all(calls == 1 for _, calls, _ in measuring.attempts)
    assert sorted(offset for offsets, _, _ in measuring.attempts for offset in offsets) == list(range(20))
    assert sorted(measuring.ended) == [(offset, "succeeded") for offset in range(20)]


@pytest.mark.parametrize("hook", ["attempts_ended", "records_ended", "commit_ended"])
async def test_an_error_of_a_hook_ends_the_run(hook: str) -> None:
    """``run`` raises it."""

    def fail(*arguments: object) -> None:
        raise LookupError(hook)

    broker = broker_of()
    broker.append("t", b"v", partition=0)
    consumer = consumer_of(broker, type("Broken", (Extension,), {hook: fail})())
    async with consumer:
        with pytest.raises(LookupError, match=hook):
            await asyncio.wait_for(consumer.run(nothing), 60)


async def test_a_hook_may_ask_for_statistics() -> None:
    """In the middle of a turn, too; nothing is reported twice."""
    broker = broker_of()
    for _ in range(50):
        broker.append("t", b"v", partition=0)

    class Asking(Measuring):
        def records_ended(self, records: Sequence[Record[Any, Any]], outcome: str) -> None:
            super().records_ended(records, outcome)
            assert consumer.stats().admitted == 50

    measuring = Asking()
    consumer = consumer_of(broker, measuring, until="end")
    async with consumer:
        await consumer.run(nothing)
    assert sorted(measuring.ended) == [(offset, "succeeded") for offset in range(50)]


async def test_suspended_handlers_are_reported_together() -> None:
    """At most 16 of a partition; each of them once, before the run ends, and first attempts only."""
    broker, measuring = broker_of(2), Measuring()
    for number in range(100):
        broker.append("t", b"v", partition=number % 2)

    all_run = asyncio.Barrier(100)

    async def handle(record: Record) -> None:
        if record.attempt == 2:
            await asyncio.sleep(0.01)
            return
        await all_run.wait()
        if record.offset == 7:
            raise ValueError

    policy = FailurePolicy(retry=RetryPolicy(first_delay=0.001))
    consumer = consumer_of(broker, measuring, failures=policy, until="end", max_concurrency=100)
    async with consumer:
        await consumer.run(handle)
    together = [offsets for offsets, _, error in measuring.attempts if not error and len(offsets) > 1]
    assert max(map(len, together)) == 16
    assert len(measuring.attempts) < 20
    assert all(7 not in offsets for offsets in together)
    expected = sorted([*range(50), *range(50), 7, 7])
    assert sorted(offset for offsets, _, _ in measuring.attempts for offset in offsets) == expected
    assert sorted(measuring.ended) == sorted((offset, "succeeded") for offset in (*range(50), *range(50)))


async def test_what_is_reported_together_is_reported_before_somebody_asks() -> None:
    """``stats()`` and the reports agree at any time."""
    broker, measuring = broker_of(), Measuring()
    for _ in range(50):
        broker.append("t", b"v", partition=0)

    all_run = asyncio.Barrier(50)

    async def handle(record: Record) -> None:
        await all_run.wait()
        if record.offset % 10 == 9:
            assert consumer.stats().succeeded == len(measuring.ended)

    consumer = consumer_of(broker, measuring, until="end", max_concurrency=100)
    async with consumer:
        await consumer.run(handle)
    assert len(measuring.ended) == 50
