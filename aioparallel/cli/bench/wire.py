"""What a contestant's program and the benchmark say to each other, and the part that all programs in Python share.

A contestant is started as ``<command> <work.json>`` and lives through all rounds of a case. On its standard input come
lines of JSON, one a round::

    {"round": 0, "group": "bench-1f00-0", "evidence": "<an existing folder>"}

It reads the whole topic from the beginning as the only member of that new group, commits, closes, writes the evidence
and answers with one line of JSON on its standard output (nothing else may go there)::

    {"round": 0, "seconds": 1.9, "whole_seconds": 2.4, "ended": 10000, "cpu_seconds": 1.1,
     "peak_memory": 60000000, "stopped": false}

or with ``{"round": 0, "error": "what went wrong"}``. It ends when its standard input does.

``seconds`` and ``cpu_seconds`` are those from the first call of the handler to the end of the last one; what they are
and the limit of a run: see :mod:`aioparallel.cli.bench.model`.

*Evidence* is a file ``partition-<p>.bin`` for each partition: signed 32-bit little-endian integers, one for every time
a handler began (the offset) or ended (``~offset``), in the order in which it happened. Handlers that return at once
write only that they began.

*The plan* is a file ``partition-<p>.bin`` for each partition in the folder ``plan``: for each offset two unsigned
32-bit little-endian integers, the number of its key and the microseconds its handler sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from aioparallel.cli.bench.model import Work
from aioparallel.event_loop import loop_factory, quick_collections

__all__ = ["Job", "Readable", "serve"]


class Readable(Protocol):
    """A record as any Kafka client gives it."""

    @property
    def partition(self) -> int:
        """Where it is from."""

    @property
    def offset(self) -> int:
        """Its place there."""


class Moment(NamedTuple):
    """Seconds of a clock, and of CPU that this process has taken by then."""

    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Moment:
        """Both together."""
        return cls(time.perf_counter(), time.process_time())


class Job:
    """One round: the handler to run, and what it sees."""

    def __init__(self, work: Work, group: str, durations: list[array[int]]) -> None:
        self.work = work
        self.group = group
        self.ended = asyncio.Event()
        """Set when the last record has ended."""
        self.events = [array("i") for _ in range(work.partitions)]
        self._durations = durations
        self._started = time.perf_counter()
        self._first: Moment | None = None
        self._last: Moment | None = None
        self._ended = 0
        self._counted: Callable[[], int]
        self.handle: Callable[[Any], Coroutine[Any, Any, None]] = self._sleeper() if work.sleeps else self._noop()

    def _noop(self) -> Callable[[Readable], Coroutine[Any, Any, None]]:
        events, records, count = self.events, self.work.records, 0
        edges = {1, records}

        async def handle(record: Readable) -> None:
            nonlocal count
            count += 1
            events[record.partition].append(record.offset)
            if count in edges:
                self.begin()
                if count == records:
                    self.finish(count)

        self._counted = lambda: count
        return handle

    def _sleeper(self) -> Callable[[Readable], Coroutine[Any, Any, None]]:
        events, durations, records, count = self.events, self._durations, self.work.records, 0

        async def handle(record: Readable) -> None:
            nonlocal count
            partition, offset = record.partition, record.offset
            seen = events[partition]
            if not count:
                self.begin()
            seen.append(offset)
            await asyncio.sleep(durations[partition][offset] * 1e-6)
            seen.append(~offset)
            count += 1
            if count == records:
                self.finish(count)

        self._counted = lambda: count
        return handle

    def begin(self) -> None:
        """The first handler is called; said again it means nothing."""
        if self._first is None:
            self._first = Moment.now()

    def finish(self, ended: int) -> None:
        """The last handler has ended, or the run is stopped, after so many; what comes later counts no more."""
        if self._last is not None:
            return
        self._last, self._ended = Moment.now(), ended
        if ended == self.work.records:
            self.ended.set()

    async def wait(self) -> bool:
        """Until the last record has ended, or the work's limit is reached; whether it ended."""
        while not self.ended.is_set():
            since = self._first.clock if self._first else self._started
            left = since + self.work.limit - time.perf_counter()
            if left <= 0:
                self.finish(self._counted())
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.ended.wait()
        return self.ended.is_set()

    def report(self) -> dict[str, Any]:
        """What is known once the run is over, without memory."""
        last = self._last or Moment.now()
        first = self._first or Moment(self._started, last.cpu)
        return {
            "seconds": last.clock - first.clock,
            "whole_seconds": last.clock - self._started,
            "ended": self._ended,
            "cpu_seconds": last.cpu - first.cpu,
            "stopped": not self.ended.is_set(),
        }

    def write_evidence(self, folder: Path) -> None:
        """As the protocol wants it."""
        for partition, events in enumerate(self.events):
            if sys.byteorder == "big":
                events.byteswap()
            (folder / f"partition-{partition}.bin").write_bytes(events.tobytes())


def serve(consume: Callable[[Job], Awaitable[None]]) -> None:
    """The main function of a contestant: ``consume`` does one round, from making the consumer to having closed it.

    It has to stop when ``job.ended`` is set, or when :meth:`Job.wait` returns.
    """
    work = Work.read(Path(sys.argv[1]))
    durations = _durations(work)
    quick_collections()
    for line in sys.stdin:
        order = json.loads(line)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                answer = runner.run(_round(consume, work, order, durations))
            except Exception as error:
                answer = {"error": repr(error)}
        print(json.dumps({"round": order["round"], **answer}), flush=True)


async def _round(
    consume: Callable[[Job], Awaitable[None]], work: Work, order: dict[str, Any], durations: list[array[int]]
) -> dict[str, Any]:
    job = Job(work, order["group"], durations)
    await consume(job)
    answer = {**job.report(), "peak_memory": _peak_memory()}
    job.write_evidence(Path(order["evidence"]))
    return answer


def _durations(work: Work) -> list[array[int]]:
    if not work.sleeps:
        return []
    found = []
    for partition in range(work.partitions):
        both = array("I", (Path(work.plan) / f"partition-{partition}.bin").read_bytes())
        if sys.byteorder == "big":
            both.byteswap()
        found.append(both[1::2])
    return found


def _peak_memory() -> int:
    # Not of getrusage where the kernel says it better: that keeps what the parent had before it started this process.
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
