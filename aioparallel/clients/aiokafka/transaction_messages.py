"""Requests of Kafka transactions that aiokafka lacks, for ``transaction.version`` 2.

From Kafka's message definitions: Produce 12, InitProducerId 5, TxnOffsetCommit 5, EndTxn 5, OffsetFetch 7, ApiVersions
3. Newer versions of Produce and OffsetFetch identify topics by ids, which aiokafka does not have. All versions are
flexible. Tagged fields are read, but never written, because aiokafka writes them incorrectly.
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

from aioparallel.clients.aiokafka.message_classes import request_class

__all__ = ["ApiVersions", "EndTxn", "InitProducerId", "OffsetFetch", "Produce", "TxnOffsetCommit", "finalized_features"]

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_NO_TAGS: dict[int, bytes] = {}


def _by_partition(*fields: tuple[str, object]) -> tuple[str, object]:
    """Topics with their partitions, which have these fields."""
    return "topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(*fields, _TAGS)), _TAGS)


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
        """Decode the header, which has version 0 in every version: a client may not know flexible ones."""
        return ResponseHeader_v0.decode(read_buffer)


_FEATURES = CompactArray(("name", _TEXT), ("most", Int16), ("least", Int16), _TAGS)


def finalized_features(tags: Mapping[int, bytes]) -> dict[str, int]:
    """The finalized features of the cluster with their levels, from the tagged fields of an ApiVersions answer."""
    if 2 not in tags:
        return {}
    found = cast("list[tuple[str, int, int, object]]", _FEATURES.decode(BytesIO(tags[2])) or [])
    return {name: most for name, most, _least, _tags in found}


class _Message:
    """A request in a single version. aiokafka's connections only call :meth:`prepare`."""

    STRUCT: ClassVar[type[Any]]

    def __init__(self, *fields: object) -> None:
        self._fields = fields

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """The request. Raises IncompatibleBrokerVersion if the broker does not support its version."""
        struct = self.STRUCT
        least, most = versions.get(struct.API_KEY, (0, -1))
        if not least <= struct.API_VERSION <= most:
            name = type(self).__name__
            raise IncompatibleBrokerVersion(f"{name} {struct.API_VERSION}: this broker supports {least} to {most}")
        return struct(*self._fields, _NO_TAGS)


class Produce(_Message):
    """Transactional id, acks, timeout in milliseconds, topics."""

    STRUCT = request_class(
        "Produce",
        api_key=0,
        version=12,
        request=Schema(
            ("transactional_id", _TEXT),
            ("acks", Int16),
            ("timeout_ms", Int32),
            _by_partition(("partition", Int32), ("records", CompactBytes)),
            _TAGS,
        ),
        response=Schema(
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
        ),
    )


class InitProducerId(_Message):
    """Transactional id, transaction timeout in milliseconds, known producer id and epoch or -1."""

    STRUCT = request_class(
        "InitProducerId",
        api_key=22,
        version=5,
        request=Schema(
            ("transactional_id", _TEXT),
            ("transaction_timeout_ms", Int32),
            ("producer_id", Int64),
            ("producer_epoch", Int16),
            _TAGS,
        ),
        response=Schema(
            ("throttle_time_ms", Int32),
            ("error_code", Int16),
            ("producer_id", Int64),
            ("producer_epoch", Int16),
            _TAGS,
        ),
    )


class TxnOffsetCommit(_Message):
    """Transactional id, group, producer id, epoch, generation, member, instance, topics."""

    STRUCT = request_class(
        "TxnOffsetCommit",
        api_key=28,
        version=5,
        request=Schema(
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
        ),
        response=Schema(
            ("throttle_time_ms", Int32),
            _by_partition(("partition", Int32), ("error_code", Int16)),
            _TAGS,
        ),
    )


class EndTxn(_Message):
    """Transactional id, producer id, epoch, whether to commit."""

    STRUCT = request_class(
        "EndTxn",
        api_key=26,
        version=5,
        request=Schema(
            ("transactional_id", _TEXT),
            ("producer_id", Int64),
            ("producer_epoch", Int16),
            ("committed", Boolean),
            _TAGS,
        ),
        response=InitProducerId.STRUCT.RESPONSE_TYPE.SCHEMA,
    )


class OffsetFetch(_Message):
    """Group, topics, whether only stable offsets count."""

    STRUCT = request_class(
        "OffsetFetch",
        api_key=9,
        version=7,
        request=Schema(
            ("group_id", _TEXT),
            ("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
            ("require_stable", Boolean),
            _TAGS,
        ),
        response=Schema(
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
        ),
    )


class ApiVersions(_Message):
    """Name and version of this software."""

    STRUCT = _ApiVersionsRequest
