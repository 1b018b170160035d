"""A share group on three brokers, its members killed and stopped again and again, and brokers killed. All of it:
``make load-share-kills``."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from aioparallel.clients.messages.share_offsets import (
    DESCRIBE_SHARE_GROUP_OFFSETS,
    DescribeGroup,
    DescribeShareGroupOffsetsRequest,
)
from aioparallel.testing import LocalKafka
from aioparallel.testing.processes.child import Child
from tests.support.children.share import is_bad
from tests.support.kafka.asking import asking
from tests.support.kafka.brokers import restore, until_whole
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.share_members import configured, new_group, share_member
from tests.support.share_causes import Causes, Deliveries, Delivery, Troubles
from tests.support.share_events import ShareTail
from tests.support.waiting import until

pytestmark = pytest.mark.real

MODULE = "tests.support.children.share"
PARTITIONS = 12
SEED = int(os.environ.get("SEED", "1"))
LOCK = 15.0
"""Seconds; the shortest that brokers allow."""
LIMIT = 5
SESSION = "6000"
"""Milliseconds until the group notices that a member is dead. Until then its partitions may have no other member: with
the least that brokers allow by default, 45 s, most of the time would pass so."""
SECONDS = "0.4"
"""That a handler takes."""
STOPS = (3.0, 8.0, 22.0)
"""Seconds of a SIGSTOP: within the lock, about its half, and past it."""


class Size(NamedTuple):
    """Of a run. ``pause``: seconds from one trouble to the next. ``until_part``: troubles end when so much is done.
    ``brokers``: SIGKILL of a broker at each third trouble, too."""

    records: int
    members: int
    pause: float
    until_part: float
    timeout: float
    brokers: bool


SMALL = pytest.param(Size(10_000, 3, 5.0, 0.8, 120, False), id="small", marks=pytest.mark.slow)
LARGE = pytest.param(
    Size(200_000, 4, 5.0, 0.9, 600, False), id="large", marks=[pytest.mark.slow, pytest.mark.timeout(1_000)]
)
BROKERS = pytest.param(
    Size(80_000, 4, 5.0, 0.9, 400, True), id="brokers", marks=[pytest.mark.slow, pytest.mark.timeout(800)]
)


class Members:
    """Processes that are killed, stopped and replaced."""

    def __init__(self, make: Callable[[int], Child]) -> None:
        self._make = make
        self._numbers = itertools.count()
        self.alive: dict[int, Child] = {}
        self.troubles = Troubles({}, [], [])
        self._resuming: dict[int, asyncio.Task[None]] = {}
        self._starting: list[asyncio.Task[None]] = []

    async def start(self, stack: AsyncExitStack) -> None:
        """Start one."""
        number = next(self._numbers)
        self.alive[number] = await stack.enter_async_context(self._make(number))

    async def trouble(self, chance: random.Random, stack: AsyncExitStack) -> None:
        """SIGKILL of one and a new one in its place, or SIGSTOP of one. Two at least are not stopped. It does not wait
        for the new one, whose start may take long on a busy machine."""
        running = [number for number in self.alive if number not in self._resuming]
        if not running:
            return
        number = chance.choice(running)
        if chance.random() < 0.5 and len(running) > 2:
            self._resuming[number] = asyncio.create_task(self._stop(number, chance.choice(STOPS)))
            return
        child = self.alive.pop(number)
        self._starting.append(asyncio.create_task(self.start(stack)))
        await child.kill()
        self.troubles.killed[number] = time.monotonic()

    async def _stop(self, number: int, seconds: float) -> None:
        child, began = self.alive[number], time.monotonic()
        child.pause()
        self.troubles.stopped.append((number, began, math.inf))
        at = len(self.troubles.stopped) - 1
        try:
            await asyncio.sleep(seconds)
        finally:
            child.resume()
            self.troubles.stopped[at] = number, began, time.monotonic()
            del self._resuming[number]

    async def all_run(self) -> None:
        """Wait until no member is stopped or missing."""
        await asyncio.gather(*self._resuming.values(), *self._starting)


class Brokers:
    """Killed one after the other."""

    def __init__(self, kafka: LocalKafka, topic: str, troubles: Troubles) -> None:
        self._kafka = kafka
        self._topic = topic
        self._troubles = troubles
        self._task: asyncio.Task[None] | None = None
        self.kills = 0

    def kill_one(self, chance: random.Random) -> None:
        """Unless one is down already."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._kill(chance.choice(self._kafka.numbers)))

    async def _kill(self, number: int) -> None:
        self.kills += 1
        began, moves = time.monotonic(), self._troubles.leaders
        at = len(moves)
        moves.append((began, math.inf))
        async with self._kafka.down(number):
            await asyncio.sleep(6)
        await until_whole(self._kafka, self._topic)
        await until(self._is_preferred)
        moves[at] = began, time.monotonic()

    async def _is_preferred(self) -> bool:
        """Whether leaders will not move any more."""
        return len(Counter((await self._kafka.leaders(self._topic)).values())) == len(self._kafka.numbers)

    async def all_run(self) -> None:
        """Wait until no broker is down."""
        if self._task is not None:
            await self._task


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalKafka]:
    """Three brokers whose groups may have short sessions."""
    allowed = {f"group.share.{most}session.timeout.ms": SESSION for most in ("", "min.")}
    with LocalKafka(
        brokers=3,
        server_properties=allowed
        | {"group.share.heartbeat.interval.ms": "1000", "group.share.min.heartbeat.interval.ms": "1000"},
    ) as kafka:
        yield kafka


@pytest.mark.parametrize("size", [SMALL, LARGE, BROKERS])
async def test_kills_lose_nothing(  # noqa: C901
    cluster: LocalKafka, tmp_path: Path, tell: Callable[[str], None], size: Size
) -> None:
    """Each record that can be handled is, at least once, and none is acknowledged before. One whose handler fails is
    delivered as often as the group allows. Each other delivery is one of a member that was killed or stopped past its
    lock, whose session was lost, or whose leader moved. In the end the group has nothing left."""
    servers, chance = cluster.bootstrap_servers, random.Random(SEED)
    group = await configured(servers, topic := new_group(), {"share.record.lock.duration.ms": f"{LOCK * 1000:.0f}"})
    await cluster.create_topic(topic, PARTITIONS)
    count = size.records // PARTITIONS
    messages = [Message(b"k", b"%d" % n, partition=p) for n in range(count) for p in range(PARTITIONS)]
    await asyncio.to_thread(fill, servers, topic, messages)
    good = sum(not is_bad(n) for n in range(count)) * PARTITIONS
    tails, deliveries = dict[int, ShareTail](), Deliveries()

    def member(number: int) -> Child:
        events = tmp_path / f"{number}.events"
        tails[number] = ShareTail(events)
        given = (servers, topic, group, SECONDS, str(events))
        return Child.of_module(f"member {number}", MODULE, *given, log=tmp_path / f"{number}.log")

    def read() -> int:
        for number, tail in tails.items():
            deliveries.add(number, tail.new())
        return len(deliveries.ended)

    left = dict[int, int]()

    async def is_done() -> bool:
        left.update(await lags(servers, group))
        return left == dict.fromkeys(range(PARTITIONS), 0)

    at = time.monotonic()
    async with AsyncExitStack() as stack:
        members = Members(member)
        brokers = Brokers(cluster, topic, members.troubles)
        stack.callback(restore, cluster)
        for _ in range(size.members):
            await members.start(stack)
        trouble_at = at + size.pause
        for turn in itertools.count():
            while (done := read()) < good and time.monotonic() < trouble_at:
                for child in members.alive.values():
                    assert child.running, child.log.read_text()[-5_000:]
                await asyncio.sleep(0.2)
            if done >= size.until_part * good:
                break
            assert time.monotonic() - at < size.timeout, f"{done:,} of {good:,}"
            await members.trouble(chance, stack)
            if size.brokers and turn % 3 == 1:
                brokers.kill_one(chance)
            trouble_at += size.pause
        await members.all_run()
        await brokers.all_run()
        await until(lambda: read() >= good, 120, lambda: f"{len(deliveries.ended):,} of {good:,}")
        took = time.monotonic() - at
        await until(is_done, 90, lambda: f"all lags to be 0: {left}")
        for child in members.alive.values():
            child.terminate()
            await child.ended(60)
        await check_nothing_left(servers, group, topic)
    read()
    troubles, causes = members.troubles, Causes(members.troubles, deliveries.cuts, LOCK)
    for record, some in deliveries.of.items():
        causes.explain(some, LIMIT if is_bad(record[1]) else 0)
    poison = {record: some for record, some in deliveries.of.items() if is_bad(record[1])}
    tell(
        f"seed {SEED}: {size.records:,} records in {took:.0f} s, {len(troubles.killed)} SIGKILL and "
        f"{len(troubles.stopped)} SIGSTOP of members, {brokers.kills} SIGKILL of brokers; "
        f"{sum(map(len, deliveries.of.values())):,} deliveries read; the others than the last of a record, by cause: "
        f"{', '.join(f'{cause}: {number:,}' for cause, number in causes.counted.most_common())}; "
        f"{len(poison):,} records that fail, by deliveries read: {dict(Counter(map(len, poison.values())))}"
    )
    assert deliveries.ended == {(p, n) for p in range(PARTITIONS) for n in range(count) if not is_bad(n)}
    assert deliveries.unhandled == []
    unexplained = [describe(some, number, at) for some, number in causes.unexplained]
    assert not unexplained, "\n".join([f"{len(unexplained)} unexplained, {troubles}", *unexplained[:20]])
    check_poison(poison, troubles)


def check_poison(poison: dict[tuple[int, int], list[Delivery]], troubles: Troubles) -> None:
    """A record that always fails is delivered as often as the group allows, and not more often: each count once. What
    was delivered and never read is missing, and where a leader has moved a count may come again."""
    for record, some in poison.items():
        counts = Counter(one.number for one in some)
        assert max(counts) <= LIMIT, record
        if not troubles.leaders:
            assert set(counts.values()) == {1}, record
        if not (troubles.leaders or troubles.killed or troubles.stopped):
            assert len(counts) == LIMIT, record


async def lags(servers: str, group: str) -> dict[int, int]:
    """How many records of each partition have not ended. The start offsets that the group describes are older."""
    async with asking(servers) as asked:
        request = DescribeShareGroupOffsetsRequest(groups=(DescribeGroup(group),))
        answer = await asked.coordinate(group, DESCRIBE_SHARE_GROUP_OFFSETS, request)
    return {
        one.partition_index: one.lag for found in answer.groups for topic in found.topics for one in topic.partitions
    }


async def check_nothing_left(servers: str, group: str, topic: str) -> None:
    """A new member with all partitions gets only what is written now."""
    async with share_member(servers, group, topic) as member:
        await until(lambda: len(member.assigned) == PARTITIONS)
        await asyncio.to_thread(fill, servers, topic, [Message(b"k", b"last", partition=p) for p in range(PARTITIONS)])
        found = await member.take(PARTITIONS, most=1_000)
        assert [one.record.value for one in found] == [b"last"] * PARTITIONS
        await member.end(found)


def describe(deliveries: object, number: int, began: float) -> str:
    """For messages: all deliveries of a record, with times from the beginning of the run."""
    assert isinstance(deliveries, list)
    lines = [f"delivery {number} of"]
    for one in deliveries:
        times = {
            name: f"{moment - began:.2f}"
            for name in ("acquired", "began", "failed", "ended", "renewed", "sent_at")
            if (moment := getattr(one, name))
        }
        lines.append(f"  {one.record} delivery {one.number} at member {one.member} {times} {one.sent} {one.result}")
    return "\n".join(lines)
