"""The contestant's side of the protocol: a process that consumes a topic and writes an event log.

It is started as ``<command> <work.json>`` and runs all rounds of a case. Its standard input gets a line of JSON for
each round::

    {"round": 0, "group": "bench-1f00-0", "log": "<a file to be made>", "output": null}

It reads the whole topic from the beginning as a member of that new group, commits, closes, and answers with one line of
JSON on its standard output, which must have no other output::

    {"round": 0, "seconds": 1.9, "whole_seconds": 2.4, "ended": 10000, "cpu_seconds": 1.1,
     "peak_memory": 60000000, "stopped": false}

or with ``{"round": 0, "error": "what went wrong"}``. It ends when its standard input does. The values are explained at
:class:`benchmarks.measures.Run`; the log has the format of :mod:`aioparallel.testing.event_log`. Handlers that return
at once log only their beginning.

The folder ``sleeps`` of the work has a file ``<partition>.bin`` of unsigned 32-bit little-endian integers: for each
offset the microseconds that its handler sleeps.

Contestants of scripts (:mod:`benchmarks.scripts`) also write ``{"open": 8}``, their number of partitions, whenever it
changes, and read the lines ``go`` (members are paused until then) and ``stop`` (end the round now).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import queue
import resource
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from aioparallel.event_loop.loop import loop_factory, quick_collections
from aioparallel.testing.event_log import EventKind, EventLog
from aioparallel.testing.processes.parent import tell

__all__ = ["HandlerKind", "Job", "Readable", "Work", "serve"]

SPARE = 100_000
"""Events for repeated records, so that the benchmark can name them."""

Script = Literal["rounds", "pace", "crash", "members"]
HandlerKind = Literal["return", "sleep", "json", "produce", "transactions", "map", "queue"]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of each contestant of a case, written as ``work.json``.

    ``handler``: ``"return"`` at once; ``"sleep"`` as planned; ``"json"``: return at once, with decoded values;
    ``"produce"``: one record to the round's output topic for each; ``"transactions"``: the same in Kafka transactions;
    ``"map"``: return at once, through ``parallel_map``; ``"queue"``: return at once, in a KMQ queue. ``limit``: seconds
    after the first handler call, or before it after the start, when an unfinished run is stopped and reported.
    ``stuck``: an offset whose handler never ends. ``batch``: handlers get lists of at most so many records; 0: single
    ones. ``library``: the folder that aioparallel must be imported from; empty: any. ``cpu``: the core that the process
    is pinned to; None: any.
    """

    bootstrap_servers: str
    topic: str
    partitions: int
    records: int
    ordering: Literal["key", "partition", "unordered"]
    concurrency: int
    handler: HandlerKind
    sleeps: str
    limit: float
    script: Script = "rounds"
    stuck: int | None = None
    batch: int = 0
    library: str = ""
    cpu: int | None = None

    def write(self, path: Path) -> None:
        """Write it for a contestant."""
        path.write_text(json.dumps(asdict(self)))


class Readable(Protocol):
    """A record of any Kafka client."""

    @property
    def partition(self) -> int:
        """Its partition."""

    @property
    def offset(self) -> int:
        """Its offset."""


Handle = Callable[[Any], Coroutine[Any, Any, None]]


class Moment(NamedTuple):
    """A time, and the CPU time of this process by then, in seconds."""

    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Moment:
        """Both clocks now."""
        return cls(time.perf_counter(), time.process_time())


class Job:
    """One round: the handler to run, and its measurements."""

    def __init__(self, work: Work, order: dict[str, Any]) -> None:
        self.work = work
        self.group: str = order["group"]
        self.output: str | None = order["output"]
        self.path = Path(order["log"])
        self.log = EventLog(self.path, times=work.script == "pace", room=2 * work.records + SPARE)
        self.let_go = asyncio.Event()
        """Set by the line ``go``."""
        self.all_called = asyncio.Event()
        """Set when the handler was called for every record, if handlers do not wait."""
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started = time.perf_counter()
        self._first: Moment | None = None
        self._last: Moment | None = None
        self._ended = 0
        self._count: Callable[[], int] = lambda: 0
        self.handle: Handle = self._handler()

    def _handler(self) -> Handle:
        if self.work.script in ("pace", "crash"):
            return self._watched()
        if self.work.batch:
            return self._batch_sleeper() if self.work.handler == "sleep" else self._batch()
        return self._sleeper() if self.work.handler == "sleep" else self._quick()

    def _quick(self) -> Handle:
        """Logs only the beginning, as the handler does nothing."""
        words, count, began = self.log.words, 0, EventLog.word_of(EventKind.BEGAN, 0, 0)
        edges = {1, self.work.records}

        async def handle(record: Readable) -> None:
            nonlocal count
            count += 1
            words[count] = began | record.partition << 44 | record.offset
            if count in edges:
                self._at_edge(count)

        self._count = lambda: count
        return handle

    def _sleeper(self) -> Handle:
        words, at, count = self.log.words, 0, 0
        records, sleeps = self.work.records, sleeps_of(self.work)
        began, ended = (EventLog.word_of(kind, 0, 0) for kind in (EventKind.BEGAN, EventKind.ENDED))

        async def handle(record: Readable) -> None:
            nonlocal at, count
            partition, offset = record.partition, record.offset
            place = partition << 44 | offset
            if not at:
                self.begin()
            at += 1
            words[at] = began | place
            await asyncio.sleep(sleeps[partition][offset] * 1e-6)
            at += 1
            words[at] = ended | place
            count += 1
            if count == records:
                self.finish(count)

        self._count = lambda: count
        return handle

    def _batch(self) -> Handle:
        """Like :meth:`_quick` for lists of records."""
        words, count, began = self.log.words, 0, EventLog.word_of(EventKind.BEGAN, 0, 0)

        async def handle(records: Sequence[Readable]) -> None:
            nonlocal count
            self.begin()
            before, count = count + 1, count + len(records)
            words[before : count + 1] = array("Q", [began | one.partition << 44 | one.offset for one in records])
            if count == self.work.records:
                self.finish(count)

        self._count = lambda: count
        return handle

    def _batch_sleeper(self) -> Handle:
        """One sleep for a list of records: their longest."""
        words, at, count = self.log.words, 0, 0
        sleeps = sleeps_of(self.work)
        began, ended = (EventLog.word_of(kind, 0, 0) for kind in (EventKind.BEGAN, EventKind.ENDED))

        async def handle(records: Sequence[Readable]) -> None:
            nonlocal at, count
            self.begin()
            places = [one.partition << 44 | one.offset for one in records]
            words[at + 1 : at + 1 + len(places)] = array("Q", [began | place for place in places])
            at += len(places)
            await asyncio.sleep(max([sleeps[one.partition][one.offset] for one in records]) * 1e-6)
            words[at + 1 : at + 1 + len(places)] = array("Q", [ended | place for place in places])
            at += len(places)
            count += len(places)
            if count == self.work.records:
                self.finish(count)

        self._count = lambda: count
        return handle

    def _watched(self) -> Handle:
        """For scripts that read the log during the run, or its times. One record may be stuck."""
        log, records, stuck, count = self.log, self.work.records, self.work.stuck, 0

        async def handle(record: Readable) -> None:
            nonlocal count
            partition, offset = record.partition, record.offset
            self.begin()
            log.began(partition, offset)
            if offset == stuck:
                await asyncio.Event().wait()
            log.ended(partition, offset)
            count += 1
            if count == records:
                self.finish(count)

        self._count = lambda: count
        return handle

    def _at_edge(self, count: int) -> None:
        self.begin()
        if count == self.work.records:
            self.all_called.set()
            if self.work.handler not in ("produce", "transactions", "queue"):
                self.finish(count)

    def begin(self) -> None:
        """The first handler is called; later calls have no effect."""
        if self._first is None:
            self._first = Moment.now()

    def finish(self, ended: int) -> None:
        """The last handler has ended, or the run is stopped, after so many records. Later calls have no effect."""
        if self._last is None:
            self._last, self._ended = Moment.now(), ended
            if ended == self.work.records:
                self._over.set()

    def hear(self, word: str) -> None:
        """Handle a line from the benchmark; called in another thread."""
        self._loop.call_soon_threadsafe(self.let_go.set if word == "go" else self._stop)

    def _stop(self) -> None:
        self.finish(self._count())
        self._over.set()

    async def wait(self) -> bool:
        """Wait for the last record or the work's limit. Returns whether the last record has ended."""
        while not self._over.is_set():
            since = self._first.clock if self._first else self._started
            left = since + self.work.limit - time.perf_counter()
            if left <= 0:
                self.finish(self._count())
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._over.wait()
        return self._over.is_set()

    def report(self) -> dict[str, Any]:
        """The answer after the run."""
        last = self._last or Moment.now()
        first = self._first or Moment(self._started, last.cpu)
        return {
            "seconds": last.clock - first.clock,
            "whole_seconds": last.clock - self._started,
            "ended": self._ended,
            "cpu_seconds": last.cpu - first.cpu,
            "peak_memory": _peak_memory(),
            "stopped": not self._over.is_set(),
        }


def sleeps_of(work: Work) -> list[array[int]]:
    """Microseconds to sleep, by partition and offset."""
    found = []
    for partition in range(work.partitions):
        found.append(array("I", Path(work.sleeps, f"{partition}.bin").read_bytes()))
        if sys.byteorder == "big":
            found[-1].byteswap()
    return found


class _Line:
    """Reads standard input: orders for rounds, and lines for the current job."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.job: Job | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # Not through sys.stdin: a thread blocked in it would keep the interpreter from ending.
        for line in io.FileIO(0, closefd=False):
            word = line.decode().strip()
            if word.startswith("{"):
                self.orders.put(json.loads(word))
            elif (job := self.job) is not None:
                with contextlib.suppress(RuntimeError):  # its event loop has just closed
                    job.hear(word)
        os._exit(0)  # also during a round: the benchmark has gone


def serve(consume: Callable[[Job], Awaitable[None]]) -> None:
    """The main function of a contestant. ``consume`` does one round, from making the consumer to closing it.

    It must stop when :meth:`Job.wait` returns.
    """
    work = Work(**json.loads(Path(sys.argv[1]).read_text()))
    if work.cpu is not None:
        os.sched_setaffinity(0, {work.cpu})
    quick_collections()
    line = _Line()
    while True:
        order = line.orders.get()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                answer = runner.run(_round(consume, work, order, line))
            except Exception as error:
                answer = {"error": repr(error)}
        tell(json.dumps({"round": order["round"], **answer}))


async def _round(
    consume: Callable[[Job], Awaitable[None]], work: Work, order: dict[str, Any], line: _Line
) -> dict[str, Any]:
    line.job = job = Job(work, order)
    try:
        await consume(job)
        return job.report()
    finally:
        line.job = None
        job.log.close()


def _peak_memory() -> int:
    # getrusage includes the memory of the parent before this process was started; the kernel's status does not.
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
