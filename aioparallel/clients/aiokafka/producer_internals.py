"""The parts of aiokafka's objects that producing uses, in addition to ``internals.py``.

aiokafka's producer is not among them. It retries without end, and assigns sequence numbers to batches that then fail,
after which it cannot continue. So batches, numbers and requests are implemented in this package. Only the batch
builder, the request classes and the connections are aiokafka's.
"""

# ruff: noqa: D102 - documented by aiokafka

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping
from typing import ClassVar, Protocol

from aioparallel.clients.aiokafka.internals import ClusterView, Connection, Connections

__all__ = ["BatchBuilder", "ProduceAnswer", "ProducerCluster", "ProducerConnections", "ProducerIdAnswer"]


class BatchBuilder(Protocol):
    """``aiokafka.record.default_records.DefaultRecordBatchBuilder``."""

    def append(
        self,
        offset: int,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> object | None: ...
    def build(self) -> bytearray: ...


class ProducerCluster(ClusterView, Protocol):
    """``aiokafka.cluster.ClusterMetadata``. Listeners are called within each update."""

    unauthorized_topics: Collection[str]

    def add_listener(self, listener: Callable[[object], None]) -> None: ...
    def available_partitions_for_topic(self, topic: str) -> set[int] | None: ...
    def leader_for_partition(self, partition: object) -> int | None: ...


class ProducerConnections(Connections, Protocol):
    """``aiokafka.client.AIOKafkaClient``. ``_conns``: connections by node and group."""

    cluster: ProducerCluster
    _conns: MutableMapping[tuple[object, object], Connection]

    async def bootstrap(self) -> None: ...
    async def close(self) -> None: ...


class ProducerIdAnswer(Protocol):
    """``aiokafka.protocol.transaction.InitProducerIdResponse_v0``."""

    error_code: int
    producer_id: int
    producer_epoch: int


class ProduceAnswer(Protocol):
    """``aiokafka.protocol.produce.ProduceResponse_v2`` to ``_v7``: topic, then partition, error code, offset, timestamp
    (not before version 2) and, from version 5 on, more fields."""

    API_VERSION: ClassVar[int]
    topics: list[tuple[str, list[tuple[int, ...]]]]
