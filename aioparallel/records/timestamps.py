"""Kafka's timestamps: whole milliseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["first_timestamp_at"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def first_timestamp_at(time: datetime) -> int:
    """The smallest timestamp at or after ``time``, which must have a time zone.

    It is rounded up: a record of 59.999 s is before 59.999999. So each record is either before a time or not, and never
    both.
    """
    # Kafka has other meanings for negative numbers: -1 is the end of the log.
    return max(0, -((_EPOCH - time) // timedelta(milliseconds=1)))
