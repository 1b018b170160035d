"""The messages of Kafka's transactions that aiokafka does not know, as they go with ``transaction.version`` 2.

From Kafka's message definitions: Produce 12, InitProducerId 5, TxnOffsetCommit 5, EndTxn 5, OffsetFetch 7, ApiVersions
3. The newest of Produce and OffsetFetch name topics by ids, which aiokafka does not have. All are of flexible versions;
a tagged field is never written (aiokafka writes those wrong), only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, ClassVar, cast

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

__all__ = ["ApiVersions", "EndTxn", "InitProducerId", "OffsetFetch", "Produce", "TxnOffsetCommit", "finalized_features"]

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_NO_TAGS: dict[int, bytes] = {}


def _by_partition(*fields: tuple[str, object]) -> tuple[str, object]:
    """Topics, and of each its partitions with these fields."""
    return "topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(*fields, _TAGS)), _TAGS)


class _ProduceResponse(Response):  # type: ignore[misc]
    API_KEY = 0
    API_VERSION = 12
    SCHEMA = Schema(
        _by_partition(
            ("partition", Int32),
            ("error_code", Int16),
            ("offset", Int64),
            ("timestamp", Int64),
            ("log_start_offset", Int64),
            ("record_errors", CompactArray(("batch_index", Int32), ("message", _TEXT), _TAGS)),
            ("error_message", _TEXT),
        ),
        ("throttle_time_ms", Int32),
        _TAGS,
    )


class _ProduceRequest(RequestStruct):  # type: ignore[misc]
    API_KEY = 0
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _ProduceResponse
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("acks", Int16),
        ("timeout_ms", Int32),
        _by_partition(("partition", Int32), ("records", CompactBytes)),
        _TAGS,
    )


class _InitProducerIdResponse(Response):  # type: ignore[misc]
    API_KEY = 22
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        _TAGS,
    )


class _InitProducerIdRequest(RequestStruct):  # type: ignore[misc]
    API_KEY = 22
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _InitProducerIdResponse
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        _TAGS,
    )


class _TxnOffsetCommitResponse(Response):  # type: ignore[misc]
    API_KEY = 28
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        _by_partition(("partition", Int32), ("error_code", Int16)),
        _TAGS,
    )


class _TxnOffsetCommitRequest(RequestStruct):  # type: ignore[misc]
    API_KEY = 28
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _TxnOffsetCommitResponse
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("group_id", _TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
        _by_partition(
            ("partition", Int32),
            ("offset", Int64),
            ("leader_epoch", Int32),
            ("metadata", _TEXT),
        ),
        _TAGS,
    )


class _EndTxnResponse(Response):  # type: ignore[misc]
    API_KEY = 26
    API_VERSION = 5
    SCHEMA = _InitProducerIdResponse.SCHEMA


class _EndTxnRequest(RequestStruct):  # type: ignore[misc]
    API_KEY = 26
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _EndTxnResponse
    SCHEMA = Schema(
        ("transactional_id", _TEXT),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("committed", Boolean),
        _TAGS,
    )


class _OffsetFetchResponse(Response):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        _by_partition(
            ("partition", Int32),
            ("offset", Int64),
            ("leader_epoch", Int32),
            ("metadata", _TEXT),
            ("error_code", Int16),
        ),
        ("error_code", Int16),
        _TAGS,
    )


class _OffsetFetchRequest(RequestStruct):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _OffsetFetchResponse
    SCHEMA = Schema(
        ("group_id", _TEXT),
        ("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
        ("require_stable", Boolean),
        _TAGS,
    )


class _ApiVersionsResponse(Response):  # type: ignore[misc]
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        ("api_keys", CompactArray(("api_key", Int16), ("least", Int16), ("most", Int16), _TAGS)),
        ("throttle_time_ms", Int32),
        _TAGS,
    )


class _ApiVersionsRequest(RequestStruct):  # type: ignore[misc]
    API_KEY = 18
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _ApiVersionsResponse
    SCHEMA = Schema(("software_name", _TEXT), ("software_version", _TEXT), _TAGS)

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> object:
        """Its answer has the old header in every version: whoever asks may not know flexible ones."""
        return ResponseHeader_v0.decode(read_buffer)


_FEATURES = CompactArray(("name", _TEXT), ("most", Int16), ("least", Int16), _TAGS)


def finalized_features(tags: Mapping[int, bytes]) -> dict[str, int]:
    """The features that the cluster has agreed on, each with its level, from the tagged fields of an ApiVersions
    answer."""
    if 2 not in tags:
        return {}
    found = cast("list[tuple[str, int, int, object]]", _FEATURES.decode(BytesIO(tags[2])) or [])
    return {name: most for name, most, _least, _tags in found}


class _Message:
    """A request in its one version, as aiokafka's connections take it: they ask it for nothing but :meth:`prepare`."""

    STRUCT: ClassVar[type[Any]]

    def __init__(self, *fields: object) -> None:
        self._fields = fields

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """What is sent to a broker that takes these versions of each kind."""
        struct = self.STRUCT
        least, most = versions.get(struct.API_KEY, (0, -1))
        if not least <= struct.API_VERSION <= most:
            name = type(self).__name__
            raise IncompatibleBrokerVersion(f"{name} {struct.API_VERSION}: this broker takes {least} to {most}")
        return struct(*self._fields, _NO_TAGS)


class Produce(_Message):
    """Transactional id, acks, timeout in milliseconds, topics."""

    STRUCT = _ProduceRequest


class InitProducerId(_Message):
    """Transactional id, the transactions' timeout in milliseconds, own producer id and epoch or -1."""

    STRUCT = _InitProducerIdRequest


class TxnOffsetCommit(_Message):
    """Transactional id, group, producer id, epoch, generation, member, instance, topics."""

    STRUCT = _TxnOffsetCommitRequest


class EndTxn(_Message):
    """Transactional id, producer id, epoch, whether to commit."""

    STRUCT = _EndTxnRequest


class OffsetFetch(_Message):
    """Group, topics, whether only stable offsets count."""

    STRUCT = _OffsetFetchRequest


class ApiVersions(_Message):
    """Name and version of this software."""

    STRUCT = _ApiVersionsRequest
