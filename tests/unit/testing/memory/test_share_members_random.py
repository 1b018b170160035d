"""Members of a share group on the in-memory broker, in trouble of all kinds, with a seed: nothing is lost, and nothing
is accepted twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest

from aioparallel.group.share_client import Acknowledged, AcknowledgeType, Acquired
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import (
    ErrorCode,
    Fault,
    InMemoryBroker,
    InMemoryShareClient,
    Request,
    ShareGroupOptions,
)

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
PARTITIONS = 3
LOCK = 5.0
WHAT = (Request.SHARE_FETCH, Request.SHARE_ACKNOWLEDGE, Request.SHARE_HEARTBEAT, Request.METADATA)


class World:
    """A broker, its members, and what became of each record."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = InMemoryBroker(nodes=2, rng=random.Random(seed))
        self.broker.create_topic("t", PARTITIONS)
        options = ShareGroupOptions(
            auto_offset_reset="earliest", lock_duration=LOCK, delivery_count_limit=10, session_timeout=8.0
        )
        self.broker.configure_share_group("g", options)
        self.produced = 0
        self.done: Counter[tuple[TopicPartition, int]] = Counter()
        self.perhaps: set[tuple[TopicPartition, int]] = set()
        """UNKNOWN, or DONE after the lock had ended, or was lost with its leader: brokers also say so of what another
        member has accepted."""
        self.moves: Counter[TopicPartition] = Counter()
        self.deliveries: Counter[tuple[TopicPartition, int]] = Counter()
        self.open = 0
        self.members: dict[InMemoryShareClient, asyncio.Task[None]] = {}

    async def join(self) -> None:
        client = InMemoryShareClient(self.broker, "g", request_timeout=2.0)
        await client.start(30)
        client.subscribe(["t"], lambda _: None)
        self.members[client] = asyncio.create_task(self.work(client))

    async def work(self, client: InMemoryShareClient) -> None:
        """Fetch, and handle each record by itself."""
        async with asyncio.TaskGroup() as group:
            while True:
                for some in await client.fetch(self.rng.randint(1, 8)):
                    self.check(some)
                    for record, count in zip(some.records, some.delivery_counts, strict=True):
                        lock = some.locked_until
                        group.create_task(self.handle(client, some.partition, record.offset, count, lock))

    def check(self, some: Acquired) -> None:
        state = self.broker.share.partition("g", some.partition)
        assert state is not None
        for record, count in zip(some.records, some.delivery_counts, strict=True):
            assert self.done[some.partition, record.offset] == 0, "it was accepted before"
            self.deliveries[some.partition, record.offset] += 1
            assert count <= 10

    async def handle(
        self, client: InMemoryShareClient, partition: TopicPartition, offset: int, count: int, lock: float
    ) -> None:
        rng, moves = self.rng, self.moves[partition]
        await asyncio.sleep(rng.choice((0, 0.01, 0.3, LOCK / 2, LOCK * 1.2)))
        if rng.random() < 0.3:
            outcome, until = await self.answer(client, partition, offset, RENEW)
            lock = until if outcome is Acknowledged.DONE else lock
            await asyncio.sleep(rng.choice((0, LOCK / 2)))
        kind = ACCEPT if count > 4 or rng.random() < 0.8 else RELEASE
        outcome, _ = await self.answer(client, partition, offset, kind)
        is_late = asyncio.get_running_loop().time() >= lock or self.moves[partition] != moves
        if kind is ACCEPT and outcome is Acknowledged.DONE and not is_late:
            self.done[partition, offset] += 1
        elif kind is ACCEPT and outcome in (Acknowledged.UNKNOWN, Acknowledged.DONE):
            self.perhaps.add((partition, offset))

    async def answer(
        self, client: InMemoryShareClient, partition: TopicPartition, offset: int, kind: AcknowledgeType
    ) -> tuple[Acknowledged, float]:
        """Every acknowledgement is answered once."""
        answered: asyncio.Future[tuple[Acknowledged, float]] = asyncio.get_running_loop().create_future()
        self.open += 1
        answers = 0

        def ended(outcome: Acknowledged, until: float) -> None:
            nonlocal answers
            answers += 1
            assert answers == 1
            self.open -= 1
            if not answered.cancelled():
                answered.set_result((outcome, until))

        client.acknowledge(partition, offset, kind, ended)
        assert not answered.done()
        return await answered

    async def end(self, client: InMemoryShareClient, *, crash: bool) -> None:
        task = self.members.pop(client)
        task.cancel()
        await asyncio.wait([task])
        if crash:
            client.crash()
        else:
            await client.stop(self.rng.choice((0.0, 0.5, 5.0)))

    # -- trouble

    async def disturb(self) -> None:
        rng, broker = self.rng, self.broker
        node = rng.choice((1, 2))
        ways: list[Callable[[], object]] = [
            lambda: broker.faults.script(
                rng.choice(WHAT),
                rng.choice(
                    (
                        Fault(is_response_lost=True),
                        Fault(is_request_lost=True),
                        Fault(request_delay=rng.choice((0.1, 1.0, 3.0))),
                        Fault(response_delay=rng.choice((0.1, 1.0, 3.0))),
                        Fault(error=ErrorCode.COORDINATOR_NOT_AVAILABLE),
                        Fault(error=ErrorCode.REQUEST_TIMED_OUT, is_carried_out=True),
                    )
                ),
            ),
            lambda: self.move(TopicPartition("t", rng.randrange(PARTITIONS)), node),
            lambda: self.evict(node),
            self.expire,
            broker.go_down,
            broker.come_back,
            lambda: broker.hang(node),
            lambda: broker.unhang(node),
            lambda: broker.stop_node(node),
            lambda: broker.start_node(node),
            lambda: setattr(broker, "is_coordinator_available", rng.random() < 0.5),
        ]
        rng.choice(ways)()

    def move(self, partition: TopicPartition, node: int) -> None:
        self.moves[partition] += 1
        self.broker.move_leader(partition, node)

    def evict(self, node: int) -> None:
        for _, member in self.broker.share.sessions("g"):
            self.broker.share.evict(node, "g", member)

    def expire(self) -> None:
        group = self.broker.share_groups.group("g")
        if group is not None and group.members:
            self.broker.expire_session("g", next(iter(group.members)), 0.0)

    def produce(self) -> None:
        count = self.rng.randint(1, 6)
        self.broker.append_batch("t", [b""] * count, partition=self.rng.randrange(PARTITIONS))
        self.produced += count

    def heal(self) -> None:
        broker = self.broker
        broker.faults.heal()
        broker.come_back()
        broker.is_coordinator_available = True
        for node in broker.numbers:
            broker.unhang(node)
            broker.start_node(node)
        for number in range(PARTITIONS):
            broker.notify_log(TopicPartition("t", number))

    def left(self) -> int:
        """Records that have not ended at the broker."""
        left = 0
        for number in range(PARTITIONS):
            partition = TopicPartition("t", number)
            log, state = self.broker.log(partition), self.broker.share.partition("g", partition)
            assert log is not None
            start = 0 if state is None else state.start_offset
            left += log.end_offset - start
        return left


@pytest.mark.parametrize("seed", range(15))
async def test_nothing_is_lost(seed: int) -> None:
    """After all trouble every record ends, and none was accepted twice."""
    world = World(seed)
    for _ in range(world.rng.randint(1, 4)):
        await world.join()
    for _ in range(60):
        world.produce()
        await asyncio.sleep(world.rng.choice((0.0, 0.05, 0.5, 2.0)))
        roll = world.rng.random()
        if roll < 0.5:
            await world.disturb()
        elif roll < 0.56 and len(world.members) > 1:
            await world.end(world.rng.choice(list(world.members)), crash=world.rng.random() < 0.5)
        elif roll < 0.6 and world.broker.is_reachable and world.broker.is_coordinator_available:
            world.broker.faults.heal()
            await world.join()
    world.heal()
    async with asyncio.timeout(600):
        while world.left():
            await asyncio.sleep(0.5)
    assert all(task.done() is False for task in world.members.values()), [t for t in world.members.values() if t.done()]
    for client in list(world.members):
        await world.end(client, crash=False)
    await asyncio.sleep(60)
    assert max(world.done.values()) == 1
    ended = {key for key in world.deliveries if world.done[key] or key in world.perhaps}
    assert len(ended) >= world.produced * 0.9, "the others were delivered ten times"
    assert world.broker.share.sessions("g") == []
