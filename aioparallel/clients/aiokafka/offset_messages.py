"""The messages about offsets, leader epochs and topic ids that aiokafka does not know.

From Kafka's message definitions: OffsetCommit 6 to 10, OffsetFetch 5, OffsetForLeaderEpoch 3 (the first that consumers
may ask), Metadata 12. Each is built for what the broker offers; a tagged field is never written, only read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import RequestStruct, Response
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

from aioparallel.group.client import Committed
from aioparallel.records import TopicPartition

__all__ = ["CommitRequest", "OffsetFetch", "OffsetForLeaderEpoch", "TopicIds"]

_TEXT = String("utf-8")
_COMPACT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)


class _Uuid(AbstractType):  # type: ignore[misc]
    """16 bytes, as they are."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        found = data.read(16)
        if len(found) != 16:
            raise ValueError("Buffer underrun decoding UUID")
        return found


# -- OffsetCommit ---------------------------------------------------------------------------------------

_POSITION = (("partition", Int32), ("offset", Int64), ("leader_epoch", Int32))
_RESULT = (("partition", Int32), ("error_code", Int16))


class _CommitResponse_v7(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka names them
    API_KEY = 8
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(*_RESULT)))),
    )


class _CommitRequest_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 8
    API_VERSION = 7
    RESPONSE_TYPE = _CommitResponse_v7
    SCHEMA = Schema(
        ("group_id", _TEXT),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(*_POSITION, ("metadata", _TEXT))))),
    )


class _CommitResponse_v6(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 8
    API_VERSION = 6
    SCHEMA = _CommitResponse_v7.SCHEMA


class _CommitRequest_v6(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 8
    API_VERSION = 6
    RESPONSE_TYPE = _CommitResponse_v6
    SCHEMA = Schema(
        ("group_id", _TEXT),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(*_POSITION, ("metadata", _TEXT))))),
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


class _CommitResponse_v8(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 8
    API_VERSION = 8
    SCHEMA = _flexible_answer(("topic", _COMPACT))


class _CommitRequest_v8(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 8
    API_VERSION = 8
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _CommitResponse_v8
    SCHEMA = _flexible_commit(("topic", _COMPACT))


class _CommitResponse_v10(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 8
    API_VERSION = 10
    SCHEMA = _flexible_answer(("topic_id", _Uuid))


class _CommitRequest_v10(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 8
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _CommitResponse_v10
    SCHEMA = _flexible_commit(("topic_id", _Uuid))


class CommitRequest(NamedTuple):
    """OffsetCommit: by the topic ids of the positions where the broker takes that and all have one, so that nothing is
    committed for another topic of the same name. ``older``: what is sent to brokers before Kafka 2.1."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    positions: Mapping[str, Collection[tuple[int, Committed]]]
    older: Any
    keeps_retention: bool = False
    """Whether it says how long offsets are kept, which newer versions cannot."""

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """What is sent to a broker with these versions of each kind: all that aiokafka's connections ask for."""
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
        """Some of one name may be of the topic before still."""
        found: defaultdict[bytes, list[tuple[int, Committed]]] = defaultdict(list)
        for some in self.positions.values():
            for number, one in some:
                found[one.topic_id].append((number, one))
        return found

    def results(self, answer: Any) -> dict[TopicPartition, int]:
        """Its error code for each partition."""
        names = {one.topic_id: topic for topic, some in self.positions.items() for _, one in some}
        return {
            TopicPartition(names.get(entry[0], entry[0]), result[0]): result[1]
            for entry in answer.topics
            for result in entry[1]
        }


def _topics(
    positions: Mapping[Any, Collection[tuple[int, Committed]]], *tags: Mapping[int, bytes]
) -> list[tuple[Any, ...]]:
    """By names or ids. ``tags``: one in flexible versions."""
    return [
        (
            name,
            [(number, one.offset, one.leader_epoch, one.metadata, *tags) for number, one in some],
            *tags,
        )
        for name, some in positions.items()
    ]


# -- OffsetFetch ----------------------------------------------------------------------------------------


class _FetchResponse_v5(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 9
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", _TEXT),
                ("partitions", Array(*_POSITION, ("metadata", _TEXT), ("error_code", Int16))),
            ),
        ),
        ("error_code", Int16),
    )


class _FetchRequest_v5(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 9
    API_VERSION = 5
    RESPONSE_TYPE = _FetchResponse_v5
    SCHEMA = Schema(
        ("group_id", _TEXT),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(Int32)))),
    )


class _FetchResponse_v10(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 9
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("group_id", _COMPACT),
                (
                    "topics",
                    CompactArray(
                        ("topic_id", _Uuid),
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
    )


class _FetchRequest_v10(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 9
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _FetchResponse_v10
    SCHEMA = Schema(
        (
            "groups",
            CompactArray(
                ("group_id", _COMPACT),
                ("member_id", _COMPACT),
                ("member_epoch", Int32),
                ("topics", CompactArray(("topic_id", _Uuid), ("partitions", CompactArray(Int32)), _TAGS)),
                _TAGS,
            ),
        ),
        ("require_stable", Boolean),
        _TAGS,
    )


Fetched = tuple[int, list[tuple[TopicPartition, int, int, str | None, int]]]
"""The group's error code; and of each partition offset, leader epoch, metadata and error code."""


class OffsetFetch(NamedTuple):
    """OffsetFetch, with leader epochs; of topics by their ids where the broker takes that and all are known, so that
    nothing is found that was committed for another topic of the same name. ``older``: what is sent to brokers before
    Kafka 2.1, which tell neither."""

    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]]
    ids: Mapping[str, bytes]
    older: Any

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """See :meth:`CommitRequest.prepare`."""
        least, most = versions.get(9, (0, 0))
        if most >= 10 and all(topic in self.ids for topic, _ in self.topics):
            topics: list[tuple[Any, ...]] = [(self.ids[topic], list(numbers), {}) for topic, numbers in self.topics]
            return _FetchRequest_v10([(self.group_id, None, -1, topics, {})], False, {})
        if least <= 5 <= most:
            return _FetchRequest_v5(self.group_id, self.topics)
        return self.older.prepare(dict(versions))

    def results(self, answer: Any) -> Fetched:
        """What it tells."""
        if answer.API_VERSION >= 10:
            names = {found: topic for topic, found in self.ids.items()}
            (group,) = answer.groups
            return group[2], [
                (TopicPartition(names[entry[0]], number), *told[:4])
                for entry in group[1]
                if entry[0] in names
                for number, *told in entry[1]
            ]
        code = answer.error_code if answer.API_VERSION >= 2 else 0
        return code, [
            (TopicPartition(topic, number), offset, epoch[0] if epoch else -1, metadata, error)
            for topic, partitions in answer.topics
            for number, offset, *epoch, metadata, error in partitions
        ]


# -- OffsetForLeaderEpoch -------------------------------------------------------------------------------


class _EpochResponse_v3(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 23
    API_VERSION = 3
    SCHEMA = Schema(
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
    )


class _EpochRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = _EpochResponse_v3
    SCHEMA = Schema(
        ("replica_id", Int32),
        (
            "topics",
            Array(
                ("topic", _TEXT),
                ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("leader_epoch", Int32))),
            ),
        ),
    )


class OffsetForLeaderEpoch(NamedTuple):
    """Where the records of leader epochs end. Raises IncompatibleBrokerVersion for brokers before Kafka 2.3."""

    epochs: Mapping[str, Collection[tuple[int, int]]]

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """See :meth:`CommitRequest.prepare`."""
        least, most = versions.get(23, (0, 0))
        if not least <= 3 <= most:
            raise IncompatibleBrokerVersion("OffsetForLeaderEpoch 3")
        topics = [(topic, [(number, -1, epoch) for number, epoch in some]) for topic, some in self.epochs.items()]
        return _EpochRequest_v3(-1, topics)


# -- Metadata -------------------------------------------------------------------------------------------


class _MetadataResponse_v12(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", _COMPACT), ("port", Int32), ("rack", _COMPACT), _TAGS)),
        ("cluster_id", _COMPACT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _COMPACT),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("in_sync", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class _MetadataRequest_v12(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse_v12
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", _COMPACT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        _TAGS,
    )


class TopicIds(NamedTuple):
    """Metadata of these topics, with their ids. Raises IncompatibleBrokerVersion for brokers before Kafka 3.0."""

    topics: Collection[str]

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """See :meth:`CommitRequest.prepare`."""
        least, most = versions.get(3, (0, 0))
        if not least <= 12 <= most:
            raise IncompatibleBrokerVersion("Metadata 12")
        return _MetadataRequest_v12([(bytes(16), topic, {}) for topic in self.topics], False, False, {})
