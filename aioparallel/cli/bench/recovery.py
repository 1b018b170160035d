"""(h) What a crash repeats behind one stuck record.

100,000 records on one partition; the handler of one near the beginning never ends, all others return at once. When
everything that can be done is done, and the commit says as much of it as it can, the consumer is killed (SIGKILL) and
started again; now the stuck record ends at once too. Counted are the records whose handler had ended and runs again,
and timed is the way from the restart to the commit of the end offset, lag 0. In it are the start of a Python process
and the broker's wait for the dead member's session, 6 s from its last heartbeat, so 4 to 6 s from the kill, whoever it
was; the embedded broker may wait twice. ``seconds_from_first_handler`` is without them.

Ours has to know it all from the offset map. The other contestant is what people write by hand on aiokafka: a task for
each record and commits of the prefix that is done without a gap, so everything above the stuck record runs again. It
keeps no order of keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from aioparallel.cli.bench.check import Expected, check_events
from aioparallel.cli.bench.events import EventFile, Events, begun, by_partition, ended
from aioparallel.cli.bench.filling import fill
from aioparallel.cli.bench.model import Case, CreateTopic
from aioparallel.cli.bench.recovery_consumer import CONCURRENCY
from aioparallel.cli.bench.worker import Worker
from aioparallel.cli.bench.workload import Shape, Workload
from aioparallel.errors import AioparallelError
from aioparallel.offsets import decode_offset_map

__all__ = ["measure"]

RECORDS: Final = 100_000
KEYS: Final = 10_000
STUCK: Final = 100  # offset
CONTESTANTS: Final = {"ours": "aioparallel", "by-hand": "aiokafka, a task per record, contiguous commits"}
WORK_TIMEOUT: Final = 60.0  # seconds until all is done that can be done, and for the recovery
COMMIT_TIMEOUT: Final = 20.0
POLL: Final = 0.02


async def measure(
    bootstrap_servers: str, create_topic: CreateTopic, scale: int, seed: int, progress: Callable[[str], None]
) -> list[Case]:
    """The case ``h-recovery``; its figure ``contestants`` has a row of each."""
    workload = await asyncio.to_thread(Shape(RECORDS // scale, KEYS // scale, 1).workload, seed)
    case = Case(
        "h",
        "h-recovery",
        "A crash behind one stuck record",
        workload.shape.records,
        CONCURRENCY,
        figures={"stuck_offset": STUCK, "contestants": []},
    )
    topic = f"bench-h-{uuid.uuid4().hex[:8]}"
    try:
        await create_topic(topic, 1)
        await fill(bootstrap_servers, topic, workload)
        for name, title in CONTESTANTS.items():
            progress(f"recovery of {title}")
            with tempfile.TemporaryDirectory() as folder:
                crash = _Crash(bootstrap_servers, topic, name, workload, Path(folder))
                figures, problems = await crash.run()
            case.figures["contestants"].append({"contestant": name, "title": title, **figures})
            case.problems += [f"{name}: {problem}" for problem in problems]
    except (AioparallelError, TimeoutError) as error:
        case.problems.append(str(error))
    return [case]


class Commit(NamedTuple):
    """What a group has committed: the offset, and how many records that and the map beside it call complete."""

    offset: int
    complete: int


class _Crash:
    """One contestant: started, killed, started again."""

    def __init__(self, bootstrap_servers: str, topic: str, contestant: str, workload: Workload, folder: Path) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._group = f"{topic}-{contestant}"
        self._contestant = contestant
        self._keys = workload.partitions[0].keys
        self._folder = folder

    async def run(self) -> tuple[dict[str, Any], list[str]]:
        """Figures and problems."""
        try:
            async with self._offsets() as committed:
                first = await self._until_killed(committed)
                second, seconds, since_first = await self._recover(committed)
        except (AioparallelError, KafkaError, TimeoutError) as error:
            return {}, [str(error) or f"not done within {WORK_TIMEOUT:g} s"]
        before = ended(first)
        figures = {
            "repeated": len(np.intersect1d(before, begun(second))),
            "seconds_to_recover": round(seconds, 3),
            "seconds_from_first_handler": round(since_first, 3),
        }
        whole = by_partition(np.concatenate([first, second]), 1)
        problems = check_events(whole, Expected([self._keys], sleeps=True, order="unordered", repeats=True))
        if self._contestant == "ours":
            for events in (first, second):
                one = Expected([self._keys], sleeps=True, order="key", stopped=True)
                problems += check_events(by_partition(events, 1), one)
        return figures, problems

    async def _until_killed(self, committed: Callable[[], Awaitable[Commit]]) -> Events:
        """All but what waits for the stuck record, committed; then SIGKILL."""
        waiting = 0
        if self._contestant == "ours":
            waiting = int(np.count_nonzero(self._keys[STUCK + 1 :] == self._keys[STUCK]))
        done = len(self._keys) - 1 - waiting
        known = done if self._contestant == "ours" else STUCK
        async with self._consumer(STUCK) as (worker, events):
            async with asyncio.timeout(WORK_TIMEOUT):
                while worker.running and events.count < 2 * done + 1:
                    await asyncio.sleep(POLL)
            async with asyncio.timeout(COMMIT_TIMEOUT):
                while worker.running and (await committed()).complete < known:
                    await asyncio.sleep(POLL)
            await _still_running(worker)
            await worker.kill()
        return events.read()

    async def _recover(self, committed: Callable[[], Awaitable[Commit]]) -> tuple[Events, float, float]:
        """The events until lag is 0, the seconds from the restart, and those from the first handler."""
        restarted, first = time.monotonic(), None
        async with self._consumer(None) as (worker, events), asyncio.timeout(WORK_TIMEOUT):
            while (await committed()).offset < len(self._keys):
                await _still_running(worker)
                if first is None and events.count:
                    first = time.monotonic()
                await asyncio.sleep(POLL)
            over = time.monotonic()
        return events.read(), over - restarted, over - (first or restarted)

    @contextlib.asynccontextmanager
    async def _consumer(self, stuck: int | None) -> AsyncIterator[tuple[Worker, EventFile]]:
        path = self._folder / f"{'second' if stuck is None else 'first'}.events"
        EventFile.make(path, 4 * len(self._keys))
        order = {
            "contestant": self._contestant,
            "bootstrap_servers": self._bootstrap_servers,
            "topic": self._topic,
            "group": self._group,
            "events": str(path),
            "stuck": stuck,
        }
        async with Worker("recovery_consumer", order, self._folder) as worker:
            yield worker, EventFile(path)

    @contextlib.asynccontextmanager
    async def _offsets(self) -> AsyncIterator[Callable[[], Awaitable[Commit]]]:
        """Asks the broker what the group has committed."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap_servers)
        partition = TopicPartition(self._topic, 0)

        async def committed() -> Commit:
            found = (await admin.list_consumer_group_offsets(self._group, partitions=[partition]))[partition]
            if found.offset < 0:
                return Commit(-1, 0)
            said = decode_offset_map(found.offset, found.metadata)
            return Commit(found.offset, said.highest_succeeded + 1 - len(said.incompletes))

        await admin.start()
        try:
            yield committed
        finally:
            await admin.close()


async def _still_running(worker: Worker) -> None:
    if not worker.running:
        await worker.ended()
        raise AioparallelError("the consumer ended by itself")
