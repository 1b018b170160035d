"""Apache Kafka as a cluster for the contract tests of share groups."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.clients.aiokafka.share_client import AiokafkaShareClient
from aioparallel.clients.messages.share_offsets import (
    DESCRIBE_SHARE_GROUP_OFFSETS,
    DescribeGroup,
    DescribeShareGroupOffsetsRequest,
)
from aioparallel.testing import LocalKafka
from aioparallel.testing.memory import ShareGroupOptions
from tests.support.clusters.member import Member
from tests.support.clusters.share_cluster import ShareCluster, ShareClusterKind, ShareTiming
from tests.support.kafka.asking import asking
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

__all__ = ["KINDS", "PROPERTIES", "KafkaShareCluster"]

PROPERTIES: Final = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.max.record.lock.duration.ms": "600000",
}
"""Of a broker for these tests: what they wait for is short."""
TIMING: Final = ShareTiming(deadline=120.0, lock_duration=4.0)


class KafkaShareCluster:
    """A broker with the helpers of one test; see :class:`ShareCluster`."""

    timing = TIMING

    def __init__(self, broker: LocalKafka) -> None:
        self.broker = broker
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        self._clients: list[AiokafkaShareClient | AiokafkaClient] = []

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        def create() -> bool:
            try:
                self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False  # the one before is not gone yet
            return True

        await until(lambda: asyncio.to_thread(create), self.timing.deadline, f"{name} is created")

    async def add_partitions(self, topic: str, total: int) -> None:
        future = self._admin.create_partitions([NewPartitions(topic, total)])[topic]
        await asyncio.to_thread(future.result, 30)

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self._admin.delete_topics([name])[name].result, 30)

    async def produce(self, topic: str, values: Sequence[bytes], partition: int = 0, *, aborted: bool = False) -> None:
        messages = [Message(None, value, partition=partition) for value in values]
        await asyncio.to_thread(fill, self.broker.bootstrap_servers, topic, messages, aborted=aborted)

    async def configure(self, group_id: str, options: ShareGroupOptions) -> None:
        async with asking(self.broker.bootstrap_servers) as asked:
            await asked.configure(
                group_id,
                {
                    "share.auto.offset.reset": options.auto_offset_reset,
                    "share.isolation.level": options.isolation_level,
                    "share.record.lock.duration.ms": str(round(options.lock_duration * 1000)),
                    "share.delivery.count.limit": str(options.delivery_count_limit),
                    "share.partition.max.record.locks": str(options.max_record_locks),
                    "share.renew.acknowledge.enable": str(options.is_renew_enabled).lower(),
                },
            )

    async def make_consumer_group(self, group_id: str, topic: str) -> None:
        client = AiokafkaClient(self.broker.bootstrap_servers, group_id)
        self._clients.append(client)
        await Member(client, self.timing.deadline).join([topic])

    async def lag(self, group_id: str, topic: str) -> int:
        async with asking(self.broker.bootstrap_servers) as asked:
            request = DescribeShareGroupOffsetsRequest(groups=(DescribeGroup(group_id),))
            answer = await asked.coordinate(group_id, DESCRIBE_SHARE_GROUP_OFFSETS, request)
        found = [
            partition.lag
            for group in answer.groups
            for one in group.topics
            for partition in one.partitions
            if one.topic_name == topic and partition.partition_index == 0
        ]
        return found[0] if found else -1

    def client(self, group_id: str) -> AiokafkaShareClient:
        client = AiokafkaShareClient(self.broker.bootstrap_servers, group_id)
        self._clients.append(client)
        return client

    def unreachable_client(self, group_id: str) -> AiokafkaShareClient:
        return AiokafkaShareClient("127.0.0.1:1", group_id)

    async def close(self) -> None:
        """Stop what the test has left."""
        await asyncio.gather(*(client.stop(5.0) for client in self._clients))


@contextlib.asynccontextmanager
async def opened(broker: object) -> AsyncIterator[ShareCluster]:
    """The cluster for one test; its clients are stopped at the end."""
    cluster = KafkaShareCluster(cast("LocalKafka", broker))
    try:
        yield cluster
    finally:
        await cluster.close()


KINDS: Final = (
    ShareClusterKind(
        name="kafka", open=opened, broker_fixture="sharing_kafka", loops=("asyncio",), marks=(pytest.mark.real,)
    ),
)
