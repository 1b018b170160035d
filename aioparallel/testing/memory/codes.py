"""How the in-memory broker says no: Kafka's error codes, by their names in the protocol guide."""

from __future__ import annotations

import enum

from aioparallel.errors import ClientError

__all__ = ["FENCING", "RETRIABLE", "ErrorCode", "Refused"]


class ErrorCode(enum.Enum):
    """The codes of Kafka's protocol that this broker uses, with Kafka's numbers."""

    UNKNOWN_SERVER_ERROR = -1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    """No broker gives this one: the client sees it when the connection is gone."""
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    SASL_AUTHENTICATION_FAILED = 58


FENCING = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID})
"""The member has no place in the group under this generation (any more)."""

RETRIABLE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""They pass by themselves."""


class Refused(ClientError):
    """The in-memory broker refused a whole request, with :attr:`code`."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(f"the in-memory broker answered {code.name} ({code.value})")
        self.code = code
