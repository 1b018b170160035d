"""Consumer groups of the new protocol (KIP-848): heartbeats, which also join, leave and carry assignments, and the
description of groups. Brokers from Kafka 4.0."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.assignments import Assignment, DescribedAssignment, TopicPartitions
from aioparallel.clients.messages.schema import Int8, Int16, Int32, Since

__all__ = [
    "CONSUMER_GROUP_DESCRIBE",
    "CONSUMER_GROUP_HEARTBEAT",
    "JOIN",
    "LEAVE",
    "LEAVE_TO_RETURN",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupMember",
    "DescribedConsumerGroup",
    "with_inline_flags",
]

_FLAGS: Final = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}


def with_inline_flags(pattern: re.Pattern[str]) -> str:
    """The pattern as text, with its flags, for ``subscribed_topic_regex``. RE2/J does not have ``x``."""
    flags = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
    return f"(?{flags}){pattern.pattern}" if flags else pattern.pattern


JOIN: Final = 0
LEAVE: Final = -1
LEAVE_TO_RETURN: Final = -2
"""Member epochs with a meaning. The last is for static members, whose partitions are kept until they return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatRequest:
    """A member's heartbeat. To join, all fields are given; later those that have changed. After an error or a lost
    answer, all are given again."""

    group_id: str
    member_id: str
    """Chosen by the member, and kept while its process lives:
    :func:`~aioparallel.clients.messages.assignments.new_member_id`. Version 0 also accepts an empty one."""
    member_epoch: Int32
    """From the last answer, or one of ``JOIN``, ``LEAVE`` and ``LEAVE_TO_RETURN``. The one before is accepted with
    ``topic_partitions`` that the member may still have: so a lost answer does no harm."""
    instance_id: str | None = None
    """``group.instance.id``. None: no static member, or unchanged."""
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    """How long the coordinator waits for partitions to be given away; -1: unchanged."""
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: Annotated[str | None, Since(1)] = None
    """In the syntax of RE2/J. An empty one ends the subscription by pattern."""
    server_assignor: str | None = None
    """``uniform``, ``range`` or another one of the broker; None: its default, or unchanged."""
    topic_partitions: tuple[TopicPartitions, ...] | None = None
    """The partitions that the member has now. One that is missing counts as given away. None: unchanged. Must be empty
    to join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    """The answer to a heartbeat."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    """When the next heartbeat is due."""
    assignment: Assignment | None = None
    """The partitions that the member may use; those that are missing must be given away. None: unchanged."""


CONSUMER_GROUP_HEARTBEAT: Final = Api(
    "ConsumerGroupHeartbeat", 68, 0, 1, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeRequest:
    """Asks for groups and their members."""

    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember:
    """A member of a group."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32
    client_id: str
    client_host: str
    """As Java writes it, with a slash in front."""
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None = None
    assignment: DescribedAssignment
    """The partitions that it has now. Brokers from Kafka 4.3 include those that it is giving away."""
    target_assignment: DescribedAssignment
    """The partitions that it will have."""
    member_type: Annotated[Int8, Since(1, ignorable=True)] = -1
    """-1 unknown, 0 of the classic protocol, 1 of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerGroup:
    """A group. With an error, the other fields are empty."""

    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: tuple[ConsumerGroupMember, ...] = ()
    authorized_operations: Int32 = -(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeResponse:
    """The groups."""

    throttle_time_ms: Int32 = 0
    groups: tuple[DescribedConsumerGroup, ...] = ()


CONSUMER_GROUP_DESCRIBE: Final = Api(
    "ConsumerGroupDescribe", 69, 0, 1, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
)
