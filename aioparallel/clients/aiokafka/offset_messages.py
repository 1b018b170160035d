"""Requests about offsets and leader epochs in versions that aiokafka lacks.

From Kafka's message definitions: OffsetCommit 6 to 10, OffsetFetch 5 and 10, OffsetForLeaderEpoch 3 (the first for
consumers). Each request is built in a version that the broker supports. Tagged fields are read, but never written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from aioparallel.clients.aiokafka.message_classes import request_class
from aioparallel.clients.aiokafka.metadata_messages import Uuid
from aioparallel.group.client import Committed
from aioparallel.records.record import TopicPartition

__all__ = ["CommitRequest", "OffsetFetch", "OffsetForLeaderEpoch"]

_TEXT = String("utf-8")
_COMPACT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)


# -- OffsetCommit

_POSITION = (("partition", Int32), ("offset", Int64), ("leader_epoch", Int32))
_RESULT = (("partition", Int32), ("error_code", Int16))


_CommitRequest_v7 = request_class(
    "OffsetCommit",
    api_key=8,
    version=7,
    request=Schema(
        ("group_id", _TEXT),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(*_POSITION, ("metadata", _TEXT))))),
    ),
    response=Schema(
        ("throttle_time_ms", Int32),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(*_RESULT)))),
    ),
    is_flexible=False,
)


_CommitRequest_v6 = request_class(
    "OffsetCommit",
    api_key=8,
    version=6,
    request=Schema(
        ("group_id", _TEXT),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(*_POSITION, ("metadata", _TEXT))))),
    ),
    response=_CommitRequest_v7.RESPONSE_TYPE.SCHEMA,
    is_flexible=False,
)


def _flexible_answer(topic: tuple[str, object]) -> Schema:
    return Schema(
        ("throttle_time_ms", Int32),
        ("topics", CompactArray(topic, ("partitions", CompactArray(*_RESULT, _TAGS)), _TAGS)),
        _TAGS,
    )


def _flexible_commit(topic: tuple[str, object]) -> Schema:
    positions = CompactArray(*_POSITION, ("metadata", _COMPACT), _TAGS)
    return Schema(
        ("group_id", _COMPACT),
        ("generation_id", Int32),
        ("member_id", _COMPACT),
        ("group_instance_id", _COMPACT),
        ("topics", CompactArray(topic, ("partitions", positions), _TAGS)),
        _TAGS,
    )


_CommitRequest_v8 = request_class(
    "OffsetCommit",
    api_key=8,
    version=8,
    request=_flexible_commit(("topic", _COMPACT)),
    response=_flexible_answer(("topic", _COMPACT)),
)


_CommitRequest_v10 = request_class(
    "OffsetCommit",
    api_key=8,
    version=10,
    request=_flexible_commit(("topic_id", Uuid)),
    response=_flexible_answer(("topic_id", Uuid)),
)


class CommitRequest(NamedTuple):
    """OffsetCommit. Uses topic ids if the broker supports them and all positions have one, so that nothing is committed
    for another topic of the same name. ``older``: the request for brokers before Kafka 2.1."""

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
        least, most = versions.get(8, (0, 0))
        if self.keeps_retention and least < 5:
            most = 0
        member = self.group_id, self.generation_id, self.member_id
        if most >= 10 and all(one.topic_id for some in self.positions.values() for _, one in some):
            return _CommitRequest_v10(*member, self.instance_id, _topics(self._by_id(), {}), {})
        if most >= 8:
            return _CommitRequest_v8(*member, self.instance_id, _topics(self.positions, {}), {})
        if most >= 7:
            return _CommitRequest_v7(*member, self.instance_id, _topics(self.positions))
        if most >= 6:
            return _CommitRequest_v6(*member, _topics(self.positions))
        return self.older.prepare(dict(versions))

    def _by_id(self) -> Mapping[bytes, Collection[tuple[int, Committed]]]:
        """Positions by topic id. Positions of one topic name may have different ids, if the topic was recreated."""
        found: defaultdict[bytes, list[tuple[int, Committed]]] = defaultdict(list)
        for some in self.positions.values():
            for number, one in some:
                found[one.topic_id].append((number, one))
        return found

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
        (
            name,
            [(number, one.offset, one.leader_epoch, one.metadata, *tags) for number, one in some],
            *tags,
        )
        for name, some in positions.items()
    ]


# -- OffsetFetch


_FetchRequest_v5 = request_class(
    "OffsetFetch",
    api_key=9,
    version=5,
    request=Schema(
        ("group_id", _TEXT),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(Int32)))),
    ),
    response=Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", _TEXT),
                ("partitions", Array(*_POSITION, ("metadata", _TEXT), ("error_code", Int16))),
            ),
        ),
        ("error_code", Int16),
    ),
    is_flexible=False,
)


_FetchRequest_v10 = request_class(
    "OffsetFetch",
    api_key=9,
    version=10,
    request=Schema(
        (
            "groups",
            CompactArray(
                ("group_id", _COMPACT),
                ("member_id", _COMPACT),
                ("member_epoch", Int32),
                ("topics", CompactArray(("topic_id", Uuid), ("partitions", CompactArray(Int32)), _TAGS)),
                _TAGS,
            ),
        ),
        ("require_stable", Boolean),
        _TAGS,
    ),
    response=Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("group_id", _COMPACT),
                (
                    "topics",
                    CompactArray(
                        ("topic_id", Uuid),
                        (
                            "partitions",
                            CompactArray(*_POSITION, ("metadata", _COMPACT), ("error_code", Int16), _TAGS),
                        ),
                        _TAGS,
                    ),
                ),
                ("error_code", Int16),
                _TAGS,
            ),
        ),
        _TAGS,
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
        least, most = versions.get(9, (0, 0))
        if most >= 10 and all(topic in self.ids for topic, _ in self.topics):
            topics: list[tuple[Any, ...]] = [(self.ids[topic], list(numbers), {}) for topic, numbers in self.topics]
            return _FetchRequest_v10([(self.group_id, None, -1, topics, {})], False, {})
        if least <= 5 <= most:
            return _FetchRequest_v5(self.group_id, self.topics)
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


# -- OffsetForLeaderEpoch


_EpochRequest_v3 = request_class(
    "OffsetForLeaderEpoch",
    api_key=23,
    version=3,
    request=Schema(
        ("replica_id", Int32),
        (
            "topics",
            Array(
                ("topic", _TEXT),
                ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("leader_epoch", Int32))),
            ),
        ),
    ),
    response=Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", _TEXT),
                (
                    "partitions",
                    Array(("error_code", Int16), ("partition", Int32), ("leader_epoch", Int32), ("end_offset", Int64)),
                ),
            ),
        ),
    ),
    is_flexible=False,
)


class OffsetForLeaderEpoch(NamedTuple):
    """Queries where the records of leader epochs end. Raises IncompatibleBrokerVersion for brokers before Kafka 2.3."""

    epochs: Mapping[str, Collection[tuple[int, int]]]

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """The request in the newest version that the broker supports."""
        least, most = versions.get(23, (0, 0))
        if not least <= 3 <= most:
            raise IncompatibleBrokerVersion("OffsetForLeaderEpoch 3")
        topics = [(topic, [(number, -1, epoch) for number, epoch in some]) for topic, some in self.epochs.items()]
        return _EpochRequest_v3(-1, topics)
