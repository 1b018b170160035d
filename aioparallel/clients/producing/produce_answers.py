"""What the answer to a produce request means for a batch."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from aioparallel.records.error_codes import RETRIABLE, ErrorCode

__all__ = ["Answer", "Verdict", "answer_in_transaction", "answer_of", "unanswered"]


class Verdict(enum.Enum):
    """What to do with the batch."""

    WRITTEN = "written"
    AGAIN = "again"
    """A transient failure: send the same bytes again."""
    TOO_LARGE = "too large"
    """Not written: the batch, or a single output, is too large for the topic."""
    SPLIT = "split"
    """Not written: the broker refuses one of the records, and does not say which."""
    ANEW = "anew"
    """Not written: the broker expects another sequence number."""
    REJECTED = "rejected"
    """Not written: the broker no longer accepts this producer id."""
    REFUSED = "refused"
    """Not written, and a retry would not help."""
    UNCLEAR = "unclear"
    """Failed, but the batch may have been written."""
    BROKEN = "broken"
    """Its transaction can no longer be committed; ``code`` says why."""


class Answer(NamedTuple):
    """A verdict, with the position of a written batch or the reason of a failure."""

    verdict: Verdict
    reason: str = ""
    """May contain ``{size}``, a placeholder for the batch's size in bytes."""
    offset: int = -1
    """Offset of the first record; -1 if the broker no longer knows it."""
    timestamp: int = -1
    """Milliseconds since the epoch; -1 if the records keep their own timestamps."""
    is_heard: bool = True
    """Whether the broker sent this answer; False if none arrived."""
    code: int = ErrorCode.NONE
    """The broker's error code, if the verdict is ``BROKEN``."""

    def explain(self, size: int) -> str:
        return self.reason.format(size=size) if "{size" in self.reason else self.reason


_REASONS: Final[dict[int, tuple[Verdict, str]]] = {
    # The broker wrote the batch earlier and no longer remembers its offset.
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: (Verdict.WRITTEN, ""),
    ErrorCode.MESSAGE_TOO_LARGE: (
        Verdict.TOO_LARGE,
        "its batch of {size:,} bytes is larger than the topic takes; raise the topic's max.message.bytes, or send less",
    ),
    ErrorCode.RECORD_LIST_TOO_LARGE: (
        Verdict.TOO_LARGE,
        "its batch of {size:,} bytes is larger than a segment of the topic; raise segment.bytes, or send less",
    ),
    ErrorCode.INVALID_RECORD: (
        Verdict.SPLIT,
        "the broker refuses the record (a compacted topic takes none without a key)",
    ),
    ErrorCode.INVALID_TIMESTAMP: (
        Verdict.SPLIT,
        "the broker refuses the timestamp; it is too far from now for the topic's message.timestamp.*.max.ms",
    ),
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (Verdict.ANEW, "the broker expects another sequence number"),
    ErrorCode.UNKNOWN_PRODUCER_ID: (Verdict.ANEW, "the broker does not know this producer id"),
    ErrorCode.INVALID_PRODUCER_EPOCH: (Verdict.REJECTED, "the broker knows a newer epoch of this producer"),
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (Verdict.REJECTED, "the broker does not know this producer id"),
    ErrorCode.PRODUCER_FENCED: (Verdict.REJECTED, "the broker knows a newer epoch of this producer"),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        Verdict.REFUSED,
        "not authorised; this user needs the permission WRITE on the topic",
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        Verdict.REFUSED,
        "not authorised; this user needs the permission IDEMPOTENT_WRITE on the cluster",
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (Verdict.REFUSED, "this is not a valid topic name"),
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: (Verdict.REFUSED, "the topic's message format is too old"),
    ErrorCode.POLICY_VIOLATION: (Verdict.REFUSED, "a policy of the broker forbids it"),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: (
        Verdict.REFUSED,
        "the topic does not take this compression; use another compression_type",
    ),
}


def answer_of(code: int, offset: int, timestamp: int) -> Answer:
    """Interpret the broker's answer for one partition."""
    if code == ErrorCode.NONE:
        return Answer(Verdict.WRITTEN, "", offset, timestamp)
    if (known := _REASONS.get(code)) is not None:
        return Answer(*known)
    verdict = Verdict.AGAIN if code in RETRIABLE else Verdict.UNCLEAR
    return Answer(verdict, f"the broker answered {_name(code)} (error code {code})")


_BREAK: Final = frozenset({Verdict.ANEW, Verdict.REJECTED, Verdict.UNCLEAR})


def answer_in_transaction(code: int, offset: int, timestamp: int) -> Answer:
    """Interpret an answer within a transaction: a batch that may have been written is aborted with the transaction."""
    answer = answer_of(code, offset, timestamp)
    return answer._replace(verdict=Verdict.BROKEN, code=code) if answer.verdict in _BREAK else answer


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return "an unknown error"


def unanswered(error: Exception) -> Answer:
    """The answer for a batch whose connection broke, or whose request timed out."""
    return Answer(Verdict.AGAIN, str(error) or type(error).__name__, is_heard=False)
