"""Offsets of share groups (KIP-932): described, set and deleted.

Brokers from Kafka 4.1; the lag (KIP-1226) from 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.schema import Int16, Int32, Int64, Since, Uuid

__all__ = [
    "ALTER_SHARE_GROUP_OFFSETS",
    "DELETE_SHARE_GROUP_OFFSETS",
    "DESCRIBE_SHARE_GROUP_OFFSETS",
    "AlterShareGroupOffsetsRequest",
    "AlterShareGroupOffsetsResponse",
    "AlterTopic",
    "AlteredPartition",
    "AlteredTopic",
    "DeleteShareGroupOffsetsRequest",
    "DeleteShareGroupOffsetsResponse",
    "DeleteTopic",
    "DeletedTopic",
    "DescribeGroup",
    "DescribeShareGroupOffsetsRequest",
    "DescribeShareGroupOffsetsResponse",
    "DescribeTopic",
    "DescribedOffset",
    "DescribedOffsets",
    "DescribedTopic",
    "StartOffset",
]


# -- described


@dataclass(frozen=True, slots=True)
class DescribeTopic:
    """Partitions of one topic."""

    topic_name: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """A group. ``topics``: None asks for all."""

    group_id: str
    topics: tuple[DescribeTopic, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeShareGroupOffsetsRequest:
    """Asks for the offsets of groups."""

    groups: tuple[DescribeGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedOffset:
    """A partition. All records before ``start_offset`` have ended."""

    partition_index: Int32
    start_offset: Int64
    """-1: nothing was read yet."""
    leader_epoch: Int32
    lag: Annotated[Int64, Since(1, ignorable=True)] = -1
    """Records that have not ended; -1: unknown."""
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """Partitions of one topic."""

    topic_name: str
    topic_id: Uuid
    partitions: tuple[DescribedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedOffsets:
    """The offsets of a group."""

    group_id: str
    topics: tuple[DescribedTopic, ...] = ()
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeShareGroupOffsetsResponse:
    """The offsets of the groups."""

    throttle_time_ms: Int32 = 0
    groups: tuple[DescribedOffsets, ...] = ()


DESCRIBE_SHARE_GROUP_OFFSETS: Final = Api(
    "DescribeShareGroupOffsets", 90, 0, 1, DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse
)


# -- set


@dataclass(frozen=True, slots=True)
class StartOffset:
    """The offset to start a partition from."""

    partition_index: Int32
    start_offset: Int64


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Partitions of one topic."""

    topic_name: str
    partitions: tuple[StartOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsetsRequest:
    """Sets the offsets of a group, which must not have members."""

    group_id: str
    topics: tuple[AlterTopic, ...]


@dataclass(frozen=True, slots=True)
class AlteredPartition:
    """The result for a partition."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class AlteredTopic:
    """Partitions of one topic."""

    topic_name: str
    topic_id: Uuid
    partitions: tuple[AlteredPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterShareGroupOffsetsResponse:
    """The results."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: tuple[AlteredTopic, ...] = ()


ALTER_SHARE_GROUP_OFFSETS: Final = Api(
    "AlterShareGroupOffsets", 91, 0, 0, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse
)


# -- deleted


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """All partitions of one topic."""

    topic_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsetsRequest:
    """Deletes a group's offsets of topics. The group must not have members."""

    group_id: str
    topics: tuple[DeleteTopic, ...]


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """The result for a topic."""

    topic_name: str
    topic_id: Uuid
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteShareGroupOffsetsResponse:
    """The results."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: tuple[DeletedTopic, ...] = ()


DELETE_SHARE_GROUP_OFFSETS: Final = Api(
    "DeleteShareGroupOffsets", 92, 0, 0, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse
)
