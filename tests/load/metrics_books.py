"""What handlers count themselves, to compare it with metrics; and members whose handlers count."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aioparallel import ParallelConsumer, Record, RetryLater
from tests.support.waiting import until

__all__ = ["Book", "Counting", "running"]

Place = tuple[int, int]
"""Partition and offset."""


class Book:
    """What the handlers of one member have seen. ``calls`` and ``seconds``: by outcome of the call."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.failed: Counter[int] = Counter()
        """Failed calls by partition."""
        self.succeeded: Counter[int] = Counter()
        self.ages: Counter[str] = Counter()
        """Records with a timestamp, by outcome; their ages are added up in ``age_seconds``."""
        self.age_seconds = 0.0
        self.records: set[Place] = set()
        """Records of which a call has begun."""
        self.active: dict[Place, float] = {}
        """Running calls, and when they began."""
        self.failing: dict[Place, tuple[float, int]] = {}
        """Failed records that wait: when they failed first, and how often they failed."""
        self.batches: Counter[int] = Counter()
        """Calls of a batch handler by size."""

    def began(self, record: Record[Any, Any]) -> None:
        """A call begins."""
        place = record.partition, record.offset
        self.records.add(place)
        self.active[place] = time.perf_counter()

    def ended(self, record: Record[Any, Any], error: BaseException | None) -> None:
        """It has ended."""
        place = record.partition, record.offset
        now = time.perf_counter()
        took = now - self.active.pop(place)
        if error is None:
            outcome = "succeeded"
            self.failing.pop(place, None)
            self.succeeded[record.partition] += 1
            self.age_seconds += time.time() - record.timestamp / 1000
        elif isinstance(error, asyncio.CancelledError):
            outcome = "cancelled"
        elif isinstance(error, RetryLater):
            outcome = "delayed"
        else:
            outcome = "failed"
            self.failed[record.partition] += 1
            first, times = self.failing.get(place, (now, 0))
            self.failing[place] = first, times + 1
        self.calls[outcome] += 1
        self.seconds[outcome] += took


class Counting:
    """A handler that counts what another one does."""

    def __init__(self, handler: Callable[[Any], Awaitable[Any]]) -> None:
        self.book = Book()
        self._handler = handler

    async def __call__(self, record: Record[Any, Any]) -> Any:
        self.book.began(record)
        try:
            result = await self._handler(record)
        except BaseException as error:
            self.book.ended(record, error)
            raise
        self.book.ended(record, None)
        return result


@asynccontextmanager
async def running(consumer: ParallelConsumer[Any, Any], handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """A member, from its first assignment; it is stopped at the end, and left after ``SETTLE`` seconds."""
    async with consumer:
        task = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.health().ready or task.done())
        try:
            yield
        finally:
            consumer.stop()
            await task
