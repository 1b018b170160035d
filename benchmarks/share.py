"""Share consumers compared: ``python -m benchmarks.share``.

In turn, on one topic, each in a group of its own: this library's ``ShareConsumer``, Kafka's ``KafkaShareConsumer`` and
confluent-kafka's ``ShareConsumer`` with as many threads, and this library's ``KmqConsumer`` and ``ParallelConsumer``
without order. All acknowledge record by record. A run lasts some seconds. After each, nothing was handled twice, and
the group has exactly those records left that were not handled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from aioparallel import Ordering, ParallelConsumer, Record
from aioparallel.event_loop.loop import quick_collections
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.queues.share import ShareConsumer
from aioparallel.records.errors import AioparallelError
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import EventKind, EventLog, EventTail
from aioparallel.testing.filling import Message, fill
from benchmarks import standalone
from benchmarks.cpu import cpu_seconds
from benchmarks.kept import GOALS, Row, Tables
from benchmarks.programs import ROOT, SHARE_PEERS, Contestant, find_peers
from benchmarks.share_groups import left_of, read_from_the_beginning

__all__ = ["main"]

PARTITIONS: Final = 12
TOPIC: Final = "shared"
OURS: Final = "share"
WARM_UP: Final = 3.0
"""Seconds of the first run of each process, which does not count."""
TIMEOUT: Final = 120.0


class Load(NamedTuple):
    """What handlers do: sleep so many milliseconds, and ``slow`` ones at each offset divisible by ``every``."""

    name: str
    milliseconds: int
    slow: int = 0
    every: int = 0


LOADS: Final = (
    Load("no-op", 0),
    Load("10 ms", 10),
    Load("100 ms", 100),
    Load("10 ms, 1 % 2 s", 10, 2_000, 100),
)
TITLES: Final = {
    OURS: "ShareConsumer",
    "kmq": "KmqConsumer",
    "unordered": "ParallelConsumer, unordered",
}


# -- a contestant of this library: its process


def consumer_of(kind: str, servers: str, group: str, at_once: int) -> ParallelConsumer[Any, Any]:
    """One of ours."""
    options: dict[str, Any] = {"bootstrap_servers": servers, "group_id": group, "max_concurrency": at_once}
    match kind:
        case "kmq":
            return KmqConsumer(TOPIC, marker_topic=f"{group}-markers", lease=60, max_buffered=20 * at_once, **options)
        case "unordered":
            return ParallelConsumer(TOPIC, ordering=Ordering.UNORDERED, **options)
        case _:
            return ShareConsumer(TOPIC, **options)


async def consume(kind: str, servers: str, at_once: int, given: Sequence[str]) -> dict[str, float]:
    """One run: until ``count`` records have ended, or ``limit`` seconds after the first call of the handler."""
    group, count, limit, path = given[0], int(given[1]), float(given[2]), Path(given[-1])
    milliseconds, slow, every = map(int, given[3:6])
    began, used, ended = 0.0, 0.0, 0
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    seconds, long = milliseconds / 1000, slow / 1000
    with EventLog(path) as log:

        async def handle(record: Record[Any, Any]) -> None:
            nonlocal began, used, ended
            if not began:
                began, used = time.perf_counter(), cpu_seconds()
                loop.call_later(limit, is_over.set)
            partition, offset = record.partition, record.offset
            log.began(partition, offset)
            if milliseconds:
                await asyncio.sleep(long if every and offset % every == 0 else seconds)
            log.ended(partition, offset)
            ended += 1
            if ended == count:
                is_over.set()

        consumer = consumer_of(kind, servers, group, at_once)
        async with consumer:
            run = asyncio.create_task(consumer.run(handle))
            await asyncio.wait([run, asyncio.create_task(is_over.wait())], return_when=asyncio.FIRST_COMPLETED)
            told = {"seconds": time.perf_counter() - began, "ended": ended, "cpu": cpu_seconds() - used}
            consumer.stop()
            await run
        stats = consumer.stats()
        assert (stats.failed_attempts, stats.succeeded) == (0, ended), stats
    return told


def as_child(kind: str, servers: str, at_once: str) -> None:
    """Run what each line of standard input says."""
    quick_collections(int(at_once))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(consume(kind, servers, int(at_once), line.split()))), flush=True)


# -- the benchmark


class Told(NamedTuple):
    """Of one run. ``rate``: records a second. ``cpu``: microseconds a record."""

    rate: float
    cpu: float


class Contest:
    """All contestants on one broker. Blocking."""

    def __init__(self, kafka: LocalKafka, count: int, at_once: int, folder: Path) -> None:
        self._servers = kafka.bootstrap_servers
        self._kafka = kafka
        self._count = count
        self._at_once = at_once
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.shares: set[str] = {OURS}

    def start(self, stack: ExitStack, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        """Start a contestant's process."""
        errors = stack.enter_context((self._folder / f"{name}.log").open("w"))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        self._processes[name] = process

    def run(self, name: str, load: Load, limit: float) -> Told:
        """One run, checked."""
        group = f"{name}-{uuid.uuid4().hex[:8]}"
        log = self._folder / f"{group}.events"
        uvloop.run(self._prepare(name, group))
        given = (group, self._count, limit, load.milliseconds, load.slow, load.every, log)
        process = self._processes[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(" ".join(map(str, given)) + "\n")
        process.stdin.flush()
        if not (line := process.stdout.readline()):
            raise AioparallelError(f"{name} has ended: {(self._folder / f'{name}.log').read_text()[-2_000:]}")
        told = json.loads(line)
        self._check(name, group, log)
        log.unlink()
        return Told(told["ended"] / told["seconds"], told["cpu"] / told["ended"] * 1e6)

    async def _prepare(self, name: str, group: str) -> None:
        if name in self.shares:
            await read_from_the_beginning(self._servers, group)
        elif name == "kmq":
            await self._kafka.create_topic(f"{group}-markers", PARTITIONS)

    def _check(self, name: str, group: str, log: Path) -> None:
        """Raises AioparallelError if a record was handled twice, or if others than the handled ones are left."""
        ended = [(one.partition, one.offset) for one in EventTail(log).new() if one.kind is EventKind.ENDED]
        if len(set(ended)) != len(ended):
            raise AioparallelError(f"{name} has handled {len(ended) - len(set(ended))} records twice")
        if name in self.shares:
            left = uvloop.run(left_of(self._servers, group, self._count // PARTITIONS))
            if left + len(ended) != self._count:
                raise AioparallelError(f"{name}: {len(ended)} of {self._count} records were handled, {left} are left")


def contest(given: argparse.Namespace, say: Callable[[str], None]) -> Tables:
    """Rates and CPU, in turn."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(LocalKafka(heap="1g", report=say))
        uvloop.run(kafka.create_topic(TOPIC, PARTITIONS))
        uvloop.run(kafka.create_topic(f"{TOPIC}__undelivered"))
        fill(
            kafka.bootstrap_servers,
            TOPIC,
            ((n % PARTITIONS, Message(key=None, value=b"x" * 100)) for n in range(given.count)),
        )
        race = Contest(kafka, given.count, given.concurrency, folder)
        titles = dict(TITLES)
        for name in titles:
            command = (sys.executable, "-P", "-m", "benchmarks.share", "--child", name, kafka.bootstrap_servers)
            race.start(stack, name, (*command, str(given.concurrency)), {"PYTHONPATH": str(ROOT)})
        for name, peer in find_peers(SHARE_PEERS, say).items():
            if isinstance(peer, Contestant):
                rest = (kafka.bootstrap_servers, TOPIC, str(given.concurrency), "batch_optimized")
                race.start(stack, name, (*peer.command, *rest), dict(peer.environment))
                race.shares.add(name)
                titles[name] = peer.title
            else:
                say(f"{name} is left out: {peer}")
        told: dict[tuple[str, str], list[Told]] = {}
        for number in range(given.rounds + 1):
            for load in LOADS:
                for name in [*titles][:: 1 if number % 2 else -1]:
                    found = race.run(name, load, given.seconds if number else min(WARM_UP, given.seconds))
                    say(f"round {number}, {load.name}, {name}: {found.rate:,.0f}/s, {found.cpu:.1f} µs of CPU a record")
                    if number:
                        told.setdefault((load.name, name), []).append(found)
    return tables_of(told, titles)


def tables_of(told: dict[tuple[str, str], list[Told]], titles: dict[str, str]) -> Tables:
    """A table for each load, then the goals."""
    rate = {key: statistics.median(one.rate for one in some) for key, some in told.items()}
    tables: dict[str, Sequence[Row]] = {}
    for load in LOADS:
        tables[f"Handlers: {load.name}"] = [
            {
                "": title,
                **standalone.median("records/s", [one.rate for one in told[load.name, name]]),
                "CPU µs a record": statistics.median(one.cpu for one in told[load.name, name]),
                "ours / this": rate[load.name, OURS] / rate[load.name, name],
            }
            for name, title in titles.items()
        ]
    theirs = [name for name in titles if name not in TITLES]
    goals = [
        standalone.goal(
            "share groups, 1 % of records at 2 s: ours / ours with 10 ms",
            rate[LOADS[3].name, OURS] / rate["10 ms", OURS],
            0.95,
        )
    ]
    if theirs:
        fastest = max(rate["10 ms", name] for name in theirs)
        goals.insert(
            0,
            standalone.goal("share groups, 10 ms: ours / the fastest of the others", rate["10 ms", OURS] / fastest, 5),
        )
    return {**tables, GOALS: goals}


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("share", __doc__)
    parser.add_argument("--count", type=int, default=600_000, help="records in the topic (600,000)")
    parser.add_argument("--concurrency", type=int, default=1_000, help="handlers, or threads, at once (1,000)")
    parser.add_argument("--seconds", type=float, default=8.0, help="that a run lasts at most (8)")
    parser.add_argument("--rounds", type=int, default=3, help="of all, in turn, after one that does not count (3)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        as_child(*given.child)
        return 0

    if given.count % PARTITIONS or given.rounds < 1:
        parser.error(f"--count divisible by {PARTITIONS}, --rounds from 1")

    def say(sentence: str) -> None:
        print(sentence, flush=True)

    return standalone.run("share", parser, given, lambda given: contest(given, say), beside=standalone.KAFKA)


if __name__ == "__main__":
    sys.exit(main())
