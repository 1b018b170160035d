"""Metadata requests of versions 12 and 13; aiokafka ends at version 5.

Version 12 contains topic ids and leader epochs (KIP-320, KIP-516). Version 13 tells a client to rebootstrap
(REBOOTSTRAP_REQUIRED, KIP-1102). Older brokers get aiokafka's versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from aiokafka.protocol.metadata import MetadataRequest

from aioparallel.clients.aiokafka.message_classes import OneVersion, request_class, supports
from aioparallel.records.error_codes import ErrorCode

__all__ = ["Metadata", "cluster_id_of", "error_of", "topic_ids_request", "topic_names_request"]

_NO_ID: Final = bytes(16)
"""The id in a request for a topic by its name."""
_REQUEST: Final = (
    "topics:[ topic_id:uuid topic:string ] allow_auto_topic_creation:bool include_topic_authorized_operations:bool"
)
_BROKERS: Final = "[ node_id:int32 host:string port:int32 rack:string ]"
_TOPICS: Final = (
    "[ error_code:int16 topic:string topic_id:uuid is_internal:bool "
    "partitions:[ error_code:int16 partition:int32 leader:int32 leader_epoch:int32 "
    "replicas:[]int32 isr:[]int32 offline_replicas:[]int32 ] topic_authorized_operations:int32 ]"
)


class _AsVersion5:
    """``brokers`` and ``topics`` in the shape of version 5, which aiokafka's cluster metadata reads."""

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


_Metadata_v12 = request_class(
    "Metadata",
    3,
    12,
    request=_REQUEST,
    response=(f"throttle_time_ms:int32 brokers:{_BROKERS} cluster_id:string controller_id:int32 topics:{_TOPICS}"),
)
_Metadata_v13 = request_class(
    "Metadata",
    3,
    13,
    request=_REQUEST,
    response=(
        f"throttle_time_ms:int32 all_brokers:{_BROKERS} cluster_id:string controller_id:int32 all_topics:{_TOPICS} "
        "error_code:int16"
    ),
    response_base=_AsVersion5,
)


class Metadata(MetadataRequest):  # type: ignore[misc]
    """Requests these topics, or all for None. Creates none."""

    def __init__(self, topics: list[str] | None) -> None:
        super().__init__(topics, allow_auto_topic_creation=False)

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        if not supports(versions, _Metadata_v13):
            return super().prepare(dict(versions))
        topics: Any = None if self._topics is None else [(_NO_ID, topic, {}) for topic in self._topics]
        return _Metadata_v13(topics, False, False, {})


def topic_ids_request(topics: Collection[str]) -> OneVersion:
    """Requests these topics with their ids and leader epochs. Brokers before Kafka 3.0 do not support it."""
    return OneVersion(_Metadata_v12, [(_NO_ID, topic, {}) for topic in topics], False, False)


def topic_names_request(topic_ids: Collection[bytes]) -> OneVersion:
    """Requests the topics that have these ids."""
    return OneVersion(_Metadata_v12, [(topic_id, None, {}) for topic_id in topic_ids], False, False)


def cluster_id_of(answer: object) -> str | None:
    """The id of the cluster; None for brokers before Kafka 0.10.1."""
    return getattr(answer, "cluster_id", None)


def error_of(answer: object) -> int:
    """The error code of the whole answer, which versions before 13 do not have."""
    return int(getattr(answer, "error_code", ErrorCode.NONE))
