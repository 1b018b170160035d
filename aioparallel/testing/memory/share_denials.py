"""Why brokers refuse acknowledgements of a share group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from aioparallel.clients.messages.share_records import AcknowledgementBatch, AcknowledgeType
from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing.memory.share_options import ShareGroupOptions

__all__ = ["RENEWALS_REFUSED", "Denial", "malformed", "mistyped", "not_held"]


class Denial(NamedTuple):
    """Why the acknowledgements of a partition were refused."""

    code: ErrorCode
    message: str


RENEWALS_REFUSED: Final = Denial(
    ErrorCode.INVALID_RECORD_STATE, "Renewing acquisition locks is not enabled for the group."
)
_KINDS: Final = range(AcknowledgeType.GAP, AcknowledgeType.RENEW + 1)


def malformed(batches: Sequence[AcknowledgementBatch]) -> Denial | None:
    """What a broker finds wrong before it looks at any record."""
    before = -1
    for batch in batches:
        count = batch.last_offset - batch.first_offset + 1
        if count < 1 or batch.first_offset < before:
            return Denial(ErrorCode.INVALID_REQUEST, "The batches are not in the order of offsets.")
        if not batch.acknowledge_types or len(batch.acknowledge_types) not in (1, count):
            return Denial(ErrorCode.INVALID_REQUEST, "The number of acknowledge types is wrong.")
        before = batch.last_offset
    return None


def not_held(message: str) -> Denial:
    """A record is not locked for the member."""
    return Denial(ErrorCode.INVALID_RECORD_STATE, message)


def mistyped(batches: Iterable[AcknowledgementBatch], options: ShareGroupOptions, *, renewing: bool) -> Denial | None:
    """What is wrong with the types of acknowledgements."""
    kinds: set[int] = {kind for batch in batches for kind in batch.acknowledge_types}
    if not all(kind in _KINDS for kind in kinds) or (AcknowledgeType.RENEW in kinds and not renewing):
        return Denial(ErrorCode.INVALID_REQUEST, "Invalid acknowledge type found.")
    if AcknowledgeType.RENEW in kinds and not options.is_renew_enabled:
        return RENEWALS_REFUSED
    return None
