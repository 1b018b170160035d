"""Asking for metadata in version 13, where aiokafka stops at 5: its answer says when a client is to begin again from
its configured addresses (REBOOTSTRAP_REQUIRED, KIP-1102). Of older brokers aiokafka's own versions are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, cast

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
from aioparallel.codes import ErrorCode

__all__ = ["Metadata", "cluster_id_of", "error_of"]

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_NO_TAGS: Final[dict[int, bytes]] = {}
_NO_ID: Final = bytes(16)
"""Of a topic that is asked for by its name."""


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]
    """16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


class _MetadataResponse(Response):  # type: ignore[misc]
    """``brokers``, ``topics``: in the shape of aiokafka's version 5, which its metadata is made of."""

    API_KEY = 3
    API_VERSION = 13
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "all_brokers",
            CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "all_topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("topic_id", _Uuid),
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
            ),
        ),
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


class _MetadataRequest(RequestStruct):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 13
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class Metadata(MetadataRequest):  # type: ignore[misc]
    """Of these topics; None: of all. Creates none."""

    def __init__(self, topics: list[str] | None) -> None:
        super().__init__(topics, allow_auto_topic_creation=False)

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """What is sent to a broker that takes these versions of each kind."""
        least, most = versions.get(_MetadataRequest.API_KEY, (0, 0))
        if not least <= _MetadataRequest.API_VERSION <= most:
            return super().prepare(dict(versions))
        topics = None if self._topics is None else [(_NO_ID, topic, _NO_TAGS) for topic in self._topics]
        return _MetadataRequest(topics, False, False, _NO_TAGS)


def cluster_id_of(answer: MetadataAnswer) -> str | None:
    """None of brokers before Kafka 0.10.1, which do not tell."""
    return cast("str | None", getattr(answer, "cluster_id", None))


def error_of(answer: MetadataAnswer) -> int:
    """Of the whole answer; versions before 13 have none."""
    return int(getattr(answer, "error_code", ErrorCode.NONE))
