"""What handlers count themselves, to be compared with metrics."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aioparallel import ParallelConsumer, Record, RetryLater
from tests.support.waiting import until

__all__ = ["Book", "member"]

Place = tuple[int, int]
"""Partition and offset."""
Handler = Callable[[Any], Awaitable[Any]]


class Book:
    """What the handlers of one member have seen. Outcomes are those of calls: "succeeded", "failed", "delayed",
    "cancelled"."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Time of the calls by outcome."""
        self.succeeded: Counter[int] = Counter()
        """By partition, as all that follow."""
        self.failed: Counter[int] = Counter()
        self.began: defaultdict[int, set[int]] = defaultdict(set)
        """Offsets."""
        self.first = 0
        """First attempts, in each assignment of a partition."""
        self.age_seconds = 0.0
        """Sum of the ages of succeeded records."""
        self.active: dict[Place, float] = {}
        """Running calls, and when they began, by ``perf_counter``."""
        self.failing: dict[Place, tuple[float, int]] = {}
        """Failed records without success so far: when they failed first, and how often."""
        self._delayed: dict[Place, Record[Any, Any]] = {}
        """Records that wait after RetryLater. After a rebalance the same place is another record, whose call is a first
        one."""

    def counted(self, handler: Handler) -> Handler:
        """The handler of single records, with its calls counted."""

        async def handle(record: Record[Any, Any]) -> Any:
            self.begin(record)
            try:
                result = await handler(record)
            except BaseException as error:
                self.end(record, error)
                raise
            self.end(record)
            return result

        return handle

    def counted_batches(self, handler: Handler) -> Handler:
        """The same for a handler of batches."""

        async def handle(records: Sequence[Record[Any, Any]]) -> Any:
            for record in records:
                self.begin(record)
            result = await handler(records)
            for record in records:
                self.end(record)
            return result

        return handle

    def begin(self, record: Record[Any, Any]) -> None:
        """A call begins."""
        place = record.partition, record.offset
        self.began[record.partition].add(record.offset)
        self.first += record.attempt == 1 and self._delayed.get(place) is not record
        self.active[place] = time.perf_counter()

    def end(self, record: Record[Any, Any], error: BaseException | None = None) -> None:
        """It has ended."""
        place, now = (record.partition, record.offset), time.perf_counter()
        self._delayed.pop(place, None)
        outcome = "succeeded"
        if error is not None:
            outcome = "delayed" if isinstance(error, RetryLater) else "failed"
            outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else outcome
        self.calls[outcome] += 1
        self.seconds[outcome] += now - self.active.pop(place)
        if outcome == "delayed":
            self._delayed[place] = record
        elif outcome == "succeeded":
            self.failing.pop(place, None)
            self.succeeded[record.partition] += 1
            self.age_seconds += time.time() - record.timestamp / 1000
        elif outcome == "failed":
            self.failed[record.partition] += 1
            first, times = self.failing.get(place, (now, 0))
            self.failing[place] = first, times + 1

    @property
    def begun(self) -> int:
        """Records of which a call has begun."""
        return sum(map(len, self.began.values()))


@asynccontextmanager
async def member(consumer: ParallelConsumer[Any, Any], handler: Handler) -> AsyncIterator[None]:
    """A running member, from its first assignment on. At the end it is stopped."""
    async with consumer:
        running = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.health().ready or running.done())
        try:
            yield
        finally:
            consumer.stop()
            await running
