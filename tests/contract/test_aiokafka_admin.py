"""Admin: topics and groups of a real broker, and what the embedded one supports."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioparallel.clients.aiokafka.admin import Admin, create_topic
from aioparallel.group.client import Committed
from aioparallel.records.errors import (
    BrokerUnreachable,
    ClientError,
    ConfigurationError,
    ConsumerStateError,
    TopicNotFound,
)
from aioparallel.records.record import TopicPartition
from aioparallel.testing import EmbeddedBroker, LocalKafka
from tests.support.clusters.aiokafka_cluster import serving
from tests.support.clusters.aiokafka_member import Member, unique
from tests.support.clusters.cluster import Produced
from tests.support.waiting import SLACK

real = pytest.mark.real


@real
async def test_topics_come_and_go(local_kafka: LocalKafka) -> None:
    """A topic is created with leaders and configs, listed with its partitions, refused a second time, and deleted. A
    missing topic may be deleted again."""
    topic = unique("topic")
    async with Admin(local_kafka.bootstrap_servers) as admin:
        await admin.create_topic(topic, 3, {"cleanup.policy": "compact"})
        assert (await admin.topics())[topic] == 3
        assert (await admin.configs(topic))["cleanup.policy"] == "compact"
        with pytest.raises(ClientError, match=f"topic '{topic}' with 3 partitions was not created at .*already exists"):
            await admin.create_topic(topic, 3)
        with pytest.raises(ClientError, match="Kafka error 40"):
            await admin.create_topic(f"{topic}-2", configs={"cleanup.policy": "tidy"})
        for _ in range(2):
            await admin.delete_topics(topic)
        async with asyncio.timeout(120):
            while topic in await admin.topics():
                await asyncio.sleep(0.02)
        with pytest.raises(TopicNotFound, match=topic):
            await admin.configs(topic)


@real
async def test_what_a_group_has_committed(local_kafka: LocalKafka) -> None:
    """Offsets and metadata of all partitions or of some; an unknown group has none. A group is deleted only without
    members; a missing one may be deleted again."""
    topic = unique("topic")
    async with serving(local_kafka) as cluster, Admin(local_kafka.bootstrap_servers) as admin:
        await cluster.create_topic(topic, 2)
        member = Member(cluster.client(unique("group")))
        group = member.client._settings.group_id
        assert await admin.committed(group) == {}
        await member.join(topic)
        first, second = (TopicPartition(topic, number) for number in range(2))
        await member.client.commit({first: Committed(3, "text")}, member.generation, 5.0)
        assert await admin.committed(group) == {first: Committed(3, "text")}
        assert await admin.committed(group, [second]) == {}
        with pytest.raises(ClientError, match=f"deleting group '{group}'.*NonEmptyGroup"):
            await admin.delete_group(group)
        await member.client.stop(5.0)
        for _ in range(2):
            await admin.delete_group(group)
        assert await admin.committed(group) == {}


@real
async def test_records_are_deleted_up_to_an_offset(local_kafka: LocalKafka) -> None:
    """The answer has the new first offset of the log. An offset beyond its end is refused."""
    topic = unique("topic")
    async with serving(local_kafka) as cluster, Admin(local_kafka.bootstrap_servers) as admin:
        await cluster.create_topic(topic)
        await cluster.produce(topic, [Produced(b"value") for _ in range(5)])
        partition = TopicPartition(topic, 0)
        assert await admin.delete_records({partition: 3}) == {partition: 3}
        with pytest.raises(ClientError, match=f"deleting records of {topic}-0"):
            await admin.delete_records({partition: 9})


@real
async def test_offsets_of_logs_beside_a_topic_that_is_deleted(local_kafka: LocalKafka) -> None:
    """What is deleted after it was listed is left out, at once. aiokafka's own query would retry until its timeout."""
    topic, deleted = unique("topic"), unique("deleted")
    async with serving(local_kafka) as cluster, Admin(local_kafka.bootstrap_servers) as admin:
        for name in (topic, deleted):
            await cluster.create_topic(name, 2)
        await cluster.produce(topic, [Produced(b"value") for _ in range(5)])
        await admin.delete_records({TopicPartition(topic, 0): 3})
        listed = [TopicPartition(name, number) for name in (topic, deleted) for number in range(2)]
        assert (await admin.log_ranges(listed)).keys() == set(listed)
        await admin.delete_topics(deleted)
        began = time.monotonic()
        found = await admin.log_ranges(listed)
        assert time.monotonic() - began < 10
    assert found == {TopicPartition(topic, 0): (3, 5), TopicPartition(topic, 1): (0, 0)}


async def test_an_unreachable_cluster() -> None:
    """The error comes in time and names the servers and the reason. An invalid address is refused at once, and an admin
    that is not connected is an error."""
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1 within 0\.3 s"):
        async with Admin("127.0.0.1:1", timeout=0.3):
            pass
    with pytest.raises(TimeoutError, match=r"creating topic 'x' at 127\.0\.0\.1:1"):
        await create_topic("127.0.0.1:1", "x", 1, None, 0.3)
    assert time.monotonic() - began < 30
    with pytest.raises(ConfigurationError, match="bootstrap_servers"):
        Admin("nowhere:0")
    with pytest.raises(ConsumerStateError, match="async with"):
        await Admin("127.0.0.1:1").topics()


async def test_a_cancellation_while_it_closes_is_not_lost(embedded_broker: EmbeddedBroker) -> None:
    """At each step of the event loop. aiokafka's ``close`` swallows one while it waits for its metadata task."""

    async def use(answered: asyncio.Event) -> None:
        async with Admin(embedded_broker.bootstrap_servers) as admin:
            await admin.brokers()
            answered.set()

    for steps in range(1_000):
        answered = asyncio.Event()
        task = asyncio.create_task(use(answered))
        await answered.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        if not task.cancel():
            break
        await asyncio.wait([task], timeout=SLACK)
        assert task.cancelled(), f"cancelled after {steps} steps"
    assert steps > 1
    await task


async def test_the_embedded_broker_has_topics_and_commits(embedded_broker: EmbeddedBroker) -> None:
    """It creates no topics by request. It lists its topics, and the commits of given partitions."""
    topic = unique("topic")
    await embedded_broker.create_topic(topic, 2)
    async with Admin(embedded_broker.bootstrap_servers) as admin:
        assert (await admin.topics())[topic] == 2
        assert await admin.committed(unique("group"), [TopicPartition(topic, 0)]) == {}
