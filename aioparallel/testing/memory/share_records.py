"""Records in flight in a partition of a share group: acquired at least once, and not behind the start offset yet."""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

__all__ = ["InFlight", "InFlightBatch", "InFlightRecord", "RecordState"]


class RecordState(enum.Enum):
    """The state of a record in flight."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    """Locked for a member."""
    ACKNOWLEDGED = "acknowledged"
    """It has ended: accepted."""
    ARCHIVED = "archived"
    """It has ended: rejected, delivered too often, a gap, aborted, or deleted from the log."""


_ENDED = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class InFlightRecord:
    """The state of one offset."""

    __slots__ = ("delivery_count", "is_changing", "locked_until", "member_id", "state", "stored_count")

    def __init__(self) -> None:
        self.state = RecordState.AVAILABLE
        self.delivery_count = 0
        self.member_id: str | None = None
        self.locked_until = 0.0
        self.is_changing = False
        """The state is being stored, and counts when this is done."""
        self.stored_count = 0
        """The delivery count that survives an election of another leader. Brokers do not store acquisitions."""

    @property
    def has_ended(self) -> bool:
        """Whether it is never delivered again."""
        return self.state in _ENDED and not self.is_changing

    @property
    def is_available(self) -> bool:
        """Whether it can be acquired."""
        return self.state is RecordState.AVAILABLE and not self.is_changing

    def acquire(self, member_id: str, until: float) -> None:
        """Lock it for this member."""
        self.state = RecordState.ACQUIRED
        self.delivery_count += 1
        self.member_id = member_id
        self.locked_until = until

    def end(self, state: RecordState, limit: int) -> None:
        """The lock ends with this state. A record that was delivered ``limit`` times does not become available."""
        if state is RecordState.AVAILABLE and self.delivery_count >= limit:
            state = RecordState.ARCHIVED
        self.state = state
        self.member_id = None

    def store(self) -> None:
        """Store its state, as brokers do when a lock ends."""
        self.is_changing = False
        self.stored_count = self.delivery_count

    def as_stored(self) -> None:
        """Forget what was not stored."""
        if self.state is RecordState.ACQUIRED:
            self.state = RecordState.AVAILABLE
            self.member_id = None
        self.delivery_count = self.stored_count


class InFlightBatch:
    """A range of offsets that were acquired together for the first time.

    While :attr:`is_split` is False, all its offsets have the same state, and are acquired together.
    """

    __slots__ = ("first", "is_split", "last", "records")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.records = [InFlightRecord() for _ in range(last - first + 1)]
        self.is_split = False

    def __len__(self) -> int:
        return len(self.records)

    def within(self, first: int, last: int) -> Iterator[tuple[int, InFlightRecord]]:
        """Its offsets from ``first`` to ``last``, with their records."""
        for offset in range(max(first, self.first), min(last, self.last) + 1):
            yield offset, self.records[offset - self.first]

    def first_available(self) -> int | None:
        """The first available offset."""
        if not self.is_split:
            return self.first if self.records[0].is_available else None
        for offset, record in enumerate(self.records, self.first):
            if record.is_available:
                return offset
        return None

    def covered_by(self, first: int, last: int) -> bool:
        """Whether all of it is in this range."""
        return first <= self.first and self.last <= last


_first = attrgetter("first")


class InFlight:
    """The batches of one partition, ascending. There may be gaps between them, of offsets without records."""

    def __init__(self) -> None:
        self.batches: list[InFlightBatch] = []

    def __bool__(self) -> bool:
        return bool(self.batches)

    def add(self, batch: InFlightBatch) -> None:
        """Add a batch after all others."""
        self.batches.append(batch)

    def floor(self, offset: int) -> InFlightBatch | None:
        """The last batch that begins at ``offset`` or before."""
        at = bisect_right(self.batches, offset, key=_first)
        return self.batches[at - 1] if at else None

    def beginning_in(self, first: int, last: int) -> list[InFlightBatch]:
        """Batches that begin from ``first`` to ``last``."""
        batches = self.batches
        return batches[bisect_right(batches, first - 1, key=_first) : bisect_right(batches, last, key=_first)]

    def remove_before(self, offset: int) -> None:
        """Remove batches that begin before ``offset``."""
        del self.batches[: bisect_right(self.batches, offset - 1, key=_first)]

    def record(self, offset: int) -> InFlightRecord | None:
        """The record at this offset."""
        batch = self.floor(offset)
        return batch.records[offset - batch.first] if batch is not None and offset <= batch.last else None

    def first_available(self) -> int | None:
        """The first available offset."""
        return next((found for batch in self.batches if (found := batch.first_available()) is not None), None)

    def last_ended(self) -> int | None:
        """The last offset up to which all records have ended."""
        ended = None
        for batch in self.batches:
            if not batch.is_split:
                if not batch.records[0].has_ended:
                    return ended
                ended = batch.last
            else:
                for offset, record in enumerate(batch.records, batch.first):
                    if not record.has_ended:
                        return ended
                    ended = offset
        return ended
