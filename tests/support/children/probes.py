"""What the handlers of a consumer process measure. Each probe makes a handler and has a report.

All of them check the order of each key while they measure; the report says how often it was broken.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from aioparallel.records import Record
from aioparallel.testing.checkers import OrderChecker
from tests.support.children.job import Job

__all__ = ["HandlerProbe", "probe_of"]


class HandlerProbe(Protocol):
    """One way of measuring."""

    async def handle(self, record: Record) -> None:
        """The handler."""

    def report(self) -> dict[str, object]:
        """What was measured, for JSON."""


class OrderProbe:
    """Counts the records and checks the order of each key."""

    def __init__(self, job: Job) -> None:
        self._seconds = job.handler_seconds
        self._order = OrderChecker()
        self._ended = 0

    async def handle(self, record: Record) -> None:
        """Sleep, between the two marks of the order checker."""
        with self._order.handling(record):
            await asyncio.sleep(self._seconds)
        self._ended += 1

    def report(self) -> dict[str, object]:
        """Counts, and how often the order was broken."""
        return {"ended": self._ended, "violations": len(self._order.violations)}


class OthersProbe(OrderProbe):
    """Times the records of all keys but the hot one: from the first call of any handler to the end of the last.

    ``on_done()`` is called when ``expected`` of them have ended.
    """

    def __init__(self, job: Job, on_done: Callable[[], None]) -> None:
        super().__init__(job)
        self._hot = job.hot_key.encode()
        self._left = self._expected = job.expected
        self._on_done = on_done
        self._began = self._done = 0.0
        self._cpu_began = self._cpu_done = 0.0

    async def handle(self, record: Record) -> None:
        """Sleep, and look whether that was the last of the others."""
        if not self._began:
            self._began, self._cpu_began = time.perf_counter(), time.process_time()
        await super().handle(record)
        if record.key != self._hot:
            self._left -= 1
            if not self._left:
                self._done, self._cpu_done = time.perf_counter(), time.process_time()
                self._on_done()

    def report(self) -> dict[str, object]:
        """Seconds of wall time and of this process's CPU; 0 when they have not all ended."""
        return {
            **super().report(),
            "others": self._expected - self._left,
            "seconds": max(0.0, self._done - self._began),
            "cpu_seconds": max(0.0, self._cpu_done - self._cpu_began),
        }


class LatencyProbe(OrderProbe):
    """Times each record of a trickle from produce to the start of its handler.

    A trickle's value is the nanoseconds of CLOCK_MONOTONIC (one clock for all processes of a machine) when it was
    handed to the producer. Records of the hot partition hold something else; they are counted by the tenth of a second.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._latencies: list[float] = []
        self._hot: Counter[int] = Counter()

    async def handle(self, record: Record) -> None:
        """Note the latency, then sleep."""
        value = record.value or b""
        if value.isdigit():
            self._latencies.append((time.monotonic_ns() - int(value)) / 1e6)
            await super().handle(record)
        else:
            await super().handle(record)
            self._hot[int(time.monotonic() * 10)] += 1

    def report(self) -> dict[str, object]:
        """The trickle's latencies (milliseconds) in the order of starts; the hot records that ended, by tenth of a
        second of CLOCK_MONOTONIC."""
        return {**super().report(), "latencies": self._latencies, "hot": dict(self._hot)}


def probe_of(job: Job, on_done: Callable[[], None]) -> HandlerProbe:
    """The job's probe; ``on_done()`` is called when it has seen all it waits for."""
    if job.probe == "others":
        return OthersProbe(job, on_done)
    return LatencyProbe(job) if job.probe == "latency" else OrderProbe(job)
