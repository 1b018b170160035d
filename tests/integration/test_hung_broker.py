"""One of three real brokers hangs (SIGSTOP): whoever has nothing to do with it goes on, the rest moves away."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol, cast

import pytest
import pytest_asyncio

from aioparallel.clients import AiokafkaClient, AiokafkaProducer
from aioparallel.clients.aiokafka.admin import create_topic
from aioparallel.group.client import Committed, Generation
from aioparallel.records.errors import InstanceFenced, ProduceFailed
from aioparallel.records.record import Outgoing, Produced, Record, TopicPartition
from aioparallel.testing import LocalKafka
from tests.support.kafka.brokers import coordinator, restore
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

Result = Sequence[Produced] | ProduceFailed


class Rejoining(Protocol):
    """What aiokafka's coordinator does when the metadata tells of new partitions."""

    def request_rejoin(self) -> None: ...


@pytest_asyncio.fixture
async def cluster(kafka_cluster: LocalKafka) -> AsyncIterator[LocalKafka]:
    """Three brokers that all run again at the end."""
    yield kafka_cluster
    await asyncio.to_thread(restore, kafka_cluster)
    await kafka_cluster.create_topic(unique(), 3)  # all of them are in sync again


@contextlib.asynccontextmanager
async def producing(cluster: LocalKafka, delivery_timeout: float) -> AsyncIterator[AiokafkaProducer]:
    producer = AiokafkaProducer(
        cluster.bootstrap_servers, delivery_timeout=delivery_timeout, consumer_options={}, producer_options={}
    )
    try:
        yield producer
    finally:
        await producer.stop(0.5)


def unique() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def send(producer: AiokafkaProducer, topic: str, partition: int, value: bytes = b"value") -> asyncio.Future[Result]:
    ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    producer.send([Outgoing(topic, value, partition=partition)], ended.set_result)
    return ended


async def single_copies(cluster: LocalKafka, partitions: int) -> tuple[str, dict[int, int]]:
    """A topic whose partitions stand on one broker each, so that no leader waits for the one that hangs."""
    topic = unique()
    await create_topic(cluster.bootstrap_servers, topic, partitions, {"min.insync.replicas": "1"}, 120)
    leaders: dict[int, int] = {}

    async def led() -> bool:
        leaders.update(await cluster.leaders(topic))
        return len(leaders) == partitions and min(leaders.values()) >= 0

    await until(led, what=lambda: f"leaders of {topic}: {leaders}")
    return topic, leaders


async def test_outputs_to_the_others_are_not_held_up(cluster: LocalKafka) -> None:
    """While outputs to the hung broker run out of time, one after the other, each output to the others is acknowledged
    within a second. The producer is not asked for an id, nor anybody else for what only a broker that answers has."""
    topic, leaders = await single_copies(cluster, 6)
    hung = leaders[0]
    async with producing(cluster, 1.5) as producer:
        for partition in leaders:
            assert not isinstance(await send(producer, topic, partition), ProduceFailed)
        await asyncio.to_thread(cluster.pause, hung)
        longest = 0.0
        doomed = [send(producer, topic, partition) for partition in leaders if leaders[partition] == hung]
        while sum(one.done() for one in doomed) < 60:
            doomed += [send(producer, topic, partition) for partition in leaders if leaders[partition] == hung]
            for partition in (partition for partition in leaders if leaders[partition] != hung):
                began = time.monotonic()
                assert not isinstance(await send(producer, topic, partition), ProduceFailed)
                longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.1)
        assert longest < 1.0
        assert all([isinstance(await ended, ProduceFailed) for ended in doomed])
        await asyncio.to_thread(cluster.resume, hung)


async def test_outputs_move_to_the_new_leader(cluster: LocalKafka, caplog: pytest.LogCaptureFixture) -> None:
    """A leader that hangs is left once the others have elected another one: its outputs are acknowledged within
    10 seconds, not after the 30 of a request. The log says which broker it was, and its address, though the metadata
    does not know it any more."""
    topic = unique()
    await cluster.create_topic(topic, 3)
    leaders = await cluster.leaders(topic)
    async with producing(cluster, 60) as producer:
        for partition in leaders:
            await send(producer, topic, partition)
        await asyncio.to_thread(cluster.pause, leaders[0])
        began = time.monotonic()
        results = await asyncio.wait_for(
            asyncio.gather(*(send(producer, topic, partition, b"%d" % partition) for partition in leaders)), 20
        )
        took = time.monotonic() - began
        assert not [result for result in results if isinstance(result, ProduceFailed)]
        assert took < 10.0, f"{took:.1f} s"
    cuts = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "cut"]
    assert cuts
    assert all(f"broker {leaders[0]} ({cluster.address(leaders[0])})" in cut for cut in cuts), cuts


class Listener:
    """Whoever listens to a member, and takes what it is assigned."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.generation: Generation | None = None
        self.held: set[TopicPartition] = set()

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        self.heard.append("assigned")
        self.generation = generation
        self.held = set(partitions)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append("revoked")

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append("lost")

    def fenced(self, error: InstanceFenced) -> None:
        self.heard.append("fenced")


async def test_a_member_finds_the_new_coordinator(cluster: LocalKafka) -> None:
    """The group's coordinator hangs: metadata is answered by the others within 3 seconds, commits go to the new
    coordinator within 15, and the member keeps its partitions."""
    topic = unique()
    await cluster.create_topic(topic, 3)
    client = AiokafkaClient(cluster.bootstrap_servers, unique(), session_timeout=10.0, heartbeat_interval=1.0)
    listener = Listener()
    await client.start(20.0)
    try:
        client.subscribe([topic], listener)
        await until(lambda: listener.generation, what="an assignment")
        assert listener.generation is not None
        running = client._running
        assert running is not None
        coordinator = running.group.coordinator.coordinator_id
        assert coordinator is not None
        await asyncio.to_thread(cluster.pause, coordinator)
        began = time.monotonic()
        assert len(await client.partitions([topic], 10.0)) == 3
        assert time.monotonic() - began < 3.0
        offsets = {partition: Committed(0, "") for partition in listener.held}
        async with asyncio.timeout(15):
            while any((await client.commit(offsets, listener.generation, 1.0)).values()):
                await asyncio.sleep(0.2)
        assert running.group.coordinator.coordinator_id != coordinator
        await asyncio.sleep(10.0 - min(10.0, time.monotonic() - began))
        assert listener.heard == ["assigned"]
    finally:
        await client.stop(3.0)


async def test_joining_at_a_hung_coordinator(cluster: LocalKafka) -> None:
    """A member that comes while its group's coordinator hangs is given its partitions within 20 seconds: it connects no
    longer to that broker than the cluster counts it in."""
    topic = unique()
    await cluster.create_topic(topic, 3)
    first = AiokafkaClient(cluster.bootstrap_servers, unique())  # makes the coordinators' topic
    await first.start(20.0)
    await first.committed([TopicPartition(topic, 0)], 20.0)
    await first.stop(3.0)
    group = unique()
    hung = await coordinator(cluster, group)
    client, listener = AiokafkaClient(cluster.bootstrap_servers, group), Listener()
    await client.start(20.0)
    try:
        await asyncio.to_thread(cluster.pause, hung)
        began = time.monotonic()
        client.subscribe([topic], listener)
        await until(lambda: listener.generation, what="an assignment")
        took = time.monotonic() - began
        assert took < 20.0, f"{took:.1f} s"
    finally:
        await client.stop(3.0)


async def test_joining_again_at_a_hung_coordinator(cluster: LocalKafka) -> None:
    """A member has asked to join again, and the coordinator hangs before it answers: within 20 seconds the member has
    its partitions from another coordinator, and its session was not lost."""
    topic, group = unique(), unique()
    await cluster.create_topic(topic, 3)
    client, listener = AiokafkaClient(cluster.bootstrap_servers, group), Listener()
    await client.start(20.0)
    try:
        client.subscribe([topic], listener)
        await until(lambda: "assigned" in listener.heard)
        assert client._running is not None
        await asyncio.to_thread(cluster.pause, await coordinator(cluster, group))
        began = time.monotonic()
        cast("Rejoining", client._running.group.coordinator).request_rejoin()
        await until(lambda: listener.heard.count("assigned") == 2)
        took = time.monotonic() - began
        assert took < 20.0, f"{took:.1f} s"
        assert listener.heard == ["assigned", "revoked", "assigned"]
    finally:
        await client.stop(3.0)


@pytest.mark.slow
async def test_a_partition_without_a_leader_holds_up_no_other(cluster: LocalKafka) -> None:
    """A new group starts while the only broker of some partitions is dead: the others are read, ``health()`` names
    those, and they are read as soon as it is back."""
    topic, leaders = await single_copies(cluster, 6)
    fill(cluster.bootstrap_servers, topic, [Message(None, b"v", partition=number) for number in leaders] * 10)
    dead = {number for number, leader in leaders.items() if leader == leaders[0]}
    await asyncio.to_thread(cluster.kill, leaders[0])

    async def fenced() -> bool:
        return leaders[0] not in (await cluster.leaders(topic)).values()

    await until(fenced)
    seen: set[tuple[int, int]] = set()

    async def handle(record: Record) -> None:
        seen.add((record.partition, record.offset))

    consumer = consumer_of(cluster.bootstrap_servers, topic)
    async with consuming(consumer, handle):
        await until(lambda: len(seen) == 10 * (6 - len(dead)), SLACK, lambda: str(consumer.health()))
        assert dead.isdisjoint(number for number, _ in seen)
        assert "no_leader" in {str(problem.kind) for problem in consumer.health().problems}
        await asyncio.to_thread(cluster.restart, leaders[0])
        await until(lambda: len(seen) == 60, what=lambda: str(consumer.health()))
