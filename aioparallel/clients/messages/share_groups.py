"""Share groups (KIP-932): heartbeats, which also join, leave and carry assignments, and the description of groups.

Brokers from Kafka 4.1. Version 0 of these and of :mod:`~aioparallel.clients.messages.share_records` was the early
access of Kafka 4.0. It was removed after that, and brokers speak it only with ``unstable.api.versions.enable``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.assignments import Assignment, DescribedAssignment
from aioparallel.clients.messages.schema import Int16, Int32

__all__ = [
    "JOIN",
    "LEAVE",
    "SHARE_GROUP_DESCRIBE",
    "SHARE_GROUP_HEARTBEAT",
    "DescribedShareGroup",
    "ShareGroupDescribeRequest",
    "ShareGroupDescribeResponse",
    "ShareGroupHeartbeatRequest",
    "ShareGroupHeartbeatResponse",
    "ShareGroupMember",
]

JOIN: Final = 0
LEAVE: Final = -1
"""Member epochs with a meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupHeartbeatRequest:
    """A member's heartbeat. To join, all fields are given; later those that have changed."""

    group_id: str
    member_id: str
    """Chosen by the member, and kept while its process lives:
    :func:`~aioparallel.clients.messages.assignments.new_member_id`."""
    member_epoch: Int32
    """From the last answer, or ``JOIN`` or ``LEAVE``."""
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupHeartbeatResponse:
    """The answer to a heartbeat."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    """When the next heartbeat is due."""
    assignment: Assignment | None = None
    """The partitions to fetch; None: unchanged. Nothing has to be acknowledged about it."""


SHARE_GROUP_HEARTBEAT: Final = Api(
    "ShareGroupHeartbeat", 76, 1, 1, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDescribeRequest:
    """Asks for groups and their members."""

    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMember:
    """A member of a group."""

    member_id: str
    rack_id: str | None = None
    member_epoch: Int32
    client_id: str
    client_host: str
    """As Java writes it, with a slash in front."""
    subscribed_topic_names: tuple[str, ...]
    assignment: DescribedAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedShareGroup:
    """A group. With an error, the other fields are empty."""

    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: tuple[ShareGroupMember, ...] = ()
    authorized_operations: Int32 = -(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDescribeResponse:
    """The groups."""

    throttle_time_ms: Int32 = 0
    groups: tuple[DescribedShareGroup, ...] = ()


SHARE_GROUP_DESCRIBE: Final = Api("ShareGroupDescribe", 77, 1, 1, ShareGroupDescribeRequest, ShareGroupDescribeResponse)
