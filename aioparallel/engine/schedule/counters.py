"""How many records are in each state, and their moves from one state to the next.

At every step admitted = buffered + parked + in flight + producing + ended + dropped, where ended is succeeded +
dead-lettered + skipped + released (I5). Buffered and parked records are counted per source only: the sums are needed
once for each fetch, but each record changes a part.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aioparallel.engine.schedule.parking import Parking
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.handlers.batches import Call
from aioparallel.records.record import Record

__all__ = ["Counters", "EndState"]

AnyRecord = Record[Any, Any]


class EndState(enum.Enum):
    """How a record ended."""

    SUCCEEDED = "succeeded"
    DEAD_LETTERED = "dead-lettered"
    """Written to the dead-letter topic or a retry topic, or given to the user's dead-letter function."""
    SKIPPED = "skipped"
    RELEASED = "released"
    """The consumer receives it again; it is not complete."""


@dataclass(slots=True, eq=False)
class Counters:
    """Counts records. The scheduler and its turns write them.

    ``taken_left`` and ``succeeded_left`` count down to the signals ``taken`` and ``succeeded``: how many records may
    still start, or succeed, before the signal is sent. The fetcher and the committer set them. A countdown costs one
    subtraction for each record.
    """

    parking: Parking
    signals: Signals
    admitted: int = 0
    in_flight: int = 0
    producing: int = 0
    succeeded: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    released: int = 0
    dropped: int = 0
    failed_attempts: int = 0
    taken_left: int = sys.maxsize
    succeeded_left: int = sys.maxsize

    # -- starts -----------------------------------------------------------------------------------------

    def start(self, record: AnyRecord) -> None:
        """Move a record from buffered or parked to in flight."""
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
        """Move records from buffered to succeeded."""
        source.complete_all([record.offset for record in records])
        self._leave_buffer(source, records)
        self.count_succeeded(len(records))

    def start_and_produce(self, source: Source, records: Sequence[AnyRecord]) -> None:
        """Move records from buffered to producing."""
        source.producing.update(records)
        self.producing += len(records)
        self._leave_buffer(source, records)

    def start_together(self, call: Call) -> None:
        """Move the records of a call from buffered or parked to in flight."""
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
        """Move the records of a call from in flight to producing."""
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
        """Move a record from in flight to producing."""
        source = record._source
        source.in_flight.remove(record)
        self.in_flight -= 1
        source.producing.add(record)
        self.producing += 1

    def leave(self, record: AnyRecord) -> None:
        """Remove a record from in flight or producing."""
        source = record._source
        if record in source.producing:
            source.producing.remove(record)
            self.producing -= 1
        else:
            source.in_flight.remove(record)
            self.in_flight -= 1

    def count(self, source: Source, outcome: EndState) -> None:
        """Count a record of this source that has ended this way."""
        if outcome is EndState.SUCCEEDED:
            self.count_succeeded(1)
        elif outcome is EndState.DEAD_LETTERED:
            self.dead_lettered += 1
            source.counts.dead_lettered += 1
        elif outcome is EndState.SKIPPED:
            self.skipped += 1
            source.counts.skipped += 1
        else:
            self.released += 1
            source.counts.released += 1

    def move(self, source: Source, counted: EndState, outcome: EndState) -> None:
        """Count a record again that was counted under another end state: the broker has refused its output."""
        if counted is EndState.SUCCEEDED:
            self.succeeded -= 1
        else:
            self.dead_lettered -= 1
            source.counts.dead_lettered -= 1
        if outcome is EndState.SKIPPED:
            self.skipped += 1
            source.counts.skipped += 1
        else:
            self.dead_lettered += 1
            source.counts.dead_lettered += 1

    def count_succeeded(self, count: int) -> None:
        """Count records as succeeded, and signal when ``succeeded_left`` reaches 0."""
        self.succeeded += count
        self.succeeded_left, succeeded_left = self.succeeded_left - count, self.succeeded_left
        if self.succeeded_left <= 0 < succeeded_left:
            self.signals.succeeded()

    def drop(self, source: Source) -> None:
        """Drop the records of this source that have not started."""
        self.dropped += source.buffered + len(source.parked)
        source.counts.dropped += source.unfinished  # outcomes of those that still run change nothing
        source.buffered = source.buffered_bytes = 0
        self.parking.forget(source)
