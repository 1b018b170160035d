"""What the producer uses of aiokafka's objects, besides ``internals.py``. As there: typed, and nothing implemented.

aiokafka's own producer is not among it. It retries without end, gives sequence numbers to batches that fail, and
then cannot go on; so batches, numbers and requests are ours here, and only the builder, the requests and the
connections are aiokafka's.
"""

# ruff: noqa: D102 - what each of them does is aiokafka's to say

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
    """``aiokafka.client.AIOKafkaClient``. Connections by node and group."""

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
    """``aiokafka.protocol.produce.ProduceResponse_v2`` to ``_v7``: topic, then for each partition its number, the
    error code, the offset, the timestamp, and more from version 5 on. Before version 2 without the timestamp."""

    API_VERSION: ClassVar[int]
    topics: list[tuple[str, list[tuple[int, ...]]]]
