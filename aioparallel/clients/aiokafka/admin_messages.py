"""Requests that list and describe groups, in versions that aiokafka lacks.

ListGroups 4 and 5 (states, types), DescribeGroups 5 (static members), OffsetFetch 7 (stable offsets). Older brokers get
aiokafka's versions. Groups of the protocol of KIP-848 have a message of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest

from aioparallel.clients.aiokafka.message_classes import OneVersion, grouped, request_class, supports
from aioparallel.clients.messages.assignments import DescribedAssignment
from aioparallel.clients.messages.consumer_groups import DescribedConsumerGroup
from aioparallel.records.record import TopicPartition

__all__ = [
    "DescribeGroup",
    "GroupMember",
    "GroupState",
    "ListGroups",
    "ListedGroup",
    "consumer_group_state",
    "stable_offsets_request",
]

_CLASSIC: Final = "classic"


class ListedGroup(NamedTuple):
    """A group in the list of all."""

    name: str
    state: str
    """As Kafka names it: Stable, Empty, PreparingRebalance, ...; empty for brokers before Kafka 2.6."""
    type: str
    """classic, consumer (KIP-848), share or streams; the protocol type of older brokers, such as ``consumer``."""


class GroupMember(NamedTuple):
    """A member of a group."""

    member_id: str
    instance_id: str | None
    """Of a static member."""
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    """Those that it has."""
    epoch: int | None = None
    """None in a classic group, as for the other fields from here on."""
    target: tuple[TopicPartition, ...] | None = None
    """The partitions that it will have."""
    protocol: str | None = None
    """``consumer``, or ``classic`` while the group is converted; None if the broker does not say."""

    @property
    def giving_away(self) -> tuple[TopicPartition, ...]:
        """Partitions that it has and will not have."""
        return () if self.target is None else tuple(one for one in self.partitions if one not in self.target)

    @property
    def waiting_for(self) -> tuple[TopicPartition, ...]:
        """Partitions that it will have and does not have yet."""
        return tuple(one for one in self.target or () if one not in self.partitions)


class GroupState(NamedTuple):
    """A group and its members. ``state``: as Kafka names it; ``Dead`` if the group does not exist."""

    state: str
    type: str
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    """It rises when members, subscriptions or topics change. None in a classic group, as for the fields below."""
    assignment_epoch: int | None = None
    """The group epoch for which the partitions were last assigned."""
    assignor: str | None = None


# -- ListGroups

_ListGroups_v4 = request_class(
    "ListGroups",
    16,
    4,
    request="states_filter:[]string",
    response=(
        "throttle_time_ms:int32 error_code:int16 groups:[ group_id:string protocol_type:string group_state:string ]"
    ),
)
_ListGroups_v5 = request_class(
    "ListGroups",
    16,
    5,
    request="states_filter:[]string types_filter:[]string",
    response=(
        "throttle_time_ms:int32 error_code:int16 "
        "groups:[ group_id:string protocol_type:string group_state:string group_type:string ]"
    ),
)


class ListGroups:
    """The groups of one broker."""

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """The request in the newest version that the broker supports."""
        if supports(versions, _ListGroups_v5):
            return _ListGroups_v5([], [], {})
        if supports(versions, _ListGroups_v4):
            return _ListGroups_v4([], {})
        return ListGroupsRequest().prepare(dict(versions))

    @staticmethod
    def results(answer: Any) -> list[ListedGroup]:
        """The groups in the answer."""
        if answer.API_VERSION >= 5:
            return [ListedGroup(name, state, kind.lower()) for name, _, state, kind, _ in answer.groups]
        if answer.API_VERSION == 4:
            return [ListedGroup(name, state, protocol) for name, protocol, state, _ in answer.groups]
        return [ListedGroup(name, "", protocol) for name, protocol in answer.groups]


# -- DescribeGroups

_DescribeGroups_v5 = request_class(
    "DescribeGroups",
    15,
    5,
    request="groups:[]string include_authorized_operations:bool",
    response=(
        "throttle_time_ms:int32 groups:[ error_code:int16 group:string state:string protocol_type:string "
        "protocol:string members:[ member_id:string instance_id:string client_id:string client_host:string "
        "member_metadata:bytes member_assignment:bytes ] authorized_operations:int32 ]"
    ),
)


class DescribeGroup(NamedTuple):
    """One classic group and its members."""

    group: str

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """The request in the newest version that the broker supports."""
        if supports(versions, _DescribeGroups_v5):
            return _DescribeGroups_v5([self.group], False, {})
        return DescribeGroupsRequest([self.group]).prepare(dict(versions))

    @staticmethod
    def results(answer: Any) -> tuple[int, GroupState]:
        """The error code, and the group."""
        code, _, state, protocol_type, _, members, *_ = answer.groups[0]
        if answer.API_VERSION >= 5:
            found = [(one[0], one[1], one[2], one[3], one[5]) for one in members]
        else:
            found = [(one[0], None, one[1], one[2], one[4]) for one in members]
        return code, GroupState(
            state,
            _CLASSIC if protocol_type in ("", "consumer") else protocol_type,
            tuple(
                GroupMember(member_id, instance_id, client_id, host.lstrip("/"), _assigned(assignment))
                for member_id, instance_id, client_id, host, assignment in found
            ),
        )


def _assigned(assignment: bytes | None) -> tuple[TopicPartition, ...]:
    """The partitions in an assignment of the consumers' protocol; none of other protocols, such as Kafka Connect's."""
    try:
        found = ConsumerProtocolMemberAssignment.decode(BytesIO(assignment or b""))
        return tuple(sorted(TopicPartition(topic, number) for topic, numbers in found.assignment for number in numbers))
    except (ValueError, TypeError):  # also text that is no UTF-8
        return ()


# -- ConsumerGroupDescribe

_PROTOCOLS: Final = {0: "classic", 1: "consumer"}


def consumer_group_state(group: DescribedConsumerGroup) -> GroupState:
    """A group of the protocol of KIP-848."""
    members = tuple(
        GroupMember(
            one.member_id,
            one.instance_id,
            one.client_id,
            one.client_host.lstrip("/"),
            _places(one.assignment),
            one.member_epoch,
            _places(one.target_assignment),
            _PROTOCOLS.get(one.member_type),
        )
        for one in group.members
    )
    return GroupState(
        group.group_state, "consumer", members, group.group_epoch, group.assignment_epoch, group.assignor_name
    )


def _places(assignment: DescribedAssignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, number)
            for topic in assignment.topic_partitions
            for number in topic.partitions
        )
    )


# -- OffsetFetch

_OffsetFetch_v7 = request_class(
    "OffsetFetch",
    9,
    7,
    request="group_id:string topics:[ topic:string partitions:[]int32 ] require_stable:bool",
    response=(
        "throttle_time_ms:int32 topics:[ topic:string partitions:[ partition:int32 offset:int64 leader_epoch:int32 "
        "metadata:string error_code:int16 ] ] error_code:int16"
    ),
)


def stable_offsets_request(group: str, partitions: Collection[TopicPartition]) -> OneVersion:
    """Committed offsets that no open transaction can change (KIP-447)."""
    topics: list[tuple[Any, ...]] = [(topic, numbers, {}) for topic, numbers in grouped(partitions).items()]
    return OneVersion(_OffsetFetch_v7, group, topics, True)
