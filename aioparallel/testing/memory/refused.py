"""The in-memory broker's refusals, with Kafka's error codes."""

from __future__ import annotations

from aioparallel.records import error_codes as codes
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError

__all__ = ["FENCING", "RETRIABLE", "Refused"]


FENCING = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""The member is not in the group with this generation (any more)."""

_OF_NO_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
RETRIABLE = (codes.RETRIABLE - _OF_NO_TOPIC) | {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH}
"""Transient errors: those of Kafka's clients, with some differences. A missing topic is not retried, because new topics
are known at once here. A commit during a rebalance may be retried, and one with an old epoch after the next
heartbeat."""


class Refused(ClientError):
    """The in-memory broker refused a whole request, with :attr:`code`."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(f"the in-memory broker answered {code.name} ({code.value})")
        self.code = code
