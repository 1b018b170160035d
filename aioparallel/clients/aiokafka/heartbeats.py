"""Heartbeats that name the member's ``group.instance.id``: versions 3 and 4, where aiokafka stops at 1 (KIP-345)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.types import CompactString, Int16, Int32, Schema, String, TaggedFields

__all__ = ["Heartbeat"]

_TEXT = String("utf-8")
_COMPACT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)


class _HeartbeatResponse_v3(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka names them
    API_KEY = 12
    API_VERSION = 3
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))


class _HeartbeatRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 12
    API_VERSION = 3
    RESPONSE_TYPE = _HeartbeatResponse_v3
    SCHEMA = Schema(
        ("group", _TEXT),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
    )


class _HeartbeatResponse_v4(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 12
    API_VERSION = 4
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16), _TAGS)


class _HeartbeatRequest_v4(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 12
    API_VERSION = 4
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _HeartbeatResponse_v4
    SCHEMA = Schema(
        ("group", _COMPACT),
        ("generation_id", Int32),
        ("member_id", _COMPACT),
        ("group_instance_id", _COMPACT),
        _TAGS,
    )


_NEWEST_FIRST: Final[tuple[tuple[type[Any], tuple[object, ...]], ...]] = (
    (_HeartbeatRequest_v4, ({},)),
    (_HeartbeatRequest_v3, ()),
)
"""And what ends each."""


class Heartbeat:
    """Group, generation, member, and the instance id, which brokers before Kafka 2.3 are not told."""

    def __init__(self, group: str, generation: int, member_id: str, instance_id: str) -> None:
        self._plain = group, generation, member_id
        self._instance_id = instance_id

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """What is sent to a broker that takes these versions of each kind: all that aiokafka's connections ask for."""
        least, most = versions.get(HeartbeatRequest.API_KEY, (0, -1))
        for struct, end in _NEWEST_FIRST:
            if least <= struct.API_VERSION <= most:
                return struct(*self._plain, self._instance_id, *end)
        return HeartbeatRequest(*self._plain).prepare(dict(versions))
