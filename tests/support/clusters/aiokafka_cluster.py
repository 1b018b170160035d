"""The clusters that AiokafkaClient is tested on: librdkafka's mock cluster and Apache Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, cast

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.group import LeaveGroupRequest

from aioparallel.clients import AiokafkaClient, AiokafkaProducer, AiokafkaTransactionalProducer
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.clients.messages.consumer_groups import (
    CONSUMER_GROUP_HEARTBEAT,
    LEAVE,
    ConsumerGroupHeartbeatRequest,
)
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.brokers.broker import Broker
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from tests.support.clusters.cluster import (
    Cluster,
    ClusterKind,
    Compression,
    Feature,
    Isolation,
    Produced,
    Timing,
    Transaction,
)
from tests.support.kafka.asking import asking

__all__ = ["KINDS", "AiokafkaCluster", "GroupProtocol", "serving"]

GroupProtocol = Literal["classic", "consumer"]


class OpenTransaction:
    """Undecided records in the log."""

    def __init__(self, cluster: AiokafkaCluster, producer: Any, partition: TopicPartition) -> None:
        self._cluster = cluster
        self._producer = producer
        self._partition = partition

    async def end(self, *, commit: bool) -> None:
        """Commit or abort; the marker takes one offset, so the log's end tells when it is written."""
        before = await self._cluster.log_end(self._partition)
        await (self._producer.commit_transaction() if commit else self._producer.abort_transaction())
        async with asyncio.timeout(self._cluster.timing.deadline):
            while await self._cluster.log_end(self._partition) <= before:
                await asyncio.sleep(0.01)


class AiokafkaCluster:
    """A broker with the helpers of one test; see :class:`Cluster`."""

    def __init__(self, name: str, broker: Broker, timing: Timing, group_protocol: GroupProtocol = "classic") -> None:
        self.name = name
        self._group_protocol: GroupProtocol = group_protocol
        self.timing = timing
        self.broker = broker
        self._producers: dict[str | None, Any] = {}
        self._clients: list[AiokafkaClient] = []
        self._sending: list[AiokafkaProducer | AiokafkaTransactionalProducer] = []
        self._reader: Any = None
        self._closing = contextlib.AsyncExitStack()

    async def close(self) -> None:
        """Stop what the test has left."""
        await asyncio.gather(*(producer.stop(0.0) for producer in self._sending))
        await asyncio.gather(*(client.stop(5.0) for client in self._clients))
        await self._closing.aclose()

    async def create_topic(self, name: str, partitions: int = 1, *, compacted: bool = False) -> None:
        # Some tests write records that are older than a broker keeps them, which looks every five minutes.
        configs = {} if self.broker.kind == "embedded" else {"retention.ms": "-1"}
        if compacted:
            configs["cleanup.policy"] = "compact"
        await self.broker.create_topic(name, partitions, configs=configs)

    async def add_partitions(self, topic: str, total: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.broker.bootstrap_servers)
        await admin.start()
        try:
            await admin.create_partitions({topic: NewPartitions(total)})
        finally:
            await admin.close()

    async def produce(
        self,
        topic: str,
        records: Sequence[Produced],
        partition: int = 0,
        *,
        compression: Compression | None = None,
    ) -> list[int]:
        return await self._send(await self._producer(compression), topic, records, partition)

    async def open_transaction(self, topic: str, records: Sequence[Produced], partition: int = 0) -> Transaction:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.broker.bootstrap_servers, transactional_id=f"transaction-{uuid.uuid4()}"
        )
        await producer.start()
        self._closing.push_async_callback(producer.stop)
        await producer.begin_transaction()
        await self._send(producer, topic, records, partition)
        return OpenTransaction(self, producer, TopicPartition(topic, partition))

    async def delete_records(self, partition: TopicPartition, before: int) -> None:
        async with Admin(self.broker.bootstrap_servers) as admin:
            await admin.delete_records({partition: before})

    async def evict(self, group_id: str, member_id: str) -> None:
        if self._group_protocol == "consumer":
            async with asking(self.broker.bootstrap_servers) as asked:
                request = ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=LEAVE)
                left = await asked.coordinate(group_id, CONSUMER_GROUP_HEARTBEAT, request)
                assert left.error_code == 0, left
            return
        client = AIOKafkaClient(bootstrap_servers=self.broker.bootstrap_servers)
        await client.bootstrap()
        try:
            node = await client.coordinator_lookup(CoordinationType.GROUP, group_id)
            answer = await client.send(node, LeaveGroupRequest(group_id, member_id))
            assert answer.error_code == 0, f"evicting {member_id} from {group_id}: error {answer.error_code}"
        finally:
            await client.close()

    def client(
        self,
        group_id: str,
        *,
        isolation_level: Isolation = "read_uncommitted",
        cooperative: bool = False,
        session_timeout: float | None = None,
        heartbeat_interval: float | None = None,
        rebalance_timeout: float | None = None,
        bootstrap_servers: str | None = None,
        client_options: Mapping[str, object] | None = None,
        instance_id: str | None = None,
    ) -> AiokafkaClient:
        assert not cooperative, "aiokafka has no cooperative rebalance"
        static = {} if instance_id is None else {"group_instance_id": instance_id}
        client = AiokafkaClient(
            bootstrap_servers or self.broker.bootstrap_servers,
            group_id,
            session_timeout=session_timeout or self.timing.session_timeout,
            heartbeat_interval=heartbeat_interval or self.timing.heartbeat_interval,
            rebalance_timeout=rebalance_timeout or self.timing.rebalance_timeout,
            group_protocol=self._group_protocol,
            client_options={
                "metadata_max_age_ms": 500,
                "isolation_level": isolation_level,
                **static,
                **(client_options or {}),
            },
        )
        self._clients.append(client)
        return client

    def unreachable_client(self, group_id: str) -> AiokafkaClient:
        return AiokafkaClient(NOBODY, group_id)

    def producer(
        self,
        *,
        delivery_timeout: float | None = None,
        bootstrap_servers: str | None = None,
        consumer_options: Mapping[str, object] | None = None,
        producer_options: Mapping[str, object] | None = None,
    ) -> AiokafkaProducer:
        producer = AiokafkaProducer(
            bootstrap_servers or self.broker.bootstrap_servers,
            delivery_timeout=delivery_timeout or self.timing.deadline,
            consumer_options={"metadata_max_age_ms": 500, "fetch_max_bytes": 1000, **(consumer_options or {})},
            producer_options={"max_request_size": 3 * 1024 * 1024, **(producer_options or {})},
        )
        self._sending.append(producer)
        return producer

    def transactional_producer(self, group_id: str, *, instance_id: str | None = None) -> AiokafkaTransactionalProducer:
        static = {} if instance_id is None else {"group_instance_id": instance_id}
        producer = AiokafkaTransactionalProducer(
            self.broker.bootstrap_servers,
            group_id,
            delivery_timeout=self.timing.deadline,
            consumer_options={"metadata_max_age_ms": 500, **static},
            producer_options={},
        )
        self._sending.append(producer)
        return producer

    def unreachable_producer(self, *, delivery_timeout: float) -> AiokafkaProducer:
        return self.producer(delivery_timeout=delivery_timeout, bootstrap_servers=NOBODY)

    async def records(self, topic: str) -> list[Record]:
        reader = AIOKafkaConsumer(topic, bootstrap_servers=self.broker.bootstrap_servers, auto_offset_reset="earliest")
        await reader.start()
        try:
            async with asyncio.timeout(self.timing.deadline):
                return await self._read_all(reader)
        finally:
            await reader.stop()

    async def _read_all(self, reader: Any) -> list[Record]:
        # Without a group it has all partitions at once.
        every = sorted(reader.assignment())
        ends = await reader.end_offsets(every)
        found: dict[TopicPartition, list[Record]] = {partition: [] for partition in every}
        while any([await reader.position(partition) < ends[partition] for partition in every]):
            for partition, messages in (await reader.getmany(timeout_ms=100)).items():
                found[partition] += [
                    Record(m.topic, m.partition, m.offset, m.key, m.value, tuple(m.headers), m.timestamp)
                    for m in messages
                ]
        return [record for partition in every for record in found[partition]]

    async def log_end(self, partition: TopicPartition) -> int:
        """The end of the log, decided or not."""
        if self._reader is None:
            self._reader = AIOKafkaConsumer(bootstrap_servers=self.broker.bootstrap_servers)
            await self._reader.start()
            self._closing.push_async_callback(self._reader.stop)
        end: int = (await self._reader.end_offsets([partition]))[partition]
        return end

    async def _producer(self, compression: Compression | None) -> Any:
        if compression not in self._producers:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.broker.bootstrap_servers, compression_type=compression, linger_ms=1
            )
            await producer.start()
            self._closing.push_async_callback(producer.stop)
            self._producers[compression] = producer
        return self._producers[compression]

    async def _send(self, producer: Any, topic: str, records: Sequence[Produced], partition: int) -> list[int]:
        sent = [
            await producer.send(topic, record.value, record.key, partition, record.timestamp, list(record.headers))
            for record in records
        ]
        return [acknowledged.offset for acknowledged in await asyncio.gather(*sent)]


NOBODY = "127.0.0.1:1"
"""Nobody listens there, and nobody will: the port is reserved, where one that is free now may be another test's broker
a moment later."""
EMBEDDED_TIMING = Timing(session_timeout=2.0, heartbeat_interval=0.3, rebalance_timeout=5.0, deadline=120.0)
KAFKA_TIMING = Timing(session_timeout=3.0, heartbeat_interval=0.3, rebalance_timeout=6.0, deadline=120.0)

# Not transactions: its markers have a wrong checksum, and it shows readers what is undecided.
EMBEDDED_FEATURES: frozenset[Feature] = frozenset(
    {"classic protocol", "compression", "eviction", "pattern", "producers"}
)
KAFKA_FEATURES: frozenset[Feature] = frozenset(
    {
        "added partitions",
        "classic protocol",
        "compacted topics",
        "compression",
        "eviction",
        "exactly once",
        "message limit",
        "metadata limit",
        "pattern",
        "producers",
        "several members",
        "static members",
        "timestamps",
        "transactions",
        "truncation",
    }
)


@contextlib.asynccontextmanager
async def serving(broker: Broker, group_protocol: GroupProtocol = "classic") -> AsyncIterator[AiokafkaCluster]:
    """One test's cluster of a broker that is running; stops at the end what the test has left."""
    if isinstance(broker, EmbeddedBroker):
        cluster = AiokafkaCluster("embedded", broker, EMBEDDED_TIMING)
    else:
        name = "kafka" if group_protocol == "classic" else "kafka-consumer"
        cluster = AiokafkaCluster(name, broker, KAFKA_TIMING, group_protocol)
    try:
        yield cluster
    finally:
        await cluster.close()


def opened(broker: object) -> AbstractAsyncContextManager[Cluster]:
    """The same for the registry."""
    return serving(cast("Broker", broker))


def opened_consumer(broker: object) -> AbstractAsyncContextManager[Cluster]:
    """The same with members of the new protocol."""
    return serving(cast("Broker", broker), "consumer")


KINDS: Sequence[ClusterKind] = (
    ClusterKind(
        name="embedded",
        features=EMBEDDED_FEATURES,
        open=opened,
        broker_fixture="embedded_broker",
    ),
    ClusterKind(
        name="kafka",
        features=KAFKA_FEATURES,
        open=opened,
        broker_fixture="local_kafka",
        marks=(pytest.mark.real,),
    ),
    ClusterKind(
        name="kafka-consumer",
        features=KAFKA_FEATURES - {"classic protocol", "producers"} | {"consumer protocol"},
        open=opened_consumer,
        broker_fixture="sharing_kafka",
        loops=("uvloop",),  # the other loop runs the same client with members of the classic protocol
        marks=(pytest.mark.real,),
    ),
)
