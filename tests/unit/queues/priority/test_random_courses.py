"""Random courses: members that come, stop and die, groups that expire, failures, pauses, slow coordinators."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from aioparallel import Ordering, Record, RetryLater
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, Request
from tests.support.waiting import until
from tests.unit.queues.priority.conftest import PRIORITIES, clients, consumer

KEYS = 6


class Course:
    """One broker, its members, and what they have done."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.broker = InMemoryBroker()
        for priority in range(PRIORITIES):
            self.broker.create_topic(f"jobs-{priority}", rng.choice([1, 2, 4]))
        self.broker.create_topic("dead", 1)
        self.ordering = rng.choice([Ordering.KEY, Ordering.KEY, Ordering.PARTITION, Ordering.UNORDERED])
        self.cooperative = rng.random() < 0.5
        self.done: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        self.wrong: list[str] = []
        self._lanes: defaultdict[object, set[int]] = defaultdict(set)
        self.members: list[Member] = [Member(self) for _ in range(rng.choice([1, 2, 3]))]

    async def step(self) -> None:
        """Something happens."""
        await asyncio.sleep(self.rng.random() * 0.2)
        happens = (self._produce, self._produce, self._produce, self._expire, self._come, self._stop, self._die)
        await self.rng.choice((*happens, self._pause, self._slow))()
        self.check()

    async def _produce(self) -> None:
        priority = self.rng.randrange(PRIORITIES)
        partition = self.rng.choice(self.partitions(priority)).partition
        for _ in range(self.rng.randint(1, 150)):
            key = b"%d" % self.rng.randrange(KEYS)
            place, offset = self.broker.append(f"jobs-{priority}", b"", key=key, partition=partition)
            for lane in (place, (place, key)):
                self._lanes[lane].add(offset)

    async def _expire(self) -> None:
        group = f"g-{self.rng.randrange(PRIORITIES)}"
        if members := sorted(self.broker.group(group).members):
            self.broker.expire_session(group, self.rng.choice(members), asyncio.get_running_loop().time())

    async def _come(self) -> None:
        if len(self.members) < 4:
            self.members.append(Member(self))

    async def _stop(self) -> None:
        if len(self.members) > 1:
            await self._left().stop(drain=self.rng.random() < 0.5)

    async def _die(self) -> None:
        if len(self.members) > 1:
            self._left().die()

    async def _pause(self) -> None:
        one = self.rng.choice(self.members).consumer
        one.pause()
        asyncio.get_running_loop().call_later(0.2, one.resume)

    async def _slow(self) -> None:
        self.broker.faults.latency(self.rng.choice([Request.JOIN, Request.COMMIT, Request.OFFSET_FETCH]), 0, 0.2)

    def _left(self) -> Member:
        return self.members.pop(self.rng.randrange(len(self.members)))

    def partitions(self, priority: int) -> list[TopicPartition]:
        """Of this priority."""
        return sorted(self.broker.partitions_of([f"jobs-{priority}"]))

    def check(self) -> None:
        """Each group has committed of its own priority, and nothing that was not done (I2)."""
        assert not self.wrong
        for priority in range(PRIORITIES):
            for partition, committed in self.broker.group(f"g-{priority}").offsets.items():
                assert partition.topic == f"jobs-{priority}"
                assert self.done[partition] >= set(range(committed.offset))

    def lane(self, record: Record) -> set[int]:
        """Offsets of its key, or of its partition."""
        place = record.topic_partition
        return self._lanes[place if self.ordering is Ordering.PARTITION else (place, record.key)]

    def is_through(self) -> bool:
        """Whether all is done, and committed by the group of its priority."""
        for priority in range(PRIORITIES):
            offsets = self.broker.group(f"g-{priority}").offsets
            for partition in self.partitions(priority):
                log = self.broker.log(partition)
                assert log is not None
                if log.end_offset and (partition not in offsets or offsets[partition].offset != log.end_offset):
                    return False
        return True


class Member:
    """A consumer of all priorities, with options of its own, that fails and dawdles."""

    def __init__(self, course: Course) -> None:
        rng = course.rng
        self._course = course
        self._running: set[object] = set()
        self._is_alive = True
        self._clients = clients(course.broker, session_timeout=0.5, cooperative=course.cooperative)
        options: dict[str, Any] = {
            "max_concurrency": rng.choice([1, 3, 20]),
            "max_poll_records": rng.choice([7, 50]),
            "max_buffered": rng.choice([100, 200]),
            "when_map_is_full": rng.choice(["continue", "block"]),
            "ageing": rng.choice([0.05, 10.0]),
            "drain_timeout": rng.choice([0.1, 1]),
        }
        self.consumer = consumer(course.broker, clients=self._clients, ordering=course.ordering, **options)
        self._task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        try:
            async with self.consumer as one:
                await one.run(self._handle)
        except Exception:
            if self._is_alive:
                raise

    async def _handle(self, record: Record) -> None:
        rng, place = self._course.rng, (record.topic_partition, record.key)
        if self._is_alive and self._course.ordering is not Ordering.UNORDERED:
            if place in self._running:
                self._course.wrong.append(f"{record.place} beside another of its key (I3)")
            owed = self._course.lane(record) - self._course.done[record.topic_partition]
            if any(offset < record.offset for offset in owed):
                self._course.wrong.append(f"{record.place} before others of its key (I3)")
        self._running.add(place)
        try:
            slow = rng.random()
            if slow < 0.3:
                await asyncio.sleep(0.4 if slow < 0.02 else rng.random() * 0.05)
            fails = rng.random()
            if fails < 0.03:
                raise ValueError("again")
            if fails < 0.04:
                raise RetryLater(0.05)
        finally:
            self._running.discard(place)
        self._course.done[record.topic_partition].add(record.offset)

    async def stop(self, *, drain: bool = True) -> None:
        """It goes by itself."""
        self.consumer.stop(drain=drain)
        async with asyncio.timeout(60):
            await self._task

    def die(self) -> None:
        """As a killed process: its groups hear nothing of it, and nothing more of it counts."""
        self._is_alive = False
        for client in self._clients:
            client.crash()


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_is_lost(seed: int) -> None:
    """All records run; those of a key in turn within a priority; each group commits its own, and nothing undone."""
    course = Course(seed)
    for _ in range(20):
        await course.step()
    course.broker.faults.heal()
    await until(course.is_through, what=lambda: str([one.consumer.stats() for one in course.members]))
    course.check()
    for member in course.members:
        await member.stop()
