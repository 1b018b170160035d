"""Ends and faults of a share consumer at any moment, and random courses of a whole group, in virtual time.

What always holds:

* The group has ACCEPT only of records whose handler has succeeded, for the member that had the lock then.
* A handler's success is accepted, or reported as late, or it is unknown whether it is.
* No record is released while its handler runs, and no acknowledgement is sent for a lock that is known to be lost.
* A member that ends acquires nothing any more, releases what was not begun, and waits for the answers to its
  acknowledgements. While it is paused, nothing is locked for it but what runs.
* After a member has left, nothing is locked for it.
* With enough deliveries nothing is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from aioparallel import Outgoing, Record, Reject, RetryPolicy
from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.queues.share import ShareConsumer
from aioparallel.queues.share.acquiring import ON_ITS_WAY
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryProducer
from tests.simulation.clocks import one_source_of_chance
from tests.support.share_group import FakeShareClient, Place, ShareGroup
from tests.support.virtual_time import VirtualLoop
from tests.unit.queues.share.conftest import until

P = TopicPartition("t", 0)
MOMENTS = 75  # turns of the loop, after which everything is done
COURSES = 12
RECORDS = 120
PACE = 1e-6  # seconds that a look at the clock takes


class Checked(ShareGroup):
    """Notes who has succeeded with what, and refuses acknowledgements without a success."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.succeeded: Counter[tuple[object, int, int]] = Counter()
        self.accepted: Counter[object] = Counter()
        """By member: successes that the group has."""
        self.running: Counter[tuple[object, int, int]] = Counter()
        """Handlers, by member, partition and offset."""

    def acknowledge(
        self, member: object, partition: TopicPartition, offset: int, kind: AcknowledgeType, now: float
    ) -> tuple[Acknowledged, float]:
        place = self.places[partition][offset]
        if kind is AcknowledgeType.ACCEPT:
            letters = place.value is not None and place.value.startswith(b"rejected")
            assert letters or self.succeeded[member, partition.partition, offset], place
        elif kind is AcknowledgeType.RELEASE:
            assert not self.running[member, partition.partition, offset], place
        answer = super().acknowledge(member, partition, offset, kind, now)
        if kind is AcknowledgeType.ACCEPT and answer[0] is Acknowledged.DONE:
            self.accepted[member] += 1
        return answer


class Member:
    """A consumer, and a handler whose behaviour is in the value of a record."""

    def __init__(self, group: Checked, broker: InMemoryBroker, **options: Any) -> None:
        self.group = group
        self.client = FakeShareClient(group, delay=0.002)
        self.successes = self.late = 0
        self.consumer: ShareConsumer[Any, Any] = ShareConsumer(
            "t",
            group_id="g",
            client=self.client,
            producer=InMemoryProducer(broker, delivery_timeout=1),
            dead_letter="dead",
            max_deliveries=10**6,
            on_late=self._late,
            **options,
        )

    def _late(self, record: Record) -> None:
        self.late += 1

    async def handle(self, record: Record) -> Outgoing | None:
        place = self.client, record.partition, record.offset
        self.group.running[place] += 1
        try:
            return await self._handle(record)
        finally:
            self.group.running[place] -= 1

    async def _handle(self, record: Record) -> Outgoing | None:
        what = (record.value or b"").split(b" ")[0].decode()
        match what:
            case "slow":
                await asyncio.sleep(0.03)
            case "failing" if record.attempt == 1 and record.delivery_count < 4:
                await asyncio.sleep(0.001)
                raise ValueError
            case "rejected":
                raise Reject("no")
            case "long" if record.delivery_count < 3:
                await asyncio.sleep(self.group.lock_seconds * 1.5)
            case "hanging" if record.delivery_count < 2:
                await asyncio.sleep(300)
        self.successes += 1
        self.group.succeeded[self.client, record.partition, record.offset] += 1
        return Outgoing("out", record.value) if what == "output" else None

    def not_begun(self) -> list[Place]:
        """What is locked for this member, does not run, and is not being acknowledged."""
        running = self.group.running
        sent = {ended.args[0].offset for ended, _ in self.client._open.values() if isinstance(ended, partial)}
        return [
            one
            for some in self.group.places.values()
            for one in some
            if one.member is self.client
            and one.offset not in sent
            and not running[self.client, one.partition.partition, one.offset]
        ]

    def check(self) -> None:
        """After it has left."""
        share = self.consumer.stats().share if self.consumer._engine is not None else None
        assert not [one for some in self.group.places.values() for one in some if one.member is self.client]
        assert not self.client._open
        if share is None:
            return
        stats = self.consumer.stats()
        assert stats.admitted == stats.buffered + stats.parked + stats.in_flight + stats.producing + stats.ended + (
            stats.dropped
        )
        assert (share.locked, share.unanswered) == (0, 0)
        assert share.late == self.late
        # A handler that has succeeded while the run had dropped its record is not counted.
        # What was answered after the end of its lock is accepted and late.
        ended = stats.succeeded + stats.dead_lettered
        assert share.accepted + share.unknown <= ended <= share.accepted + share.unknown + share.late
        assert share.accepted <= self.group.accepted[self.client]


def world(**options: Any) -> tuple[Checked, InMemoryBroker]:
    group, broker = Checked(lock_seconds=20.0, limit=10**6, **options), InMemoryBroker()
    for topic in ("out", "dead"):
        broker.create_topic(topic, 1)
    return group, broker


KINDS = ["quick", "slow", "failing", "rejected", "output", "quick", "slow", "output"]


def stop(member: Member, run: asyncio.Task[None]) -> None:
    member.consumer.stop()


def hurry(member: Member, run: asyncio.Task[None]) -> None:
    member.consumer.stop(drain=False)


def cancel(member: Member, run: asyncio.Task[None]) -> None:
    run.cancel()


def fail(member: Member, run: asyncio.Task[None]) -> None:
    member.client.fail_fetch = ClientError("refused")
    member.client.has_news.set()


def fall_silent(member: Member, run: asyncio.Task[None]) -> None:
    member.client.away = True
    member.consumer.stop()


def pause(member: Member, run: asyncio.Task[None]) -> None:
    member.consumer.pause()
    member.consumer.resume()
    member.consumer.pause(P)
    member.consumer.stop()


def lose(member: Member, run: asyncio.Task[None]) -> None:
    """All locks end at the broker, whatever the member knows."""
    member.group.expire(1e9)
    member.consumer.stop()


ENDS: list[Callable[[Member, asyncio.Task[None]], None]] = [stop, hurry, cancel, fail, fall_silent, pause, lose]


WELL = (stop, hurry, cancel, pause)
"""Ends while the broker answers and locks are held."""
SOON = 0.02
"""Seconds in which the broker has what a member sends, and its answer has come."""


def unfinished(member: Member) -> int:
    """Records whose outputs or dead letters are sent."""
    return member.consumer.stats().producing


async def one_moment(end: Callable[[Member, asyncio.Task[None]], None], moment: int) -> None:
    """A member that ends after so many turns of the event loop; another one does the rest."""
    group, broker = world()
    group.produce([b"%s %d" % (kind.encode(), number) for number, kind in enumerate(KINDS)])
    member = Member(group, broker, max_concurrency=4, retry=RetryPolicy(first_delay=0.01, jitter=0), drain_timeout=0.02)
    async with member.consumer:
        run = asyncio.create_task(member.consumer.run(member.handle))
        await turns(moment)
        began = asyncio.get_running_loop().time()
        end(member, run)
        if end in WELL:
            # What was on its way is released a second later.
            await asyncio.sleep(ON_ITS_WAY + SOON)
            # A hurried stop releases what it has cancelled when all of that has ended.
            assert run.done() or end is hurry or len(member.not_begun()) <= unfinished(member)
            group.produce([b"quick new"])
        await asyncio.wait([run])
        if end in WELL:
            assert end is cancel or not member.client._open, "it has not waited for the answers"
            assert member.late == 0
            assert group.places[P][-1].count == 0, "it has acquired something after its end"
        if not run.cancelled():
            assert isinstance(run.exception(), ClientError | None)
    assert asyncio.get_running_loop().time() - began < 12
    member.check()
    rest = Member(group, broker, until="end")
    async with rest.consumer:
        await rest.consumer.run(rest.handle)
    rest.check()
    assert set(group.states()) == {"accepted"}


@pytest.mark.parametrize("end", ENDS, ids=[end.__name__ for end in ENDS])
def test_an_end_at_any_moment(end: Callable[[Member, asyncio.Task[None]], None]) -> None:
    """Nothing stays locked, nothing is lost, and no success is forgotten."""
    for moment in range(1, MOMENTS):
        loop = VirtualLoop()
        with one_source_of_chance(moment, loop.time, PACE), asyncio.Runner(loop_factory=lambda: loop) as runner:  # noqa: B023
            runner.run(one_moment(end, moment))


async def turns(count: int) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    await loop.turns(count)


async def one_pause(moment: int, *, is_of_partition: bool) -> None:
    """A member that is paused after so many turns of the event loop, and goes on."""
    group, broker = world()
    kinds = [*KINDS, "long"]
    group.produce([b"%s %d" % (kind.encode(), number) for number, kind in enumerate(kinds)])
    member = Member(group, broker, max_concurrency=4, retry=RetryPolicy(first_delay=0.01, jitter=0))
    consumer = member.consumer
    async with consumer:
        run = asyncio.create_task(consumer.run(member.handle))
        await turns(moment)
        consumer.pause(*[P] * is_of_partition)
        await asyncio.sleep(0.1)
        group.produce([b"quick new"])
        await asyncio.sleep(5)
        assert not member.not_begun()
        assert group.places[P][-1].count == 0, "it has acquired something while it was paused"
        consumer.resume(*[P] * is_of_partition)
        await until(lambda: set(group.states()) == {"accepted"}, 300)
        consumer.stop()
        await run
    member.check()


@pytest.mark.parametrize("is_of_partition", [False, True], ids=["everything", "a partition"])
def test_a_pause_at_any_moment(is_of_partition: bool) -> None:
    """What was not begun is released soon, and nothing is acquired."""
    for moment in range(1, MOMENTS):
        loop = VirtualLoop()
        with one_source_of_chance(moment, loop.time, PACE), asyncio.Runner(loop_factory=lambda: loop) as runner:  # noqa: B023
            runner.run(one_pause(moment, is_of_partition=is_of_partition))


class Course:
    """A group with several members, which come and go, and whose brokers have faults."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.group, self.broker = world(may_renew=seed % 4 != 3)
        self.group.produce([])
        self.group.produce([], partition=1)
        self.members: list[Member] = []
        self.is_calm = False

    async def lives(self) -> None:
        """One member after the other, each with an end of another kind."""
        while True:
            chance = self.chance
            member = Member(
                self.group,
                self.broker,
                max_concurrency=chance.choice([1, 5, 20]),
                retry=RetryPolicy(first_delay=chance.choice([0.1, 30]), max_attempts=3),
                drain_timeout=chance.choice([0, 1, 40]),
            )
            self.members.append(member)
            async with member.consumer:
                run = asyncio.create_task(member.consumer.run(member.handle))
                faults = asyncio.create_task(self.faults(member))
                try:
                    await asyncio.sleep(3600 if self.is_calm else chance.random() * 100)
                    chance.choice([stop, hurry, cancel, fall_silent, pause, lose])(member, run)
                    await asyncio.wait([run])
                finally:
                    faults.cancel()
                    member.client.away = False
                    run.cancel()
                    await asyncio.wait([run, faults])
            member.check()

    async def faults(self, member: Member) -> None:
        """Of the brokers as this member sees them, and of what its user does."""
        chance, client = self.chance, member.client
        while True:
            await asyncio.sleep(chance.random() * 10)
            if self.is_calm:
                client.fault, client.lose_answer = lambda kind, offset: None, lambda kind, offset: False
                member.consumer.resume()
                member.consumer.resume(P)
                return
            match chance.randrange(6):
                case 0:
                    client.away = True
                    await asyncio.sleep(chance.random() * 30)
                    client.away = False
                    client.has_news.set()
                case 1:
                    client.break_down(chance)
                case 2:
                    member.consumer.pause()
                    await asyncio.sleep(chance.random() * 30)
                    member.consumer.resume()
                case 3:
                    member.consumer.pause(P)
                    await asyncio.sleep(chance.random() * 30)
                    member.consumer.resume(P)
                case 4:
                    member.consumer.max_concurrency = chance.choice([1, 10, 50])
                case _:
                    for place in self.group.places[P]:
                        if place.member is client and chance.random() < 0.3:
                            place.ends = 0.0  # the broker has restarted, and the locks are gone

    async def run(self) -> None:
        """All of it; then quiet, until everything is done."""
        kinds = [*KINDS, "long", "hanging"]
        tasks = [asyncio.create_task(self.lives()) for _ in range(3)]
        for number in range(RECORDS):
            value = b"%s %d" % (self.chance.choice(kinds).encode(), number)
            self.group.produce([value], partition=number % 2)
            await asyncio.sleep(self.chance.random() * 2)
        self.is_calm = True

        def is_over() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return {*self.group.states(0), *self.group.states(1)} == {"accepted"}

        await until(is_over, 2_000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(COURSES))
def test_any_course_loses_nothing(seed: int) -> None:
    """Each record is handled and accepted, whatever members and brokers do."""
    loop = VirtualLoop()
    with one_source_of_chance(seed, loop.time, PACE), asyncio.Runner(loop_factory=lambda: loop) as runner:
        course = Course(seed)
        runner.run(course.run())
    for member in course.members:
        member.check()
