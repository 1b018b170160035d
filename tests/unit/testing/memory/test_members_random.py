"""Members of one group under random faults, in virtual time: what must hold at every call of a listener."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import Literal

import pytest

from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryClient, Request
from tests.support.memory.listener import Listener

EVERY = frozenset(TopicPartition("t", number) for number in range(6))
FAULTS = (
    Fault(is_request_lost=True),
    Fault(is_response_lost=True),
    Fault(request_delay=0.5),
    Fault(request_delay=7.0),
    Fault(response_delay=4.0),
    Fault(error=ErrorCode.NOT_COORDINATOR),
)
REQUESTS = (
    Request.JOIN,
    Request.SYNC,
    Request.HEARTBEAT,
    Request.CONSUMER_HEARTBEAT,
    Request.LEAVE,
    Request.COMMIT,
)
Protocol = Literal["eager", "cooperative", "consumer"]


class CheckedListener(Listener):
    """Fails when it hears of two things at a time, of what it holds already, or of what it does not hold."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__()
        self.is_incremental = protocol == "consumer"
        self.is_revoking = False
        self.mistakes: list[str] = []

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        self.check(not self.is_revoking or (self.is_incremental and not partitions), "assigned during revoked")
        self.check(self.held.isdisjoint(partitions), "assigned twice")
        # A member of the new protocol keeps its epoch while it gets more, and if only it believed that all was lost.
        least = self.generation.id + (not self.is_incremental)
        self.check(generation.id >= least, "an older generation")
        super().assigned(partitions, generation)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.check(not self.is_revoking, "revoked during revoked")
        self.check(self.held >= set(partitions), "revoked what is not held")
        self.is_revoking = True
        try:
            await super().revoked(partitions)
            await asyncio.sleep(0.2)
        finally:
            self.is_revoking = False

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.check(not self.is_revoking or self.is_incremental, "lost during revoked")
        self.check(self.held >= set(partitions), "lost what is not held")
        super().lost(partitions)

    def check(self, holds: bool, mistake: str) -> None:
        """Raising in here would only be told by fetch()."""
        if not holds:
            self.mistakes.append(mistake)


class Play:
    """Members come, commit, leave and crash; the director draws from one seeded source."""

    def __init__(self, seed: int, protocol: Protocol) -> None:
        self.rng = random.Random(seed)
        self.protocol: Protocol = protocol
        self.broker = InMemoryBroker(rng=random.Random(seed + 1))
        self.broker.create_topic("t", len(EVERY))
        self.members: list[tuple[InMemoryClient, CheckedListener]] = []
        self.listeners: list[CheckedListener] = []
        self.sent = 0
        self.committing: set[asyncio.Task[None]] = set()

    async def enter(self) -> None:
        """One more member."""
        client, listener = self.client(), CheckedListener(self.protocol)
        await client.start(5)
        client.subscribe(["t"], listener)
        self.members.append((client, listener))
        self.listeners.append(listener)

    def client(self) -> InMemoryClient:
        return InMemoryClient(
            self.broker,
            "g",
            group_protocol="consumer" if self.protocol == "consumer" else "classic",
            cooperative=self.protocol == "cooperative",
            session_timeout=6,
            heartbeat_interval=1,
            rebalance_timeout=8,
        )

    async def act(self) -> None:
        """Something happens."""
        what = self.rng.random()
        if len(self.members) < 2 or (what < 0.1 and len(self.members) < 4):
            await self.enter()
            return
        client, listener = member = self.rng.choice(self.members)
        if what < 0.2:
            self.members.remove(member)
            await client.stop(3)
        elif what < 0.3:
            self.members.remove(member)
            client.crash()
        elif listener.held:
            task = asyncio.ensure_future(self.commit(client, listener))
            self.committing.add(task)
            task.add_done_callback(self.committing.discard)
        await asyncio.sleep(self.rng.uniform(0, 2))
        self.check_owners()

    async def commit(self, client: InMemoryClient, listener: CheckedListener) -> None:
        """Commit one partition; only a member of the current generation may be told that it was taken."""
        self.sent += 1
        generation = listener.generation
        asked = {self.rng.choice(sorted(listener.held)): Committed(self.sent, "")}
        [fault] = (await client.commit(asked, generation, 3)).values()
        known = generation.member_id in self.broker.member_ids("g")
        if fault is CommitFault.FENCED and self.protocol == "consumer":
            assert listener.generation != generation or not listener.held or not known
        elif fault is CommitFault.FENCED:
            assert not known or self.broker.group("g").generation > generation.id

    def check_owners(self) -> None:
        """Under the group's current generation nobody holds what another one holds."""
        group = self.broker.group("g")
        current = [
            partition
            for _, listener in self.members
            if listener.generation.id == group.generation and listener.generation.member_id in group.members
            for partition in listener.held
        ]
        assert len(current) == len(set(current))
        assert all(not listener.mistakes for listener in self.listeners)

    async def settle(self) -> None:
        """Once nothing goes wrong any more, the members that are there share everything."""
        self.broker.faults.heal()
        await asyncio.sleep(60)
        held = [partition for _, listener in self.members for partition in listener.held]
        assert sorted(held) == sorted(EVERY)
        assert len(self.broker.member_ids("g")) == len(self.members)
        self.check_owners()
        for client, _ in self.members:
            await client.stop(3)
        if self.committing:
            await asyncio.wait(self.committing)


@pytest.mark.parametrize("protocol", ["eager", "cooperative", "consumer"])
@pytest.mark.parametrize("seed", range(12))
async def test_members_under_faults(seed: int, protocol: Protocol) -> None:
    """Whatever is late, lost or refused: no partition has two owners in the group's generation, commits are
    FENCED only where another generation has begun, listeners hear one consistent story, and in the end all is
    shared again."""
    play = Play(seed, protocol)
    for request in REQUESTS:
        for fault in FAULTS:
            play.broker.faults.sometimes(request, 0.02, fault)
    for _ in range(150):
        await play.act()
    await play.settle()
    assert play.sent > 20


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
async def test_a_play_repeats(protocol: Protocol) -> None:
    """The same seed gives the same story, call by call."""

    async def story(seed: int) -> list[list[tuple[str, frozenset[TopicPartition]]]]:
        play = Play(seed, protocol)
        for request in REQUESTS:
            play.broker.faults.sometimes(request, 0.05, Fault(is_response_lost=True))
            play.broker.faults.latency(request, 0.0, 0.3)
        for _ in range(60):
            await play.act()
        await play.settle()
        return [listener.calls for listener in play.listeners]

    first = await story(3)
    assert first == await story(3)
    assert first != await story(4)
