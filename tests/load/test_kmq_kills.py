"""A queue with redelivery markers on Apache Kafka, its members and trackers killed again and again."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aioparallel.queues.kmq.markers import read_marker
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import EventKind, EventTail
from aioparallel.testing.processes.child import Child
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.queue import is_bad
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.waiting import until

pytestmark = pytest.mark.real

PARTITIONS = 8
PAUSE = 5.0
"""Seconds from one kill to the next."""
Small = pytest.param(10_000, 2, 1, 3.0, 3, id="small")
Large = pytest.param(200_000, 4, 2, 10.0, 1_000, id="large", marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])


class Members:
    """Processes of one kind: what is killed comes back as another one."""

    def __init__(self, make: Callable[[int], Child], count: int) -> None:
        self._make = make
        self._numbers = itertools.count()
        self._count = count
        self.alive: list[Child] = []
        self.kills = 0

    async def begin(self, stack: AsyncExitStack) -> None:
        """Start all of them."""
        self._stack = stack
        while len(self.alive) < self._count:
            self.alive.append(await stack.enter_async_context(self._make(next(self._numbers))))

    async def kill_one(self, chance: random.Random) -> None:
        """SIGKILL, and a new one in its place."""
        child = self.alive.pop(chance.randrange(len(self.alive)))
        await child.kill()
        self.kills += 1
        await self.begin(self._stack)


@pytest.mark.parametrize(("records", "members", "trackers", "lease", "kills"), [Small, Large])
async def test_kills_lose_nothing(  # noqa: C901
    local_kafka: LocalKafka,
    kafka_topic: TopicMaker,
    tmp_path: Path,
    tell: Callable[[str], None],
    records: int,
    members: int,
    trackers: int,
    lease: float,
    kills: int,
) -> None:
    """Each record that can be handled is, at least once, and is put away by nobody; each other one is put away, after
    four deliveries; in the end no marker is open."""
    servers, queue = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    await local_kafka.create_topic(f"{queue}-markers", PARTITIONS)
    await local_kafka.create_topic(f"{queue}__undelivered")
    fill(servers, queue, [Message(b"k%d" % (n % 1_000), b"%d" % n) for n in range(records)])
    module, chance, files = "tests.support.children.queue", random.Random(3), list[Path]()
    tails, began, ended = dict[Path, EventTail](), Counter[int](), Counter[int]()

    def member(number: int) -> Child:
        events = tmp_path / f"{number}.events"
        files.append(events)
        given = ("member", servers, queue, str(lease), "0.5", str(events))
        return Child.of_module(f"member {number}", module, *given, log=tmp_path / f"{number}.log")

    def tracker(number: int) -> Child:
        given = ("tracker", servers, queue)
        return Child.of_module(f"tracker {number}", module, *given, log=tmp_path / f"tracker-{number}.log")

    def handled() -> int:
        tails.update({file: EventTail(file) for file in files if file not in tails and file.exists()})
        for tail in tails.values():
            for event in tail.new():
                if event.kind in (EventKind.BEGAN, EventKind.ENDED):
                    (began if event.kind is EventKind.BEGAN else ended)[event.offset] += 1
        return len(ended)

    good = sum(not is_bad(n) for n in range(records))
    at = time.monotonic()
    async with AsyncExitStack() as stack:
        workers, watchers = Members(member, members), Members(tracker, trackers)
        await workers.begin(stack)
        await watchers.begin(stack)
        kill_at = at + PAUSE
        while handled() < good:
            assert time.monotonic() - at < 1_500, f"{len(ended)} of {good}"
            for child in [*workers.alive, *watchers.alive]:
                assert child.running, child.log.read_text()
            if time.monotonic() > kill_at and len(ended) < 0.8 * good and workers.kills < kills:
                kill_at += PAUSE
                await workers.kill_one(chance)
                if workers.kills % 3 == 0:
                    await watchers.kill_one(chance)
            await asyncio.sleep(0.1)
        took = time.monotonic() - at

        async def all_is_ended() -> bool:
            return not await open_markers(servers, queue)

        await until(all_is_ended, 300)
        handled()
        for child in [*workers.alive, *watchers.alive]:
            child.terminate()
            await child.ended(60)
    undelivered = await read_all(servers, f"{queue}__undelivered")
    letters = Counter(int(one.value or b"") for one in undelivered)
    assert set(ended) == {n for n in range(records) if not is_bad(n)}
    assert set(letters) == {n for n in range(records) if is_bad(n)}
    copies = len(await read_all(servers, queue)) - records
    tell(
        f"{good:,} of {records:,} handled in {took:.0f} s, {workers.kills} members and {watchers.kills} trackers "
        f"killed; "
        f"{sum(began.values()) - 4 * len(letters) - good:,} runs more than one each, {ended.total() - good:,} of them "
        f"ended; {copies:,} copies sent, {letters.total():,} letters of {len(letters):,} records"
    )
    # Not all of them were begun four times: some waited for their handler when their member was killed. And of what was
    # marked, and not committed yet, the next member begins the same delivery once more.
    assert {dict(one.headers)["aioparallel.attempts"] for one in undelivered} == {b"4"}
    assert all(began[n] <= 4 * letters[n] + workers.kills for n in letters)


async def open_markers(servers: str, queue: str) -> set[tuple[int, int]]:
    """Records that are somebody's."""
    found = set[tuple[int, int]]()
    for one in await read_all(servers, f"{queue}-markers"):
        marker = read_marker(one.key, one.value)
        assert marker is not None
        (found.discard if marker.lease is None else found.add)((marker.partition, marker.offset))
    return found
