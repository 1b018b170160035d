"""What follows from the broker's answer to each request of a transaction.

Tables, from Kafka's message definitions (KIP-98, KIP-447, KIP-890) and from what Apache Kafka 4.3 was seen to answer.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from aioparallel.persistence.transactions.producer import NO_ANSWER
from aioparallel.records.error_codes import ErrorCode

__all__ = ["Ask", "Meaning", "meaning_of", "name_of"]


class Ask(enum.Enum):
    """The requests of a transaction."""

    INITIALIZE = "InitProducerId"
    SEND = "Produce"
    OFFSETS = "TxnOffsetCommit"
    COMMIT = "EndTxn (commit)"
    ABORT = "EndTxn (abort)"
    READ = "OffsetFetch"
    """OffsetFetch with ``require_stable``."""


class Meaning(enum.Enum):
    """What a broker's answer means for the transaction."""

    DONE = "done"
    AGAIN = "the same again"
    ABORT = "abort it, keep its outputs"
    DOUBT = "nobody knows"
    """The outcome is unknown and must be checked."""
    FENCED = "the transactional id is somebody else's"
    FORGOTTEN = "the cluster does not know the transactional id any more"
    FORBIDDEN = "it will not be allowed"
    # Of single partitions, and the transaction is aborted:
    TOO_LARGE = "the metadata is too large"
    NOT_OURS = "the partition is another member's"
    REFUSED = "the offset is refused"


_PASSING: Final = (
    NO_ANSWER,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
)
_LOST: Final = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.PRODUCER_FENCED,
)
"""The transaction was ended by the brokers (timeout) or by another producer with this id."""
_FORBIDDEN: Final = (
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
)

_END: Final[Mapping[int, Meaning]] = {
    ErrorCode.NONE: Meaning.DONE,
    **dict.fromkeys(_PASSING, Meaning.AGAIN),
    **dict.fromkeys(_FORBIDDEN, Meaning.FORBIDDEN),
}

_MEANINGS: Final[Mapping[Ask, tuple[Mapping[int, Meaning], Meaning]]] = {
    # One that waits for its markers, or is being timed out, is answered 51 until that is done.
    Ask.INITIALIZE: (
        {
            ErrorCode.NONE: Meaning.DONE,
            ErrorCode.INVALID_PRODUCER_EPOCH: Meaning.FENCED,
            ErrorCode.PRODUCER_FENCED: Meaning.FENCED,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING: Meaning.FORGOTTEN,
            ErrorCode.UNKNOWN_PRODUCER_ID: Meaning.FORGOTTEN,
            ErrorCode.INVALID_TRANSACTION_TIMEOUT: Meaning.FORBIDDEN,
            **dict.fromkeys(_FORBIDDEN, Meaning.FORBIDDEN),
        },
        Meaning.AGAIN,
    ),
    # What passes for a batch, the producer sends again by itself.
    Ask.SEND: ({**dict.fromkeys(_LOST, Meaning.DOUBT), **dict.fromkeys(_FORBIDDEN, Meaning.FORBIDDEN)}, Meaning.ABORT),
    Ask.OFFSETS: (
        {
            ErrorCode.NONE: Meaning.DONE,
            **dict.fromkeys(_PASSING, Meaning.AGAIN),
            ErrorCode.REBALANCE_IN_PROGRESS: Meaning.AGAIN,
            **dict.fromkeys(_LOST, Meaning.DOUBT),
            **dict.fromkeys(_FORBIDDEN, Meaning.FORBIDDEN),
            ErrorCode.OFFSET_METADATA_TOO_LARGE: Meaning.TOO_LARGE,
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE: Meaning.TOO_LARGE,
            ErrorCode.ILLEGAL_GENERATION: Meaning.NOT_OURS,
            ErrorCode.UNKNOWN_MEMBER_ID: Meaning.NOT_OURS,
            ErrorCode.FENCED_INSTANCE_ID: Meaning.NOT_OURS,
            ErrorCode.FENCED_MEMBER_EPOCH: Meaning.NOT_OURS,
            ErrorCode.STALE_MEMBER_EPOCH: Meaning.NOT_OURS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Meaning.REFUSED,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED: Meaning.REFUSED,
            ErrorCode.GROUP_AUTHORIZATION_FAILED: Meaning.REFUSED,
            ErrorCode.INVALID_GROUP_ID: Meaning.REFUSED,
        },
        Meaning.ABORT,
    ),
    # 48 and 120: its time was over, or it was never begun where this coordinator looks.
    Ask.COMMIT: (_END, Meaning.DOUBT),
    Ask.ABORT: (_END, Meaning.DOUBT),
}


def meaning_of(ask: Ask, code: int) -> Meaning:
    """Return what this code means as the answer to a request."""
    known, other = _MEANINGS[ask]
    return known.get(code, other)


def name_of(code: int) -> str:
    """Return the name of a code for messages."""
    if code == NO_ANSWER:
        return "no answer"
    try:
        return f"{ErrorCode(code).name} (error code {code})"
    except ValueError:
        return f"error code {code}"
