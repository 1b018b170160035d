"""The in-memory broker as a cluster for the contract tests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Literal

from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer, InMemoryTransactionalProducer
from aioparallel.testing.memory import Transaction as MemoryTransaction
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

__all__ = ["KINDS", "MemoryCluster"]

TIMING = Timing(session_timeout=1.0, heartbeat_interval=0.02, rebalance_timeout=0.5, deadline=120.0)
FEATURES: frozenset[Feature] = frozenset(
    {
        "added partitions",
        "classic protocol",
        "compacted topics",
        "cooperative",
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
OF_CLASSIC: frozenset[Feature] = frozenset({"classic protocol", "cooperative", "producers"})


class OpenTransaction:
    """A transaction that the test may end."""

    def __init__(self, broker: InMemoryBroker, transaction: MemoryTransaction) -> None:
        self._broker = broker
        self._transaction = transaction

    async def end(self, *, commit: bool) -> None:
        self._broker.end_transaction(self._transaction, commit=commit)


class MemoryCluster:
    """A broker of its own for each test; see :class:`Cluster`."""

    timing = TIMING

    def __init__(self, group_protocol: Literal["classic", "consumer"] = "classic") -> None:
        self.name = "memory" if group_protocol == "classic" else "memory-consumer"
        self._group_protocol = group_protocol
        self.broker = InMemoryBroker()
        self.broker.max_message_bytes = 1024 * 1024
        self.clients: list[InMemoryClient] = []
        self.producers: list[InMemoryProducer | InMemoryTransactionalProducer] = []

    async def create_topic(self, name: str, partitions: int = 1, *, compacted: bool = False) -> None:
        self.broker.create_topic(name, partitions)
        self.broker.make_compacted(name, compacted=compacted)

    async def add_partitions(self, topic: str, total: int) -> None:
        self.broker.add_partitions(topic, total)

    async def produce(
        self,
        topic: str,
        records: Sequence[Produced],
        partition: int = 0,
        *,
        compression: Compression | None = None,
    ) -> list[int]:
        assert compression is None
        return self._append(topic, records, partition, None)

    async def open_transaction(self, topic: str, records: Sequence[Produced], partition: int = 0) -> Transaction:
        transaction = self.broker.begin_transaction()
        self._append(topic, records, partition, transaction)
        return OpenTransaction(self.broker, transaction)

    def _append(
        self,
        topic: str,
        records: Sequence[Produced],
        partition: int,
        transaction: MemoryTransaction | None,
    ) -> list[int]:
        return [
            self.broker.append(
                topic,
                record.value,
                key=record.key,
                headers=record.headers,
                timestamp=int(time.time() * 1000) if record.timestamp is None else record.timestamp,
                partition=partition,
                transaction=transaction,
            )[1]
            for record in records
        ]

    async def delete_records(self, partition: TopicPartition, before: int) -> None:
        self.broker.delete_before(partition, before)

    async def evict(self, group_id: str, member_id: str) -> None:
        self.broker.expire_session(group_id, member_id, asyncio.get_running_loop().time())

    def client(
        self,
        group_id: str,
        *,
        isolation_level: Isolation = "read_uncommitted",
        cooperative: bool = False,
        session_timeout: float | None = None,
        heartbeat_interval: float | None = None,
        rebalance_timeout: float | None = None,
        instance_id: str | None = None,
    ) -> InMemoryClient:
        client = InMemoryClient(
            self.broker,
            group_id,
            group_protocol=self._group_protocol,
            cooperative=cooperative,
            isolation_level=isolation_level,
            session_timeout=session_timeout or TIMING.session_timeout,
            heartbeat_interval=heartbeat_interval or TIMING.heartbeat_interval,
            rebalance_timeout=rebalance_timeout or TIMING.rebalance_timeout,
            group_instance_id=instance_id,
        )
        self.clients.append(client)
        return client

    async def records(self, topic: str) -> list[Record]:
        return self.broker.records(topic)

    def producer(self, *, delivery_timeout: float | None = None) -> InMemoryProducer:
        producer = InMemoryProducer(self.broker, delivery_timeout=delivery_timeout or TIMING.deadline)
        self.producers.append(producer)
        return producer

    def transactional_producer(self, group_id: str, *, instance_id: str | None = None) -> InMemoryTransactionalProducer:
        producer = InMemoryTransactionalProducer(
            self.broker, group_id, delivery_timeout=TIMING.deadline, group_instance_id=instance_id
        )
        self.producers.append(producer)
        return producer

    def unreachable_producer(self, *, delivery_timeout: float) -> InMemoryProducer:
        nowhere = InMemoryBroker()
        nowhere.go_down()
        producer = InMemoryProducer(nowhere, delivery_timeout=delivery_timeout)
        self.producers.append(producer)
        return producer

    def unreachable_client(self, group_id: str) -> InMemoryClient:
        nowhere = InMemoryBroker()
        nowhere.go_down()
        return InMemoryClient(nowhere, group_id)


@contextlib.asynccontextmanager
async def opened(group_protocol: Literal["classic", "consumer"], _: object) -> AsyncIterator[Cluster]:
    """A new cluster; its clients are stopped at the end."""
    cluster = MemoryCluster(group_protocol)
    try:
        yield cluster
    finally:
        for producer in cluster.producers:
            await producer.stop(0.0)
        for client in cluster.clients:
            await client.stop(TIMING.deadline)


KINDS = (
    ClusterKind(name="memory", features=FEATURES, open=partial(opened, "classic")),
    ClusterKind(
        name="memory-consumer",
        features=FEATURES - OF_CLASSIC | {"consumer protocol"},
        open=partial(opened, "consumer"),
    ),
)
