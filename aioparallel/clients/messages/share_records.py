"""Records of share groups (KIP-932): fetched, locked for a member, and acknowledged.

Both requests belong to the share session that a member has with the leader of the partitions. Its epoch goes up by one
with each request, so only one may be under way. Brokers from Kafka 4.1; RENEW (KIP-1222) and the acquire mode
(KIP-1206) from 4.2.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Final

from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.assignments import TopicPartitions
from aioparallel.clients.messages.schema import Int8, Int16, Int32, Int64, Records, Since, Uuid

__all__ = [
    "CLOSE_SESSION",
    "OPEN_SESSION",
    "SHARE_ACKNOWLEDGE",
    "SHARE_FETCH",
    "AcknowledgePartition",
    "AcknowledgeTopic",
    "AcknowledgeType",
    "AcknowledgedPartition",
    "AcknowledgedTopic",
    "AcknowledgementBatch",
    "AcquireMode",
    "AcquiredRange",
    "FetchedPartition",
    "FetchedTopic",
    "Leader",
    "NodeEndpoint",
    "ShareAcknowledgeRequest",
    "ShareAcknowledgeResponse",
    "ShareFetchRequest",
    "ShareFetchResponse",
]

OPEN_SESSION: Final = 0
CLOSE_SESSION: Final = -1
"""Epochs of share sessions with a meaning. Closing one releases the records that are still locked, a little later.
Opening one anew does not."""


class AcknowledgeType(enum.IntEnum):
    """What becomes of a record."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    """It is never delivered again."""
    RELEASE = 2
    """It is delivered again, unless it has been delivered too often."""
    REJECT = 3
    """It is never delivered again."""
    RENEW = 4
    """Its lock begins anew. From Kafka 4.3 a group can forbid it: ``share.renew.acknowledge.enable``."""


class AcquireMode(enum.IntEnum):
    """How many records a fetch acquires."""

    BATCH_OPTIMIZED = 0
    """Whole batches, so more than ``max_records`` are possible."""
    RECORD_LIMIT = 1
    """At most ``max_records``."""


@dataclass(frozen=True, slots=True)
class AcknowledgementBatch:
    """Acknowledges a range of offsets, with one type for all or one for each. Brokers also accept, and ignore, those
    below the group's start offset, where all records have ended."""

    first_offset: Int64
    last_offset: Int64
    acknowledge_types: tuple[Int8, ...]
    """:class:`AcknowledgeType`."""


@dataclass(frozen=True, slots=True)
class AcknowledgePartition:
    """A partition to fetch, or whose records are acknowledged. The batches must be in the order of offsets. If one of
    them is refused, all are."""

    partition_index: Int32
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class AcknowledgeTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[AcknowledgePartition, ...]


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition, as the broker knows it; -1: unknown. Without an error it says nothing, and is 0."""

    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """The address of a leader, if the broker is not the leader."""

    node_id: Int32
    host: str
    port: Int32
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchRequest:
    """Acknowledges records, and fetches more. The request that opens a session cannot acknowledge.

    After a response with an error code for all of it, the epoch depends on the error. Brokers before Kafka 4.4 answer
    UNKNOWN_SERVER_ERROR if a topic of the session does not exist, and have then advanced the epoch, and locked records
    that they do not send. Closing the session releases these."""

    group_id: str | None
    member_id: str | None
    share_session_epoch: Int32
    """One more than in the request before, or ``OPEN_SESSION`` or ``CLOSE_SESSION``."""
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32
    batch_size: Int32
    """Wanted number of records in each acquired range. Larger batches of the log are divided."""
    share_acquire_mode: Annotated[Int8, Since(2, ignorable=True)] = AcquireMode.BATCH_OPTIMIZED
    is_renew_ack: Annotated[bool, Since(2)] = False
    """Whether the batches contain ``RENEW``. Nothing is fetched then: ``max_records`` and others must be 0."""
    topics: tuple[AcknowledgeTopic, ...] = ()
    """Partitions that join the session, and those with acknowledgements. The others of the session are fetched without
    being named."""
    forgotten_topics_data: tuple[TopicPartitions, ...] = ()
    """Partitions that leave the session."""


@dataclass(frozen=True, slots=True)
class AcquiredRange:
    """A range of offsets that is locked for the member."""

    first_offset: Int64
    last_offset: Int64
    delivery_count: Int16
    """1 for the first delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """Records of a partition, and the result of its acknowledgements."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: str | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: str | None = None
    current_leader: Leader = Leader()
    records: Records = b""
    """Whole batches of the log. They may contain records that are not acquired."""
    acquired_records: tuple[AcquiredRange, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchedTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchResponse:
    """Partitions with records, with errors, and those whose records were acknowledged."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    """How long the records stay locked, from when the broker acquired them."""
    responses: tuple[FetchedTopic, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


SHARE_FETCH: Final = Api("ShareFetch", 78, 1, 2, ShareFetchRequest, ShareFetchResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledgeRequest:
    """Acknowledges records without fetching."""

    group_id: str | None
    member_id: str | None
    share_session_epoch: Int32
    """One more than in the request before, or ``CLOSE_SESSION``."""
    is_renew_ack: Annotated[bool, Since(2)] = False
    """Whether the batches contain ``RENEW``."""
    topics: tuple[AcknowledgeTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedPartition:
    """The result for a partition."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: str | None = None
    current_leader: Leader = Leader()


@dataclass(frozen=True, slots=True)
class AcknowledgedTopic:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[AcknowledgedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcknowledgeResponse:
    """The results of acknowledgements."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, Since(2, ignorable=True)] = 0
    """How long renewed locks last."""
    responses: tuple[AcknowledgedTopic, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


SHARE_ACKNOWLEDGE: Final = Api("ShareAcknowledge", 79, 1, 2, ShareAcknowledgeRequest, ShareAcknowledgeResponse)
