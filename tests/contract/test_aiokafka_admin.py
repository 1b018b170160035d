"""Admin: topics and groups of a real broker, and what the embedded one can tell."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka.protocol.admin import (
    CreateTopicsResponse_v3,
    DeleteGroupsResponse_v1,
    DeleteTopicsResponse_v1,
    DescribeConfigsResponse_v2,
)

from aioparallel.clients.aiokafka import admin_internals, internals
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
from tests.support.clusters.protocols import missing

real = pytest.mark.real


@real
async def test_topics_come_and_go(local_kafka: LocalKafka) -> None:
    """Created with all leaders and its configs, seen with its partitions, refused a second time, deleted; what is gone
    may be deleted again."""
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
    """All of it, or that of some partitions, with the texts; a group that is not known has nothing. Nor has one
    that was deleted, which takes that it has no members; what is gone may be deleted again."""
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
    """The answer says where the log begins now; an offset behind its end is refused."""
    topic = unique("topic")
    async with serving(local_kafka) as cluster, Admin(local_kafka.bootstrap_servers) as admin:
        await cluster.create_topic(topic)
        await cluster.produce(topic, [Produced(b"value") for _ in range(5)])
        partition = TopicPartition(topic, 0)
        assert await admin.delete_records({partition: 3}) == {partition: 3}
        with pytest.raises(ClientError, match=f"deleting records of {topic}-0"):
            await admin.delete_records({partition: 9})


async def test_nobody_there() -> None:
    """Within its time it says which servers and why; a wrong address at once; and it must be connected."""
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


async def test_the_embedded_broker_tells_topics_and_commits(embedded_broker: EmbeddedBroker) -> None:
    """It creates no topics by request, but it knows those that it has, and the commits of partitions asked for."""
    topic = unique("topic")
    await embedded_broker.create_topic(topic, 2)
    async with Admin(embedded_broker.bootstrap_servers) as admin:
        assert (await admin.topics())[topic] == 2
        assert await admin.committed(unique("group"), [TopicPartition(topic, 0)]) == {}


async def test_what_is_declared_of_aiokafka_exists(embedded_broker: EmbeddedBroker) -> None:
    """Each call with the parameters it is called with, each answer with the fields that are read."""
    async with Admin(embedded_broker.bootstrap_servers) as admin:
        live = {
            admin_internals.AdminClient: admin._admin,
            admin_internals.CreatedTopics: CreateTopicsResponse_v3(throttle_time_ms=0, topic_errors=[]),
            admin_internals.DeletedTopics: DeleteTopicsResponse_v1(throttle_time_ms=0, topic_error_codes=[]),
            internals.DeleteGroupsAnswer: DeleteGroupsResponse_v1(throttle_time_ms=0, results=[]),
            internals.ConfigsAnswer: DescribeConfigsResponse_v2(throttle_time_ms=0, resources=[]),
        }
        assert {kind.__name__: missing(one, kind) for kind, one in live.items()} == {k.__name__: [] for k in live}
