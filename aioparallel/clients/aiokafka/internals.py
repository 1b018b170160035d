"""The parts of aiokafka's objects that are used, typed here because aiokafka has no type information.

Each protocol names the aiokafka class it describes. Nothing is implemented here; the objects are aiokafka's. Its
``TopicPartition`` is a named tuple that equals and hashes like this package's, so ours works as a key. Answers have no
types: the code that reads one unpacks its fields in the order of Kafka's message definitions.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSet,
)
from typing import Any, ClassVar, Protocol

from aioparallel.records.record import TopicPartition

__all__ = [
    "Assignment",
    "BrokerNode",
    "ClusterView",
    "Connection",
    "Connections",
    "Consumer",
    "Coordinator",
    "FetchFault",
    "FetchedData",
    "Fetcher",
    "MetadataAnswer",
    "OffsetFetchAnswer",
    "PartitionRecords",
    "PartitionState",
    "RawBatch",
    "RawBatches",
    "RawRecord",
    "Subscription",
    "SubscriptionState",
]


class RawRecord(Protocol):
    """``aiokafka.record.default_records.DefaultRecord`` (and the legacy one): a decoded record."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class RawBatch(Protocol):
    """``aiokafka.record.default_records.DefaultRecordBatch`` (and the legacy one). Iteration decodes its records."""

    base_offset: int
    next_offset: int
    producer_id: int | None
    is_control_batch: bool
    is_transactional: bool

    def validate_crc(self) -> bool: ...
    def __iter__(self) -> Iterator[RawRecord]: ...


class RawBatches(Protocol):
    """``aiokafka.record.memory_records.MemoryRecords``."""

    def has_next(self) -> bool: ...
    def next_batch(self) -> RawBatch: ...


class PartitionRecords(Protocol):
    """``aiokafka.consumer.fetcher.PartitionRecords``: the data of one partition in one fetch response.

    :class:`~aioparallel.clients.aiokafka.decoding.Decoder` replaces its iterator before that has started.
    """

    next_fetch_offset: int
    _records: RawBatches
    _records_iterator: object
    _check_crcs: bool
    _isolation_level: int
    _aborted_producers: MutableSet[int]

    def _consume_aborted_up_to(self, batch_offset: int) -> None: ...
    def _contains_abort_marker(self, next_batch: RawBatch) -> bool: ...


class FetchedData(Protocol):
    """``aiokafka.consumer.fetcher.FetchResult``: :class:`PartitionRecords` with the assignment it was fetched for."""

    _partition_records: PartitionRecords

    def check_assignment(self, tp: object) -> bool: ...
    def _update_position(self) -> None: ...


class FetchFault(Protocol):
    """``aiokafka.consumer.fetcher.FetchError``: an error instead of data."""

    _error: Exception


class PartitionState(Protocol):
    """``aiokafka.consumer.subscription_state.TopicPartitionState``."""

    highwater: int | None
    lso: int | None
    paused: bool
    has_valid_position: bool
    position: int

    def seek(self, position: int) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Assignment(Protocol):
    """``aiokafka.consumer.subscription_state.Assignment``: a new object at each rebalance."""

    tps: Collection[TopicPartition]
    active: bool

    def state_value(self, tp: TopicPartition) -> PartitionState | None: ...


class Subscription(Protocol):
    """``aiokafka.consumer.subscription_state.Subscription``."""

    assignment: Assignment | None


class SubscriptionState(Protocol):
    """``aiokafka.consumer.subscription_state.SubscriptionState``."""

    _fetch_count: int
    subscription: Subscription | None
    reassignment_in_progress: bool
    fetcher_idle_time: float

    def subscribe(self, topics: set[str], listener: object) -> None: ...
    def assign_from_user(self, partitions: Collection[object]) -> None: ...
    def subscribe_pattern(self, pattern: object, listener: object) -> None: ...


class Fetcher(Protocol):
    """``aiokafka.consumer.fetcher.Fetcher``."""

    _client: Connections
    _isolation_level: int
    _client_rack: str | None
    _preferred_read_replica: MutableMapping[TopicPartition, tuple[int, float]]
    """The follower, and the time until which it is used."""
    _select_read_replica: Callable[[TopicPartition], int | None]
    _update_preferred_read_replica: Callable[[TopicPartition, int], None]
    _records: OrderedDict[TopicPartition, FetchedData | FetchFault]
    _prefetch_backoff: float
    _wait_consume_future: asyncio.Future[None] | None
    _fetch_task: asyncio.Task[None]
    _pending_tasks: MutableSet[asyncio.Task[bool]]
    _fetch_waiters: MutableSet[asyncio.Future[None]]

    def _notify(self, future: asyncio.Future[None] | None) -> None: ...
    def _create_fetch_waiter(self) -> asyncio.Future[None]: ...
    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> Mapping[TopicPartition, int]: ...
    async def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> Mapping[TopicPartition, int]: ...
    async def get_offsets_by_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float
    ) -> Mapping[TopicPartition, Any | None]: ...


class Coordinator(Protocol):
    """``aiokafka.consumer.group_coordinator.GroupCoordinator``."""

    generation: int
    member_id: str
    coordinator_id: int | None
    group_id: str
    reset_generation: Callable[[], None]
    _send_req: Callable[[object], Awaitable[Any]]
    _closing: asyncio.Future[None]
    _group_instance_id: str | None
    _coordination_task: asyncio.Task[None]
    _heartbeat_task: asyncio.Task[None] | None
    _commit_refresh_task: asyncio.Task[None] | None

    def check_errors(self) -> None: ...
    def coordinator_dead(self) -> None: ...
    async def ensure_coordinator_known(self) -> None: ...


class BrokerNode(Protocol):
    """``aiokafka.structs.BrokerMetadata``."""

    nodeId: int  # noqa: N815
    host: str
    port: int


class MetadataAnswer(Protocol):
    """``aiokafka.protocol.metadata.MetadataResponse_v1`` and later."""

    brokers: list[object]


class ClusterView(Protocol):
    """``aiokafka.cluster.ClusterMetadata``. Listeners are called within each update."""

    unauthorized_topics: Collection[str]

    def add_listener(self, listener: Callable[[object], object]) -> None: ...
    def available_partitions_for_topic(self, topic: str) -> set[int] | None: ...
    def topics(self, exclude_internal_topics: bool) -> set[str]: ...
    def partitions_for_topic(self, topic: str) -> set[int] | None: ...
    def brokers(self) -> Collection[BrokerNode]: ...
    def broker_metadata(self, broker_id: object) -> BrokerNode | None: ...
    def leader_for_partition(self, partition: TopicPartition) -> int | None: ...
    def update_metadata(self, metadata: MetadataAnswer) -> None: ...
    def failed_update(self, exception: None) -> None: ...


class Connection(Protocol):
    """``aiokafka.conn.AIOKafkaConnection``. ``_writer`` is None after closing."""

    _writer: asyncio.StreamWriter | None

    def connected(self) -> bool: ...
    def send(self, request: object) -> Awaitable[Any]: ...
    def close(self, reason: object = ...) -> asyncio.Future[None] | None: ...


class Connections(Protocol):
    """``aiokafka.client.AIOKafkaClient``: the connections to all brokers, and the metadata."""

    cluster: ClusterView
    _bootstrap_servers: str
    _connections_max_idle_ms: int | None
    _conns: MutableMapping[tuple[object, object], Connection]
    """By node and connection group. Replaced connections are stored by node and the connection itself."""
    _sync_task: asyncio.Task[None] | None
    _get_conn: Callable[..., object]
    _get_conn_lock_value: object
    _metadata_update: Callable[..., object]
    _md_synchronizer: Callable[[], Coroutine[None, None, None]]
    _on_connection_closed: Callable[..., object]
    add_topic: Callable[[str], object]

    def get_random_node(self) -> int | None: ...
    async def bootstrap(self) -> None: ...
    async def send(self, node_id: int, request: object, *, group: int = ...) -> Any: ...
    async def fetch_all_metadata(self) -> ClusterView: ...
    async def close(self) -> None: ...
    def set_topics(self, topics: Iterable[str]) -> object: ...
    def force_metadata_update(self) -> asyncio.Future[bool]: ...


class Consumer(Protocol):
    """``aiokafka.AIOKafkaConsumer``."""

    _client: Connections
    _subscription: SubscriptionState
    _fetcher: Fetcher | None
    _coordinator: Coordinator | None
    _isolation_level: str
    _exclude_internal_topics: bool

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class OffsetFetchAnswer(Protocol):
    """``aiokafka.protocol.commit.OffsetFetchResponse_v3``: partition, offset, metadata and error code. From version 5
    on the leader epoch follows the offset.

    Version 1 has no top-level error code.
    """

    API_VERSION: ClassVar[int]
    error_code: int
    topics: list[tuple[str, list[tuple[Any, ...]]]]
