"""Requests about groups, offsets and leader epochs in versions that aiokafka lacks.

OffsetCommit 6 to 10, OffsetFetch 5 and 10, Heartbeat 3 and 4, OffsetForLeaderEpoch 3 (the first for consumers). Each
request is built in a version that the broker supports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.protocol.group import HeartbeatRequest

from aioparallel.clients.aiokafka.message_classes import OneVersion, grouped, request_class, supports
from aioparallel.group.client import Committed
from aioparallel.records.record import TopicPartition

__all__ = ["CommitRequest", "Heartbeat", "OffsetFetch", "leader_epoch_ends_request"]


# -- OffsetCommit


def _commit_class(version: int, topic: str, member: str, *, is_flexible: bool) -> Any:
    return request_class(
        "OffsetCommit",
        8,
        version,
        request=(
            f"group_id:string generation_id:int32 {member} topics:[ {topic} partitions:[ partition:int32 offset:int64 "
            "leader_epoch:int32 metadata:string ] ]"
        ),
        response=f"throttle_time_ms:int32 topics:[ {topic} partitions:[ partition:int32 error_code:int16 ] ]",
        is_flexible=is_flexible,
    )


_WITH_INSTANCE = "member_id:string group_instance_id:string"
_Commit_v6 = _commit_class(6, "topic:string", "member_id:string", is_flexible=False)
_Commit_v7 = _commit_class(7, "topic:string", _WITH_INSTANCE, is_flexible=False)
_Commit_v8 = _commit_class(8, "topic:string", _WITH_INSTANCE, is_flexible=True)
_Commit_v9 = _commit_class(9, "topic:string", _WITH_INSTANCE, is_flexible=True)
_Commit_v10 = _commit_class(10, "topic_id:uuid", _WITH_INSTANCE, is_flexible=True)


class CommitRequest(NamedTuple):
    """OffsetCommit. Uses topic ids if the broker supports them and all positions have one, so that nothing is committed
    for another topic of the same name. The new group protocol requires version 9. ``older``: the
    request for brokers before Kafka 2.1."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    positions: Mapping[str, Collection[tuple[int, Committed]]]
    older: Any
    keeps_retention: bool = False
    """Whether the request sets the retention of offsets, which newer versions cannot."""

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """The request in the newest version that the broker supports, as aiokafka's connections call it."""
        member = self.group_id, self.generation_id, self.member_id
        if self.keeps_retention and versions.get(8, (0, 0))[0] < 5:
            return self.older.prepare(dict(versions))
        if supports(versions, _Commit_v10) and all(one.topic_id for some in self.positions.values() for _, one in some):
            return _Commit_v10(*member, self.instance_id, _topics(self._by_id(), {}), {})
        for flexible in (_Commit_v9, _Commit_v8):
            if supports(versions, flexible):
                return flexible(*member, self.instance_id, _topics(self.positions, {}), {})
        if supports(versions, _Commit_v7):
            return _Commit_v7(*member, self.instance_id, _topics(self.positions))
        if supports(versions, _Commit_v6):
            return _Commit_v6(*member, _topics(self.positions))
        return self.older.prepare(dict(versions))

    def _by_id(self) -> Mapping[bytes, Collection[tuple[int, Committed]]]:
        """Positions by topic id. Positions of one topic name may have different ids, if the topic was recreated."""
        return grouped((one.topic_id, (number, one)) for some in self.positions.values() for number, one in some)

    def results(self, answer: Any) -> dict[TopicPartition, int]:
        """The error code of each partition."""
        names = {one.topic_id: topic for topic, some in self.positions.items() for _, one in some}
        return {
            TopicPartition(names.get(entry[0], entry[0]), result[0]): result[1]
            for entry in answer.topics
            for result in entry[1]
        }


def _topics(
    positions: Mapping[Any, Collection[tuple[int, Committed]]], *tags: Mapping[int, bytes]
) -> list[tuple[Any, ...]]:
    """Positions in the form of the requests, by name or id. ``tags``: one value in flexible versions."""
    return [
        (name, [(number, one.offset, one.leader_epoch, one.metadata, *tags) for number, one in some], *tags)
        for name, some in positions.items()
    ]


# -- OffsetFetch

_FETCHED = "partitions:[ partition:int32 offset:int64 leader_epoch:int32 metadata:string error_code:int16 ]"
_OffsetFetch_v5 = request_class(
    "OffsetFetch",
    9,
    5,
    request="group_id:string topics:[ topic:string partitions:[]int32 ]",
    response=f"throttle_time_ms:int32 topics:[ topic:string {_FETCHED} ] error_code:int16",
    is_flexible=False,
)
_OffsetFetch_v10 = request_class(
    "OffsetFetch",
    9,
    10,
    request=(
        "groups:[ group_id:string member_id:string member_epoch:int32 topics:[ topic_id:uuid partitions:[]int32 ] ] "
        "require_stable:bool"
    ),
    response=(
        f"throttle_time_ms:int32 groups:[ group_id:string topics:[ topic_id:uuid {_FETCHED} ] error_code:int16 ]"
    ),
)

Fetched = tuple[int, list[tuple[TopicPartition, int, int, str | None, int]]]
"""The group's error code; and offset, leader epoch, metadata and error code of each partition."""


class OffsetFetch(NamedTuple):
    """OffsetFetch with leader epochs. Uses topic ids if the broker supports them and all are known, so that offsets of
    another topic of the same name are not found. ``older``: the request for brokers before Kafka 2.1, without
    either."""

    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]]
    ids: Mapping[str, bytes]
    older: Any

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """The request in the newest version that the broker supports."""
        if supports(versions, _OffsetFetch_v10) and all(topic in self.ids for topic, _ in self.topics):
            topics: list[tuple[Any, ...]] = [(self.ids[topic], list(numbers), {}) for topic, numbers in self.topics]
            return _OffsetFetch_v10([(self.group_id, None, -1, topics, {})], False, {})
        if supports(versions, _OffsetFetch_v5):
            return _OffsetFetch_v5(self.group_id, self.topics)
        return self.older.prepare(dict(versions))

    def results(self, answer: Any) -> Fetched:
        """The content of the answer."""
        if answer.API_VERSION >= 10:
            names = {found: topic for topic, found in self.ids.items()}
            (group,) = answer.groups
            return group[2], [
                (TopicPartition(names[entry[0]], number), *fields[:4])
                for entry in group[1]
                if entry[0] in names
                for number, *fields in entry[1]
            ]
        code = answer.error_code if answer.API_VERSION >= 2 else 0
        return code, [
            (TopicPartition(topic, number), offset, epoch[0] if epoch else -1, metadata, error)
            for topic, partitions in answer.topics
            for number, offset, *epoch, metadata, error in partitions
        ]


# -- Heartbeat


def _heartbeat_class(version: int, *, is_flexible: bool) -> Any:
    return request_class(
        "Heartbeat",
        12,
        version,
        request=f"group:string generation_id:int32 {_WITH_INSTANCE}",
        response="throttle_time_ms:int32 error_code:int16",
        is_flexible=is_flexible,
    )


_Heartbeat_v3 = _heartbeat_class(3, is_flexible=False)
_Heartbeat_v4 = _heartbeat_class(4, is_flexible=True)


class Heartbeat(NamedTuple):
    """A heartbeat with the member's ``group.instance.id`` (KIP-345). aiokafka ends at version 1. Brokers before Kafka
    2.3 get it without the id."""

    group: str
    generation_id: int
    member_id: str
    instance_id: str

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """The request in the newest version that the broker supports."""
        if supports(versions, _Heartbeat_v4):
            return _Heartbeat_v4(*self, {})
        if supports(versions, _Heartbeat_v3):
            return _Heartbeat_v3(*self)
        return HeartbeatRequest(*self[:3]).prepare(dict(versions))


# -- OffsetForLeaderEpoch

_EpochEnds_v3 = request_class(
    "OffsetForLeaderEpoch",
    23,
    3,
    request=(
        "replica_id:int32 topics:[ topic:string partitions:[ partition:int32 current_leader_epoch:int32 "
        "leader_epoch:int32 ] ]"
    ),
    response=(
        "throttle_time_ms:int32 topics:[ topic:string partitions:[ error_code:int16 partition:int32 "
        "leader_epoch:int32 end_offset:int64 ] ]"
    ),
    is_flexible=False,
)


def leader_epoch_ends_request(epochs: Mapping[str, Collection[tuple[int, int]]]) -> OneVersion:
    """Queries where the records of leader epochs end. ``epochs``: partition and epoch by topic. Brokers before Kafka
    2.3 do not support it."""
    topics = [(topic, [(number, -1, epoch) for number, epoch in some]) for topic, some in epochs.items()]
    return OneVersion(_EpochEnds_v3, -1, topics)
