"""Why the coordinator of a consumer group refuses a member of the new protocol."""

from __future__ import annotations

from typing import Final

from aioparallel.clients.aiokafka.group_member import Subscribed
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, NotAuthorized

__all__ = ["ProtocolRefused", "refusal"]

_OTHER_KIND: Final = (
    "a group with this id is of another kind: a share group or a streams group (kafka-groups.sh --list shows it), or a "
    "group of the classic protocol whose members may not be moved: by group.consumer.migration.policy of the brokers "
    "(bidirectional by default), or because their assignor is one of clients, such as cooperative-sticky. Stop these "
    'members first, use another group_id, or group_protocol="classic"'
)
_ADVICE: Final = {
    ErrorCode.GROUP_ID_NOT_FOUND: _OTHER_KIND,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: _OTHER_KIND,
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as its brokers allow (group.consumer.max.size): "
    "start fewer members, or raise that",
    ErrorCode.UNSUPPORTED_VERSION: "the brokers do not have the new group protocol: they need Kafka 4.0 or later, with "
    "the feature group.version=1 (kafka-features.sh upgrade --feature group.version=1), and consumer in their "
    "group.coordinator.rebalance.protocols. "
    'group_protocol="classic" works everywhere, and "auto" takes the new one where it can',
    ErrorCode.INVALID_GROUP_ID: "the broker refuses the group_id",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the brokers do not have this group_remote_assignor (group.consumer.assignors)",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "the brokers match the pattern of topics, in the syntax of RE2/J, which has "
    'no lookaround and no back references. Write it in that syntax, or use group_protocol="classic"',
}


_OF_PROTOCOL: Final = frozenset(
    {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.UNSUPPORTED_VERSION}
)


class ProtocolRefused(ClientError):
    """The brokers do not have the new protocol, or not for this group."""


def refusal(code: int, message: str | None, subscribed: Subscribed) -> ClientError:
    """The error for this code."""
    doing = f"taking part in group {subscribed.group_id!r}"
    if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return NotAuthorized(f"group {subscribed.group_id!r}: this user needs the permission READ on it ({doing})")
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        topics = ", ".join(map(repr, subscribed.topics or ()))
        return NotAuthorized(f"topic {topics}: this user needs the permission READ on it ({doing})")
    known = ErrorCode(code) if code in {*ErrorCode} else ErrorCode.NONE
    advice = _ADVICE.get(known, "the broker refuses it")
    kind = ProtocolRefused if code in _OF_PROTOCOL else ClientError
    return kind(f"{doing}: {advice} ({message or 'no message'}, error code {code})")
