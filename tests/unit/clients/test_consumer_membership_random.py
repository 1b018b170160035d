"""Members of the new protocol at the in-memory coordinator, with answers that are lost or late, names that are unknown,
revocations that take long, members that come and go, and topics that grow or are made anew. In virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Collection
from typing import Any

import aiokafka.errors as kafka
import pytest

from aioparallel.clients.aiokafka.consumer_membership import ConsumerMembership
from aioparallel.clients.aiokafka.group_member import GroupMember, Subscribed
from aioparallel.clients.messages.consumer_groups import (
    JOIN,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aioparallel.group.client import Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker
from aioparallel.testing.memory.consumer_groups import ConsumerGroup
from aioparallel.testing.memory.refused import Refused
from tests.support.virtual_time import VirtualLoop

SESSION, REBALANCE, INTERVAL = 8.0, 6.0, 1.0
TOPICS = ("t", "u")
TEMPORARY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.FENCED_MEMBER_EPOCH,
)


class World:
    """A broker, the network to it, and the members."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = InMemoryBroker()
        self.members: list[Member] = []
        self.is_calm = False
        self.down_until = 0.0
        self._ids = itertools.count(1)
        self._remove = self.broker.consumer_groups._remove
        self.broker.consumer_groups._remove = self._removed  # type: ignore[method-assign]
        for topic in TOPICS:
            self.broker.create_topic(topic, self.random.randint(1, 5))

    def happens(self, chance: float) -> bool:
        """Never once it is calm."""
        return not self.is_calm and self.random.random() < chance

    def _removed(self, group: ConsumerGroup, member_id: str) -> None:
        for member in self.members:
            member.is_gone = member.is_gone or (member.id == member_id and member_id in group.members)
        self._remove(group, member_id)

    async def delay(self, most: float = 0.05) -> None:
        await asyncio.sleep(self.random.uniform(0.001, most))

    def live(self) -> list[Member]:
        return [member for member in self.members if not member.has_ended]

    def has(self, member: Member) -> bool:
        """Whether the coordinator has it."""
        group = self.broker.consumer_groups.group("g")
        return group is not None and member.id in group.members

    def boot(self, instance_id: str | None = None) -> None:
        self.members.append(Member(self, f"m{next(self._ids)}", instance_id))


class Member:
    """A member with all that is around it: its coordinator, names, positions and listener."""

    def __init__(self, world: World, member_id: str, instance_id: str | None) -> None:
        self.world, self.id, self.instance_id = world, member_id, instance_id
        self.known: dict[bytes, str] = {}
        self.held: dict[TopicPartition, bytes] = {}
        """With the ids of the topics."""
        self.going: frozenset[TopicPartition] = frozenset()
        self.fetched: set[TopicPartition] = set()
        self.generation = Generation(0, member_id)
        self.is_gone = False
        """The coordinator has removed it, and it has partitions from before."""
        self.failures: list[Exception] = []
        self.asked = 0
        self.has_ended = False
        self.core = GroupMember(
            Subscribed("g", TOPICS, instance_id=instance_id, rebalance_timeout=REBALANCE), member_id
        )
        around: Any = self
        self.membership = ConsumerMembership(
            self.core, around, around, self, self, retry_backoff=0.1, on_failure=self.failures.append
        )
        self.membership.start()
        self._commits = asyncio.create_task(self._commit())

    async def stop(self, *, crashes: bool) -> None:
        self._commits.cancel()
        self.membership.close()
        self.has_ended = True
        if not crashes:
            with contextlib.suppress(kafka.KafkaError, TimeoutError):
                async with asyncio.timeout(1):
                    await self.membership.leave()

    # -- the coordinator

    async def ask(self, api: object, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        world = self.world
        self.asked += 1
        await world.delay()
        if not world.is_calm and asyncio.get_running_loop().time() < world.down_until:
            raise kafka.NodeNotReadyError("down")
        if world.happens(0.04):
            return ConsumerGroupHeartbeatResponse(error_code=world.random.choice(TEMPORARY))
        is_lost = world.happens(0.05)
        if not is_lost:
            answer = self._answer(request)
            is_lost = world.happens(0.08)
        await world.delay(3.0 if is_lost or world.happens(0.1) else 0.05)
        if is_lost:
            raise kafka.RequestTimedOutError
        return answer

    def _answer(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        broker, now = self.world.broker, asyncio.get_running_loop().time()
        broker.advance(now)
        self.is_gone = self.is_gone and not (request.member_epoch == JOIN and not self.held)
        try:
            answer = broker.coordinate_consumer("g").heartbeat(request, SESSION, now)
        except Refused as error:
            return ConsumerGroupHeartbeatResponse(error_code=error.code)
        return ConsumerGroupHeartbeatResponse(
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=round(INTERVAL * 1000),
            assignment=answer.assignment,
        )

    def coordinator_dead(self) -> None:
        """Every heartbeat finds it."""

    async def session_timeout(self) -> float:
        return SESSION

    async def _commit(self) -> None:
        """Commit again and again, and tell the membership of what is refused."""
        while True:
            await self.world.delay(1.0)
            if not self.held:
                continue
            generation, code = self.generation, ErrorCode.NONE
            try:
                stale = self.world.broker.consumer_groups.refusals("g", list(self.held), generation)
            except Refused as error:
                code = error.code
            else:
                code = ErrorCode.STALE_MEMBER_EPOCH if stale else ErrorCode.NONE
            await self.world.delay()
            if code is ErrorCode.STALE_MEMBER_EPOCH:
                self.membership.stale(generation)
            elif code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.membership.removed(generation)
            elif self.world.happens(0.02):
                self.membership.doubt(generation)

    # -- names

    async def look_up(self, topic_ids: Collection[bytes]) -> None:
        await self.world.delay(4.0 if self.world.happens(0.6) else 0.02)
        if not self.world.happens(0.2):
            broker = self.world.broker
            self.known |= {one: name for one in topic_ids if (name := broker.topic_with_id(one)) is not None}

    def forget_all_but(self, topic_ids: Collection[bytes]) -> None:
        self.known = {one: name for one, name in self.known.items() if one in topic_ids}

    # -- positions

    def add(self, partitions: Collection[TopicPartition]) -> None:
        assert not self.fetched & set(partitions)
        self.fetched |= set(partitions)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) <= self.fetched

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) <= self.fetched
        self.fetched -= set(partitions)

    # -- the listener

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        assert not self.has_ended
        assert generation.id > 0
        assert not (partitions and self.going)
        assert not self.held.keys() & set(partitions)
        ids = {
            TopicPartition(self.known[place.topic_id], place.partition): place.topic_id
            for place in self.core.owned
            if place.topic_id in self.known
        }
        self.generation = generation
        self.held |= {one: ids[one] for one in partitions}
        for other in self.world.live():
            if other is not self and not (self.is_gone or other.is_gone):
                both = self.held.items() & other.held.items()
                assert not both, f"{both} at {self.id} and {other.id}"

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        assert not self.going
        assert self.held.keys() >= set(partitions)
        self.going = frozenset(partitions)
        try:
            await asyncio.sleep(0.1 if self.world.is_calm else self.world.random.choice([0, 0.01, 0.5, 2, 4, 8]))
        finally:
            for one in partitions:
                del self.held[one]
            self.going = frozenset()

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) == self.held.keys() - self.going
        for one in partitions:
            del self.held[one]
        self.is_gone = bool(self.held)  # what is given away ends later

    def fenced(self, error: InstanceFenced) -> None:
        self.has_ended = True


async def disturb(world: World) -> None:
    """One event."""
    pick, broker = world.random, world.broker
    live, topic = world.live(), pick.choice(TOPICS)
    match pick.choice(["boot", "stop", "crash", "grow", "recreate", "recreate", "down", "evict", "restart"]):
        case "boot" if len(live) < 5:
            world.boot()
        case "stop" if live:
            await pick.choice(live).stop(crashes=False)
        case "crash" if live:
            await pick.choice(live).stop(crashes=True)
        case "grow":
            broker.add_partitions(topic, len(broker.partitions_of({topic})) + 1)
        case "recreate":
            broker.delete_topic(topic)
            await asyncio.sleep(3 * INTERVAL)  # so that the coordinator, which knows names only, sees it go
            broker.create_topic(topic, pick.randint(1, 4))
        case "down":
            world.down_until = asyncio.get_running_loop().time() + pick.choice([0.5, 2, 5, 12])
        case "evict" if live and world.has(gone := pick.choice(live)):
            broker.consumer_groups.expire("g", gone.id)
        case "restart" if static := [one for one in live if one.instance_id]:
            await static[0].stop(crashes=pick.random() < 0.4)
            world.boot(static[0].instance_id)


async def play(seed: int) -> None:
    world = World(seed)
    await asyncio.sleep(100)
    for _ in range(world.random.randint(1, 3)):
        world.boot()
    world.boot("i")
    for _ in range(world.random.randint(3, 12)):
        await asyncio.sleep(world.random.choice([0.01, 0.3, 1, 3, 7]))
        await disturb(world)
    world.is_calm = True
    await asyncio.sleep(40)
    live = world.live()
    before = sum(one.asked for one in live)
    await asyncio.sleep(10)
    assert [one.failures for one in world.members if one.failures] == []
    dead = any(world.broker.topic_with_id(place.topic_id) is None for one in live for place in one.core.target)
    if live and not dead:  # else the in-memory coordinator has missed that a topic is another one
        assert sorted(p for one in live for p in one.held) == sorted(world.broker.partitions_of(TOPICS))
        assert all(one.fetched == one.held.keys() for one in live)
        assert sum(one.asked for one in live) - before <= 30 * len(live)
    for one in live:
        await one.stop(crashes=False)


@pytest.mark.parametrize("seed", range(100, 130))
def test_members_come_to_rest_and_no_partition_has_two_owners(seed: int) -> None:
    """Whatever happens before."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play(seed))
