"""The books: how many records are where, and their moves from one place to the next.

At every step admitted = buffered + parked + in flight + producing + ended + dropped, where ended is succeeded +
dead-lettered + skipped + released (I5). What is buffered and parked is counted by source alone: the sums are wanted
once a fetch, the parts once a record.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from typing import Any

from aioparallel.batches import Call
from aioparallel.engine.parking import Parking
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.records import Record

__all__ = ["EndState", "Tally"]

AnyRecord = Record[Any, Any]


class EndState(enum.Enum):
    """How a record ended."""

    SUCCEEDED = "succeeded"
    DEAD_LETTERED = "dead-lettered"
    """In the dead-letter topic, put away by a function, or in a retry topic."""
    SKIPPED = "skipped"
    RELEASED = "released"
    """Whoever delivered it delivers it again; it is not complete."""


class Tally:
    """Counts of records. Written by the scheduler and its turns.

    ``taken_left``, ``succeeded_left``: so many more starts, or successes, until the signal of that name. A countdown is
    one subtraction on the hot path, where asking every time "is it time to fetch, or to commit?" would be many. Set by
    the fetcher and the committer.
    """

    __slots__ = (
        "admitted",
        "dead_lettered",
        "dropped",
        "failed_attempts",
        "in_flight",
        "parking",
        "producing",
        "released",
        "signals",
        "skipped",
        "succeeded",
        "succeeded_left",
        "taken_left",
    )

    def __init__(self, parking: Parking, signals: Signals) -> None:
        self.parking = parking
        self.signals = signals
        self.admitted = 0
        self.in_flight = 0
        self.producing = 0
        self.succeeded = 0
        self.dead_lettered = 0
        self.skipped = 0
        self.released = 0
        self.dropped = 0
        self.failed_attempts = 0
        self.taken_left = sys.maxsize
        self.succeeded_left = sys.maxsize

    # -- starts -----------------------------------------------------------------------------------------

    def start(self, record: AnyRecord) -> None:
        """From buffered, or parked, to in flight."""
        source = record._source
        source.in_flight.add(record)
        self.in_flight += 1
        if record._parks:
            self.parking.leave(record)
        else:
            source.buffered -= 1
            source.buffered_bytes -= record._size
        self.taken_left -= 1
        if not self.taken_left:
            self.signals.taken()

    def start_and_succeed(self, source: Source, records: Sequence[AnyRecord]) -> None:
        """From buffered to their end, in one turn."""
        source.complete_all([record.offset for record in records])
        self._leave_buffer(source, records)
        self.count_succeeded(len(records))

    def start_and_produce(self, source: Source, records: Sequence[AnyRecord]) -> None:
        """From buffered to producing, in one turn."""
        source.producing.update(records)
        self.producing += len(records)
        self._leave_buffer(source, records)

    def start_together(self, call: Call) -> None:
        """From buffered, or parked, to in flight."""
        for source, records in call.parts.items():
            fresh = records
            if source.parked and (retried := [record for record in records if record._parks]):
                fresh = [record for record in records if not record._parks]
                for record in retried:
                    self.start(record)
            source.in_flight.update(fresh)
            self.in_flight += len(fresh)
            self._leave_buffer(source, fresh)

    def produce_together(self, call: Call) -> None:
        """From in flight to producing."""
        for source, records in call.parts.items():
            source.in_flight.difference_update(records)
            self.in_flight -= len(records)
            source.producing.update(records)
            self.producing += len(records)

    def _leave_buffer(self, source: Source, records: Sequence[AnyRecord]) -> None:
        source.buffered -= len(records)
        source.buffered_bytes -= sum([record._size for record in records])
        self.taken_left, taken_left = self.taken_left - len(records), self.taken_left
        if self.taken_left <= 0 < taken_left:
            self.signals.taken()

    # -- ends -------------------------------------------------------------------------------------------

    def produce(self, record: AnyRecord) -> None:
        """From in flight to producing."""
        source = record._source
        source.in_flight.remove(record)
        self.in_flight -= 1
        source.producing.add(record)
        self.producing += 1

    def leave(self, record: AnyRecord) -> None:
        """Neither in flight nor producing any more."""
        source = record._source
        if record in source.producing:
            source.producing.remove(record)
            self.producing -= 1
        else:
            source.in_flight.remove(record)
            self.in_flight -= 1

    def count(self, outcome: EndState) -> None:
        """One has ended in this way."""
        if outcome is EndState.SUCCEEDED:
            self.count_succeeded(1)
        elif outcome is EndState.DEAD_LETTERED:
            self.dead_lettered += 1
        elif outcome is EndState.SKIPPED:
            self.skipped += 1
        else:
            self.released += 1

    def move(self, counted: EndState, outcome: EndState) -> None:
        """A record that has ended, and was counted so, has ended otherwise: what it let leave was refused."""
        if counted is EndState.SUCCEEDED:
            self.succeeded -= 1
        else:
            self.dead_lettered -= 1
        if outcome is EndState.SKIPPED:
            self.skipped += 1
        else:
            self.dead_lettered += 1

    def count_succeeded(self, count: int) -> None:
        """So many have ended well."""
        self.succeeded += count
        self.succeeded_left, succeeded_left = self.succeeded_left - count, self.succeeded_left
        if self.succeeded_left <= 0 < succeeded_left:
            self.signals.succeeded()

    # -- not yet ----------------------------------------------------------------------------------------

    def park(self, record: AnyRecord) -> None:
        """It waits for its next attempt."""
        self.parking.enter(record)

    def drop(self, source: Source) -> None:
        """What of this source has not begun will not any more."""
        self.dropped += source.buffered + len(source.parked)
        source.buffered = source.buffered_bytes = 0
        self.parking.forget(source)
