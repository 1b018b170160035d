"""Translates aiokafka's errors into this package's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, cast

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.secure_connection import LoginFailed
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import AioparallelError, AuthenticationFailed, ClientError, NotAuthorized

__all__ = ["AUTHENTICATION", "deadline", "is_passing", "translated"]

AUTHENTICATION: Final[tuple[type[Exception], ...]] = (
    kafka.AuthenticationFailedError,
    kafka.AuthenticationMethodNotSupported,
    kafka.IllegalSaslStateError,
    LoginFailed,
    kafka.SaslAuthenticationFailed,
    kafka.UnsupportedSaslMechanismError,
)
"""The broker rejected the credentials, or does not support the login method."""

_ADVICE: Final[tuple[tuple[type[Exception], str], ...]] = (
    (
        kafka.InvalidSessionTimeoutError,
        "the broker refuses session_timeout: keep it between its group.min.session.timeout.ms and "
        "group.max.session.timeout.ms",
    ),
    (
        kafka.InconsistentGroupProtocolError,
        'the members of this group are of another kind. If they have group_protocol="consumer", and the brokers may '
        "not mix both protocols (group.consumer.migration.policy), use it, too. If they use another partition "
        "assignor, use theirs: "
        "client_options={'partition_assignment_strategy': [RoundRobinPartitionAssignor]}, after "
        "from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor, is the one that aiokafka's "
        "own consumers have. If it is a share group, a streams group or one of Kafka Connect (kafka-groups.sh --list "
        "shows the type), use another group_id",
    ),
    (kafka.InvalidGroupIdError, "the broker refuses the group_id"),
)


_ADVICE_BY_CODE: Final = {
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as its brokers allow (group.max.size): start "
    "fewer members, or raise that",
}


_TWO_MEMBERS: Final = (
    "The embedded broker (`aioparallel broker`, librdkafka's mock cluster) answers so when a group has two live "
    "members of the classic protocol, which it cannot rebalance: leave out what chooses that protocol "
    "(session_timeout, heartbeat_interval, group_instance_id, an assignor, a pattern of topics), run one worker for "
    "each group there, or `aioparallel broker --kafka`"
)


def translated(error: Exception, doing: str, code: int = ErrorCode.NONE) -> AioparallelError:
    """Translate an error. ``doing``: what was in progress, for the message. ``code``: the broker's error code, if
    aiokafka may not know it."""
    if isinstance(error, AioparallelError):
        return error
    if code not in kafka.kafka_errors:
        advice = _ADVICE_BY_CODE.get(cast("ErrorCode", code), "see the protocol guide of Kafka for that code")
        return ClientError(f"{doing}: {advice} (the broker answered {_name_of(code)})")
    if (what := _refused(error)) is not None:
        return NotAuthorized(f"{what} ({doing})")
    if isinstance(error, AUTHENTICATION):
        return AuthenticationFailed("this cluster", f"{error} ({doing})", "check the login in Security")
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return ClientError(f"{doing}: {advice} ({error})")
    # aiokafka raises a refused JoinGroup or SyncGroup as text in a plain KafkaError.
    is_invalid = type(error) is kafka.KafkaError and "InvalidRequestError" in str(error)
    hint = f". {_TWO_MEMBERS}" if is_invalid else ""
    return ClientError(f"{doing}: {error!r}; see the log before this for the broker's answer{hint}")


def is_passing(error: Exception) -> bool:
    """Whether a retry may succeed."""
    return bool(getattr(error, "retriable", False))


@contextlib.asynccontextmanager
async def deadline(seconds: float, doing: str) -> AsyncIterator[None]:
    """Limit a block to ``seconds``, and translate its errors.

    Raises TimeoutError with ``doing`` in its message, and this package's errors in place of aiokafka's.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except (TimeoutError, kafka.KafkaTimeoutError):
        raise TimeoutError(f"{doing}: no answer within {seconds:g} s; is the cluster reachable?") from None
    except kafka.KafkaError as error:
        raise translated(error, doing) from error


def _name_of(code: int) -> str:
    try:
        return f"{ErrorCode(code).name}, {code}"
    except ValueError:
        return f"with error code {code}"


def _refused(error: Exception) -> str | None:
    """What this user is not authorised for, else None."""
    if isinstance(error, kafka.GroupAuthorizationFailedError):
        return f"group {_named(error)}: this user needs the permission READ on it"
    if isinstance(error, kafka.TopicAuthorizationFailedError):
        return f"topic {_named(error)}: this user needs the permission READ on it"
    if isinstance(error, kafka.ClusterAuthorizationFailedError):
        return "the cluster"
    return None


def _named(error: Exception) -> str:
    return ", ".join(repr(arg) for arg in error.args) or "?"
