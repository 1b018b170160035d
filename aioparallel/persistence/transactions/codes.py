"""The meanings of the brokers' error codes, for each request of a transaction.

From Kafka's message definitions (KIP-98, KIP-447, KIP-890) and from answers of Apache Kafka 4.3.
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
    """What follows for the transaction."""

    DONE = "done"
    AGAIN = "repeat the request"
    ABORT = "abort the transaction, keep its outputs"
    DOUBT = "the outcome is unknown and must be checked"
    FENCED = "another producer uses the transactional id"
    FORGOTTEN = "the cluster no longer knows the transactional id"
    FORBIDDEN = "refused permanently"
    # For single partitions; the transaction is aborted:
    TOO_LARGE = "the metadata is too large"
    NOT_OURS = "another member owns the partition"
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
    # While the brokers write the markers of the previous transaction, or time it out, they answer 51.
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
    # The producer itself sends a batch again after a temporary error.
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
    # 48 and 120: the transaction timed out, or it never began on this coordinator.
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
