"""Kafka's error codes for a batch, and what each of them means for it."""

from __future__ import annotations

import enum
from typing import Final

import aiokafka.errors as kafka

from aioparallel.clients.outbox.verdicts import Answer, Verdict

__all__ = ["ProduceCode", "answer_of", "unanswered"]


class ProduceCode(enum.IntEnum):
    """Error codes of the protocol that have a meaning of their own here, as its guide names them."""

    NONE = 0
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_PRODUCER_ID_MAPPING = 49
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    UNKNOWN_PRODUCER_ID = 59
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90


_REASONS: Final[dict[int, tuple[Verdict, str]]] = {
    # The broker did write it, long ago: it no longer remembers where.
    ProduceCode.DUPLICATE_SEQUENCE_NUMBER: (Verdict.WRITTEN, ""),
    ProduceCode.MESSAGE_TOO_LARGE: (
        Verdict.TOO_LARGE,
        "its batch of {size:,} bytes is larger than the topic takes; raise the topic's max.message.bytes, or send less",
    ),
    ProduceCode.RECORD_LIST_TOO_LARGE: (
        Verdict.TOO_LARGE,
        "its batch of {size:,} bytes is larger than a segment of the topic; raise segment.bytes, or send less",
    ),
    ProduceCode.INVALID_RECORD: (
        Verdict.SPLIT,
        "the broker refuses the record (a compacted topic takes none without a key)",
    ),
    ProduceCode.INVALID_TIMESTAMP: (
        Verdict.SPLIT,
        "the broker refuses the timestamp; it is too far from now for the topic's message.timestamp.*.max.ms",
    ),
    ProduceCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (Verdict.ANEW, "the broker has lost count of this producer's batches"),
    ProduceCode.UNKNOWN_PRODUCER_ID: (Verdict.ANEW, "the broker does not know this producer id"),
    ProduceCode.INVALID_PRODUCER_EPOCH: (Verdict.REJECTED, "the broker knows a newer epoch of this producer"),
    ProduceCode.INVALID_PRODUCER_ID_MAPPING: (Verdict.REJECTED, "the broker does not know this producer id"),
    ProduceCode.PRODUCER_FENCED: (Verdict.REJECTED, "the broker knows a newer epoch of this producer"),
    ProduceCode.TOPIC_AUTHORIZATION_FAILED: (
        Verdict.REFUSED,
        "not authorised; this user needs the permission WRITE on the topic",
    ),
    ProduceCode.CLUSTER_AUTHORIZATION_FAILED: (
        Verdict.REFUSED,
        "not authorised; this user needs the permission IDEMPOTENT_WRITE on the cluster",
    ),
    ProduceCode.INVALID_TOPIC_EXCEPTION: (Verdict.REFUSED, "this is no valid name of a topic"),
    ProduceCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: (Verdict.REFUSED, "the topic's message format is too old"),
    ProduceCode.POLICY_VIOLATION: (Verdict.REFUSED, "a policy of the broker forbids it"),
    ProduceCode.UNSUPPORTED_COMPRESSION_TYPE: (
        Verdict.REFUSED,
        "the topic does not take this compression; use another compression_type",
    ),
}


def answer_of(code: int, offset: int, timestamp: int) -> Answer:
    """What the broker answered for one partition."""
    if code == ProduceCode.NONE:
        return Answer(Verdict.WRITTEN, "", offset, timestamp)
    if (known := _REASONS.get(code)) is not None:
        return Answer(*known)
    error = kafka.for_code(code)
    reason = f"the broker answered {error.__name__} (error code {code})"
    return Answer(Verdict.AGAIN if error.retriable else Verdict.UNCLEAR, reason)


def unanswered(error: Exception) -> Answer:
    """No answer came: the connection broke, or the broker was silent for too long."""
    return Answer(Verdict.AGAIN, str(error) or type(error).__name__, is_heard=False)
