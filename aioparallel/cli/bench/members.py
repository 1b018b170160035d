"""(i) One, two and four processes of one group.

The members join while they are paused, until each has its equal share of the 8 partitions of a topic that is full
already; then all are let go at once. Timed is the way from that moment to the end of the last handler of all, so what a
member cannot do because its share is through counts too. What the Kafka client has read ahead by then, at most 1 MiB of
a partition, is not paid for. With handlers of 10 ms no more than one record of each of the 2,000 keys runs at a time,
however many members there are. All members share the machine with the broker: more of them than cores cannot be faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from aioparallel.cli.bench.check import Expected, check_events
from aioparallel.cli.bench.events import EventFile, Events, begun, by_partition
from aioparallel.cli.bench.filling import fill
from aioparallel.cli.bench.member import CONCURRENCY
from aioparallel.cli.bench.model import Case, CreateTopic
from aioparallel.cli.bench.worker import Worker
from aioparallel.cli.bench.workload import Lane, Shape, Workload
from aioparallel.errors import AioparallelError, BrokerUnreachable

__all__ = ["measure"]

RECORDS: Final = 500_000
KEYS: Final = 2_000
PARTITIONS: Final = 8
MEMBERS: Final = (1, 2, 4)
SLEEPS: Final = {"sleep": 0.01, "noop": 0.0}  # seconds
JOIN_TIMEOUT: Final = 60.0
WORK_TIMEOUT: Final = 60.0
ASK_TIMEOUT: Final = 30.0
POLL: Final = 0.005


async def measure(
    bootstrap_servers: str, create_topic: CreateTopic, scale: int, seed: int, progress: Callable[[str], None]
) -> list[Case]:
    """The cases ``i-members-1``, ``-2`` and ``-4``; on the embedded broker only the first."""
    counts = MEMBERS if await asyncio.to_thread(_balances, bootstrap_servers) else MEMBERS[:1]
    workload = await asyncio.to_thread(Shape(RECORDS // scale, KEYS, PARTITIONS).workload, seed)
    cases = [
        Case("i", f"i-members-{count}", f"{_processes(count)} of one group", workload.shape.records, CONCURRENCY)
        for count in counts
    ]
    topic = f"bench-i-{uuid.uuid4().hex[:8]}"
    try:
        await create_topic(topic, PARTITIONS)
        await fill(bootstrap_servers, topic, workload)
    except (AioparallelError, TimeoutError) as error:
        for case in cases:
            case.problems.append(f"there were no records to run on: {error}")
        return cases
    for count, case in zip(counts, cases, strict=True):
        for name, seconds in SLEEPS.items():
            progress(f"{_processes(count)} of one group, {'10 ms' if seconds else 'no-op'} handlers")
            with tempfile.TemporaryDirectory() as folder:
                group = _Group(bootstrap_servers, topic, f"{topic}-{count}-{name}", workload, Path(folder))
                try:
                    figures, problems = await group.run(count, seconds)
                except AioparallelError as error:
                    figures, problems = {}, [str(error)]
            case.figures |= {f"{figure}_{name}": value for figure, value in figures.items()}
            case.problems += [f"{name}: {problem}" for problem in problems]
    return cases


@dataclass(frozen=True)
class _Group:
    """All members of one group, from the start to the end of one run."""

    bootstrap_servers: str
    topic: str
    group_id: str
    workload: Workload
    folder: Path

    async def run(self, members: int, sleep: float) -> tuple[dict[str, Any], list[str]]:
        """``rate`` (records/s of all together), ``shares`` (records of each), ``repeated`` (records begun again)."""
        records = self.workload.shape.records
        async with contextlib.AsyncExitStack() as stack:
            found = [await stack.enter_async_context(self._member(number, sleep)) for number in range(members)]
            workers, files = [worker for worker, _ in found], [file for _, file in found]
            await _joined(workers)
            seconds = await self._work(workers, files, records * (2 if sleep else 1))
            for worker in workers:
                assert worker.process.stdin is not None  # a pipe was asked for
                worker.process.stdin.close()  # all leave at once, so that nobody gets the partitions of another
        logs = [file.read() for file in files]
        problems = self._check(np.concatenate(logs), sleep, order="unordered")
        for log in logs:
            problems += self._check(log, sleep, order="key", stopped=True)
        shares = [len(begun(log)) for log in logs]
        return {"rate": round(records / seconds), "shares": shares, "repeated": sum(shares) - records}, problems

    @contextlib.asynccontextmanager
    async def _member(self, number: int, sleep: float) -> AsyncIterator[tuple[Worker, EventFile]]:
        path = self.folder / f"{number}.events"
        EventFile.make(path, 3 * self.workload.shape.records)
        order = {
            "bootstrap_servers": self.bootstrap_servers,
            "topic": self.topic,
            "group": self.group_id,
            "sleep": sleep,
            "events": str(path),
        }
        async with Worker("member", order, self.folder) as worker:
            yield worker, EventFile(path)

    async def _work(self, workers: list[Worker], files: list[EventFile], events: int) -> float:
        """Let them go; the seconds until they have written so many events."""
        began = time.monotonic()
        for worker in workers:
            worker.process.send_signal(signal.SIGUSR1)
        while sum(file.count for file in files) < events:
            if not all(worker.running for worker in workers):
                raise AioparallelError("a member ended by itself")
            if time.monotonic() - began > WORK_TIMEOUT:
                raise AioparallelError(f"not done within {WORK_TIMEOUT:g} s")
            await asyncio.sleep(POLL)
        return time.monotonic() - began

    def _check(self, log: Events, sleep: float, *, order: Lane, stopped: bool = False) -> list[str]:
        """Of all members together whether each record ran; of each by itself the order. Rebalances may repeat."""
        expected = Expected(self.workload.keys, bool(sleep), order, stopped=stopped, repeats=True)
        return check_events(by_partition(log, PARTITIONS), expected)


def _balances(bootstrap_servers: str) -> bool:
    """Whether the broker is one for groups with several members, which librdkafka's mock cluster is not."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    try:
        return not (admin.list_topics(timeout=ASK_TIMEOUT).cluster_id or "").startswith("mockCluster")
    except KafkaException as error:
        raise BrokerUnreachable(bootstrap_servers, ASK_TIMEOUT, str(error)) from error


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"


async def _joined(workers: list[Worker]) -> None:
    """Until each has its share of the partitions. Raises AioparallelError."""
    shares = [0] * len(workers)

    async def listen(number: int) -> None:
        while True:
            shares[number] = (await workers[number].told(JOIN_TIMEOUT))["open"]
            if all(share == PARTITIONS // len(workers) for share in shares):
                every.set()

    every = asyncio.Event()
    listening = [asyncio.create_task(listen(number)) for number in range(len(workers))]
    waiting = asyncio.create_task(every.wait())
    try:
        done, _ = await asyncio.wait([waiting, *listening], timeout=JOIN_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if waiting in done:
            return
        for one in done:
            one.result()
        raise AioparallelError(f"the members did not share the partitions within {JOIN_TIMEOUT:g} s, but {shares}")
    finally:
        for task in (waiting, *listening):
            task.cancel()
        await asyncio.wait([waiting, *listening])
