"""How the in-memory broker says no: with Kafka's error codes."""

from __future__ import annotations

from aioparallel import codes
from aioparallel.codes import ErrorCode
from aioparallel.errors import ClientError

__all__ = ["FENCING", "RETRIABLE", "Refused"]


FENCING = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
"""The member has no place in the group under this generation (any more)."""

_OF_NO_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
RETRIABLE = (codes.RETRIABLE - _OF_NO_TOPIC) | {ErrorCode.REBALANCE_IN_PROGRESS}
"""They pass by themselves. As in the table of all clients, but: nobody hears late of a new topic here, so a
missing one is not waited for; and a commit amid a rebalance may be sent once more."""


class Refused(ClientError):
    """The in-memory broker refused a whole request, with :attr:`code`."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(f"the in-memory broker answered {code.name} ({code.value})")
        self.code = code
