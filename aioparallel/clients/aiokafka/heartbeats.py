"""Heartbeats with the member's ``group.instance.id``: versions 3 and 4 (KIP-345). aiokafka ends at version 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.types import CompactString, Int16, Int32, Schema, String, TaggedFields

from aioparallel.clients.aiokafka.message_classes import request_class

__all__ = ["Heartbeat"]

_TEXT = String("utf-8")
_COMPACT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)


_HeartbeatRequest_v3 = request_class(
    "Heartbeat",
    api_key=12,
    version=3,
    request=Schema(
        ("group", _TEXT),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
    ),
    response=Schema(("throttle_time_ms", Int32), ("error_code", Int16)),
    is_flexible=False,
)


_HeartbeatRequest_v4 = request_class(
    "Heartbeat",
    api_key=12,
    version=4,
    request=Schema(
        ("group", _COMPACT),
        ("generation_id", Int32),
        ("member_id", _COMPACT),
        ("group_instance_id", _COMPACT),
        _TAGS,
    ),
    response=Schema(("throttle_time_ms", Int32), ("error_code", Int16), _TAGS),
)


_NEWEST_FIRST: Final[tuple[tuple[type[Any], tuple[object, ...]], ...]] = (
    (_HeartbeatRequest_v4, ({},)),
    (_HeartbeatRequest_v3, ()),
)
"""With the last fields of each version."""


class Heartbeat:
    """A heartbeat. Brokers before Kafka 2.3 get it without the instance id."""

    def __init__(self, group: str, generation: int, member_id: str, instance_id: str) -> None:
        self._plain = group, generation, member_id
        self._instance_id = instance_id

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> object:
        """The request in the newest version that the broker supports, as aiokafka's connections call it."""
        least, most = versions.get(HeartbeatRequest.API_KEY, (0, -1))
        for struct, end in _NEWEST_FIRST:
            if least <= struct.API_VERSION <= most:
                return struct(*self._plain, self._instance_id, *end)
        return HeartbeatRequest(*self._plain).prepare(dict(versions))
