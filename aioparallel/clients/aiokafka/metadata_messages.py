"""Metadata requests of versions 12 and 13; aiokafka ends at version 5.

Version 12 contains topic ids and leader epochs (KIP-320, KIP-516). Version 13 tells a client to rebootstrap
(REBOOTSTRAP_REQUIRED, KIP-1102). Older brokers get aiokafka's versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple, cast

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from aioparallel.clients.aiokafka.internals import MetadataAnswer
from aioparallel.clients.aiokafka.message_classes import request_class
from aioparallel.records.error_codes import ErrorCode

__all__ = ["Metadata", "TopicIds", "Uuid", "cluster_id_of", "error_of"]

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_NO_TAGS: Final[dict[int, bytes]] = {}
_NO_ID: Final = bytes(16)
"""The id in a request for a topic by its name."""


class Uuid(AbstractType[bytes]):  # type: ignore[misc]
    """16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return the bytes unchanged."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Read 16 bytes. Raises ValueError if there are fewer."""
        found = data.read(16)
        if len(found) != 16:
            raise ValueError("Buffer underrun decoding UUID")
        return found


_BROKERS: Final = CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)
_TOPICS: Final = CompactArray(
    ("error_code", Int16),
    ("topic", _TEXT),
    ("topic_id", Uuid),
    ("is_internal", Boolean),
    (
        "partitions",
        CompactArray(
            ("error_code", Int16),
            ("partition", Int32),
            ("leader", Int32),
            ("leader_epoch", Int32),
            ("replicas", CompactArray(Int32)),
            ("isr", CompactArray(Int32)),
            ("offline_replicas", CompactArray(Int32)),
            _TAGS,
        ),
    ),
    ("topic_authorized_operations", Int32),
    _TAGS,
)


class _MetadataResponse_v13(Response):  # type: ignore[misc]  # noqa: N801
    """``brokers`` and ``topics`` have the shape of version 5, which aiokafka's cluster metadata reads."""

    API_KEY = 3
    API_VERSION = 13
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("all_brokers", _BROKERS),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("all_topics", _TOPICS),
        ("error_code", Int16),
        _TAGS,
    )

    all_brokers: list[tuple[Any, ...]]
    all_topics: list[tuple[Any, ...]]

    @property
    def brokers(self) -> list[tuple[Any, ...]]:
        return [(node, host, port, rack) for node, host, port, rack, _ in self.all_brokers]

    @property
    def topics(self) -> list[tuple[Any, ...]]:
        return [
            (
                code,
                topic,
                internal,
                [(error, number, leader, *rest[:3]) for error, number, leader, _epoch, *rest in partitions],
            )
            for code, topic, _id, internal, partitions, _operations, _tags in self.all_topics
        ]


_MetadataRequest_v12 = request_class(
    "Metadata",
    api_key=3,
    version=12,
    request=Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("topic", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    ),
    response=Schema(
        ("throttle_time_ms", Int32),
        ("brokers", _BROKERS),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("topics", _TOPICS),
        _TAGS,
    ),
)


class _MetadataRequest_v13(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 3
    API_VERSION = 13
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse_v13
    SCHEMA = _MetadataRequest_v12.SCHEMA


class Metadata(MetadataRequest):  # type: ignore[misc]
    """Requests these topics, or all for None. Creates none."""

    def __init__(self, topics: list[str] | None) -> None:
        super().__init__(topics, allow_auto_topic_creation=False)

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """The request in the newest version that the broker supports."""
        least, most = versions.get(_MetadataRequest_v13.API_KEY, (0, 0))
        if not least <= _MetadataRequest_v13.API_VERSION <= most:
            return super().prepare(dict(versions))
        topics = None if self._topics is None else [(_NO_ID, topic, _NO_TAGS) for topic in self._topics]
        return _MetadataRequest_v13(topics, False, False, _NO_TAGS)


class TopicIds(NamedTuple):
    """Requests these topics with their ids and leader epochs. Raises IncompatibleBrokerVersion for brokers before Kafka
    3.0."""

    topics: Collection[str]

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """The request."""
        least, most = versions.get(_MetadataRequest_v12.API_KEY, (0, 0))
        if not least <= _MetadataRequest_v12.API_VERSION <= most:
            raise IncompatibleBrokerVersion("Metadata 12")
        return _MetadataRequest_v12([(_NO_ID, topic, _NO_TAGS) for topic in self.topics], False, False, _NO_TAGS)


def cluster_id_of(answer: MetadataAnswer) -> str | None:
    """The id of the cluster; None for brokers before Kafka 0.10.1."""
    return cast("str | None", getattr(answer, "cluster_id", None))


def error_of(answer: MetadataAnswer) -> int:
    """The error code of the whole answer, which versions before 13 do not have."""
    return int(getattr(answer, "error_code", ErrorCode.NONE))
