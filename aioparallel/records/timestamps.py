"""Times as Kafka's logs have them: whole milliseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = ["first_timestamp_at"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def first_timestamp_at(time: datetime) -> int:
    """The smallest timestamp of a record that is at or after ``time``, which has a time zone.

    Rounded up: a record of 59.999 s is before 59.999999, and not at or after it. So the records from a time on and
    those before the same time are all records, each once.
    """
    # Nothing is earlier than the epoch, and Kafka has other meanings for negative numbers: -1 would be the end.
    return max(0, -((_EPOCH - time) // timedelta(milliseconds=1)))
