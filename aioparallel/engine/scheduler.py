"""The scheduler: which record runs next. Plain methods, no clock, no I/O, no event loop.

Counts obey I5 at every step: admitted = buffered + parked + in flight + producing + ended + dropped, where ended is
succeeded + dead-lettered + skipped.
"""

from __future__ import annotations

import enum
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aioparallel.engine.lanes import lane_keys, size_of_headers
from aioparallel.engine.orphans import Orphans
from aioparallel.engine.parking import Parking
from aioparallel.engine.sources import Source
from aioparallel.engine.turns import Turns
from aioparallel.options import OrderBy, Ordering
from aioparallel.records import Record

__all__ = ["ENDED", "AnyRecord", "HandOver", "Outcome", "Scheduler", "Step"]

AnyRecord = Record[Any, Any]


class Outcome(enum.Enum):
    """How a record ended."""

    SUCCEEDED = "succeeded"
    DEAD_LETTERED = "dead-lettered"
    """In the dead-letter topic, put away by a function, or in a retry topic."""
    SKIPPED = "skipped"


Step = Callable[[AnyRecord], object]
"""The first step of a record's handler: :data:`ENDED`, or anything else when it goes on, or ended another way."""
ENDED: Final = object()
"""The handler has returned None, and nothing else is to be done about the record."""
HandOver = Callable[[AnyRecord, object], bool]
"""Whether what a step has returned was the handler's end, and its outputs are on their way now: then the record is
producing. What becomes of them is told later, never within this call."""


def _leave_in_flight(record: AnyRecord) -> None:
    pass


def _keep(record: AnyRecord, outcome: object) -> bool:
    return False


def _nothing() -> None:
    pass


def _ignore(source: Source) -> None:
    pass


class Scheduler:
    """Lanes of all sources, and their records from admitted to ended.

    ``on_taken`` is called after ``taken_left`` more records were taken, ``on_succeeded`` after
    ``succeeded_left`` more succeeded: a countdown is one subtraction on the hot path, where asking every time
    "is it time to fetch, or to commit?" would be many.
    """

    def __init__(
        self,
        ordering: Ordering = Ordering.KEY,
        order_by: OrderBy | None = None,
        *,
        slots: int = sys.maxsize,
        max_parked: int = sys.maxsize,
    ) -> None:
        self._ordering = ordering
        self._order_by = order_by
        self._turns = Turns(slots)
        self._orphans = Orphans()
        self.paused = False
        # The turn that runs now, see run_ready(): its source, what of it has ended or is producing and is not counted
        # yet, and the record whose handler is in its first step.
        self._turn: Source | None = None
        self._ended: list[AnyRecord] = []
        self._handed_over: list[AnyRecord] = []
        self._current: AnyRecord | None = None

        # In the order in which they came, not that of their addresses: a simulation must take the same turns each time.
        self.sources: dict[Source, None] = {}
        self.in_flight: set[AnyRecord] = set()
        self.producing: set[AnyRecord] = set()
        self.parked_records: set[AnyRecord] = set()
        self.admitted = 0
        self.succeeded = 0
        self.dead_lettered = 0
        self.skipped = 0
        self.dropped = 0
        self.failed_attempts = 0
        self.parking = Parking(max_parked, self.sources, self._fullness_changed)

        self.taken_left = sys.maxsize
        self.on_taken: Callable[[], None] = _nothing
        self.succeeded_left = sys.maxsize
        self.on_succeeded: Callable[[], None] = _nothing
        self.on_drained: Callable[[], None] = _nothing  # the last record of a stopped source that was waited for ended
        self.on_full: Callable[[Source], None] = _ignore  # a source became full of parked records, or no more

    # Buffered is counted by source alone: the sum is wanted once a fetch, the parts once a record.

    @property
    def ready(self) -> int:
        """Lanes, and records without order, that could start now."""
        return sum(len(source.ready) for source in self.sources)

    @property
    def has_ready(self) -> bool:
        """Whether a worker would find something to start."""
        return not self.paused and bool(self._turns)

    @property
    def buffered(self) -> int:
        """Records admitted and never started yet."""
        return sum(source.buffered for source in self.sources)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of keys, values and headers of the buffered records."""
        return sum(source.buffered_bytes for source in self.sources)

    @property
    def parked(self) -> int:
        """Records that wait for their next attempt."""
        return self.parking.count

    @property
    def unfinished(self) -> int:
        """Records admitted and not ended."""
        return self.buffered + self.parked + len(self.in_flight) + len(self.producing)

    # -- in ---------------------------------------------------------------------------------------------

    def admit(self, source: Source, records: Sequence[AnyRecord]) -> None:
        """Put records, ascending by offset, into their lanes."""
        lanes, ready = source.lanes, source.ready
        buffered_bytes = 0
        for record, key in zip(records, lane_keys(records, self._ordering, self._order_by), strict=False):
            raw_key, value = record.key, record.value
            size = (len(raw_key) if raw_key else 0) + (len(value) if value else 0)
            if record.headers:
                size += size_of_headers(record.headers)
            record._size = size
            buffered_bytes += size
            record._source = source
            record._lane = key
            record._next = None
            if key is None:
                ready.append(record)
                continue
            last = lanes.get(key)
            lanes[key] = record
            if last is not None:
                last._next = record
            elif not (self._orphans and self._orphans.close(record)):
                ready.append(record)
        if source not in self.sources:
            self.sources[source] = None
            self.parking.join(source)
        self.admitted += len(records)
        source.buffered += len(records)
        source.buffered_bytes += buffered_bytes
        if ready:
            self._turns.join(source)

    # -- out --------------------------------------------------------------------------------------------

    def run_ready(self, step: Step, hand_over: HandOver, most: int) -> tuple[AnyRecord, object] | None:
        """Start ready records, up to ``most`` of one source, by calling ``step(record)`` for one after the other.

        Those for which it returns :data:`ENDED` have succeeded; those for which ``hand_over(record, returned)`` is true
        are producing. The first that is neither is in flight, and comes back with what the step returned. None: there
        was no such record, or none at all; see :attr:`has_ready`.

        The books are kept by turn, not by record. Whatever looks at the scheduler from inside a handler has to call
        :meth:`keep_books` first.
        """
        if self.paused or not self._turns:
            return None
        self._turn = source = self._turns.begin()
        try:
            return self._run_turn(source, step, hand_over, most)
        finally:
            self.keep_books()
            self._turn = None
            self._turns.end(source)

    # The hot path in one piece: every call would be paid for each record.
    def _run_turn(self, source: Source, step: Step, hand_over: HandOver, most: int) -> tuple[AnyRecord, object] | None:
        ready, lanes, ended = source.ready, source.lanes, self._ended
        try:
            while ready and most > 0:
                record = ready.popleft()
                if record._parks or record.offset > source.ceiling:
                    self._current = None
                    if not self._start_slowly(record, source):
                        continue
                else:
                    self._current = record
                most -= 1
                outcome = step(record)
                if outcome is not ENDED or self._current is not record:
                    if self._current is not record or not hand_over(record, outcome):
                        return self._leave_turn(record, outcome)
                    if self._current is not record:  # somebody has looked while it was handed over
                        self.produce(record)
                        return None
                    self._handed_over.append(record)  # its lane stays closed
                    continue
                ended.append(record)
                if record._lane is None:
                    continue
                following = record._next
                if following is None:
                    del lanes[record._lane]
                else:
                    record._next = None  # or whoever keeps a record would keep all that came after it
                    ready.append(following)
            self._current = None
        except BaseException:
            self.keep_books()
            self.put_back(record)
            raise
        return None

    def _leave_turn(self, record: AnyRecord, outcome: object) -> tuple[AnyRecord, object] | None:
        self.keep_books()
        if outcome is not ENDED:
            return record, outcome
        self.succeed(record)
        return None

    def _start_slowly(self, record: AnyRecord, source: Source) -> bool:
        """Start a retry, which has books of its own; or hold the record back: False."""
        if record.offset > (source.map_ceiling if record._parks else source.ceiling):
            source.held.append(record)
            return False
        self.keep_books()
        self._start(record, source)
        return True

    def keep_books(self) -> None:
        """Count what of this turn has ended or was handed over so far, and the record whose handler is in its first
        step as in flight."""
        source, ended, current = self._turn, self._ended, self._current
        if source is None:
            return
        if self._handed_over:
            self._count_handed_over(source)
        if ended:
            count = len(ended)
            source.complete([record.offset for record in ended])
            source.buffered -= count
            source.buffered_bytes -= sum([record._size for record in ended])
            ended.clear()
            self._count_taken(count)
            self._count_succeeded(count)
        if current is not None:
            self._current = None
            self._start(current, source)

    def _count_handed_over(self, source: Source) -> None:
        handed_over = self._handed_over
        count = len(handed_over)
        self.producing.update(handed_over)
        source.buffered -= count
        source.buffered_bytes -= sum([record._size for record in handed_over])
        handed_over.clear()
        self._count_taken(count)

    def _count_taken(self, count: int) -> None:
        self.taken_left, taken_left = self.taken_left - count, self.taken_left
        if self.taken_left <= 0 < taken_left:
            self.on_taken()

    def _count_succeeded(self, count: int) -> None:
        self.succeeded += count
        self.succeeded_left, succeeded_left = self.succeeded_left - count, self.succeeded_left
        if self.succeeded_left <= 0 < succeeded_left:
            self.on_succeeded()

    def take(self) -> AnyRecord | None:
        """The next record to run, now in flight; None when nothing is ready."""
        while self.has_ready:
            taken = self.run_ready(_leave_in_flight, _keep, 1)
            if taken is not None:
                return taken[0]
        return None

    def _start(self, record: AnyRecord, source: Source) -> None:
        self.in_flight.add(record)
        source.in_flight += 1
        if record._parks:
            self.parked_records.discard(record)
            self.parking.leave(source)
        else:
            source.buffered -= 1
            source.buffered_bytes -= record._size
        self.taken_left -= 1
        if not self.taken_left:
            self.on_taken()

    # -- outcomes ---------------------------------------------------------------------------------------

    def succeed(self, record: AnyRecord) -> None:
        """The handler has ended well: complete the offset and open the lane for the next record."""
        source = record._source
        self.in_flight.remove(record)
        source.in_flight -= 1
        if source.stopped:
            self._end_stopped(record, source, Outcome.SUCCEEDED)
            return
        source.complete((record.offset,))
        self.succeeded += 1
        self.succeeded_left -= 1
        if not self.succeeded_left:
            self.on_succeeded()
        if record._lane is None:
            return
        following = record._next
        if following is None:
            del source.lanes[record._lane]
        else:
            record._next = None
            source.ready.append(following)
            if not source.in_ring:
                self._turns.join(source)

    def end_produced(self, records: Sequence[AnyRecord]) -> None:
        """The outputs of these records, all of them producing, are acknowledged: they have succeeded.

        They come by hundreds, whole batches at once, so the books are kept once for each source.
        """
        self.keep_books()
        self.producing.difference_update(records)
        completed: defaultdict[Source, list[int]] = defaultdict(list)
        for record in records:
            source = record._source
            if source.stopped:
                self._end_stopped(record, source, Outcome.SUCCEEDED)
                continue
            completed[source].append(record.offset)
            # As in succeed(): shared, these lines cost 1 % of all that is done for a record.
            if record._lane is None:
                continue
            following = record._next
            if following is None:
                del source.lanes[record._lane]
            else:
                record._next = None
                source.ready.append(following)
                if not source.in_ring:
                    self._turns.join(source)
        count = 0
        for source, offsets in completed.items():
            source.complete(offsets)
            count += len(offsets)
        self._count_succeeded(count)

    def end(self, record: AnyRecord, outcome: Outcome) -> None:
        """A record in flight or producing has ended in another way, or after its outputs were acknowledged."""
        source = record._source
        if source.stopped:
            self._leave(record)
            self._end_stopped(record, source, outcome)
            return
        # From here on it is a success.
        if record in self.producing:
            self.end_produced((record,))
        else:
            self.succeed(record)
        if outcome is not Outcome.SUCCEEDED:
            self.succeeded -= 1
            self._count(outcome)

    def _leave(self, record: AnyRecord) -> None:
        if record in self.producing:
            self.producing.remove(record)
        else:
            self.in_flight.remove(record)
            record._source.in_flight -= 1

    def _count(self, outcome: Outcome) -> None:
        if outcome is Outcome.SUCCEEDED:
            self.succeeded += 1
        elif outcome is Outcome.DEAD_LETTERED:
            self.dead_lettered += 1
        else:
            self.skipped += 1

    def produce(self, record: AnyRecord) -> None:
        """The handler has ended, its outputs are on their way: no longer in flight, the lane still closed.

        :meth:`end` or :meth:`park` comes next, whatever becomes of the source meanwhile.
        """
        self.in_flight.remove(record)
        record._source.in_flight -= 1
        self.producing.add(record)

    def park(self, record: AnyRecord) -> bool:
        """The attempt failed: the record keeps its place in its lane and waits for :meth:`unpark`.

        False when its source is stopped: then nobody waits for it any more.
        """
        source = record._source
        self._leave(record)
        if source.stopped:
            self._end_stopped(record, source, None)
            return False
        record._parks += 1
        self.parked_records.add(record)
        self.parking.enter(source)
        return True

    def unpark(self, record: AnyRecord) -> None:
        """The retry time has come. The record counts as parked until it is taken again."""
        self._ready_again(record)

    def put_back(self, record: AnyRecord) -> None:
        """The start did not count: the record is ready again at once, with the same attempt."""
        source = record._source
        self._leave(record)
        if source.stopped:
            self._end_stopped(record, source, None)
            return
        if record._parks:
            self.parked_records.add(record)
            self.parking.enter(source)
        else:
            source.buffered += 1
            source.buffered_bytes += record._size
        self._ready_again(record)

    def _ready_again(self, record: AnyRecord) -> None:
        source = record._source
        if not source.stopped:
            source.ready.append(record)
            self._turns.join(source)

    def _end_stopped(self, record: AnyRecord, source: Source, outcome: Outcome | None) -> None:
        """An outcome in a source that drains (it still counts), or was dropped (nothing counts, I6)."""
        if source.dropped:
            self.dropped += 1
            opened = self._orphans.end(record)
            if opened is not None:
                opened._source.ready.append(opened)
                self._turns.join(opened._source)
            return
        if outcome is None:
            self.dropped += 1
        else:
            source.complete((record.offset,))
            self._count(outcome)
        record._next = None
        source.draining -= 1
        if not source.draining:
            self.on_drained()

    # -- sources ---------------------------------------------------------------------------------------

    def stop(self, source: Source) -> int:
        """Start nothing more of this source. Returns how many of its records are in flight or producing."""
        self.keep_books()
        if not source.stopped:
            source.stopped = True
            self._turns.leave(source)
            source.ready.clear()
            source.held.clear()
            source.draining = sum(1 for record in self._begun() if record._source is source)
        return source.draining

    def drop(self, source: Source) -> None:
        """Forget this source. What has begun of it keeps its lane closed until it ends, and changes nothing."""
        if source.dropped:
            return
        self.stop(source)
        source.dropped = True
        for record in self._begun():
            if record._source is source:
                self._orphans.adopt(record)
                record._next = None
        if source.parked:
            self.parked_records = {record for record in self.parked_records if record._source is not source}
        self.dropped += source.buffered + source.parked
        source.buffered = source.buffered_bytes = 0
        source.lanes.clear()
        self.sources.pop(source, None)
        self.parking.forget(source)
        self.on_drained()

    def heads(self) -> set[AnyRecord]:
        """The first record of each lane, and all ready ones without order."""
        heads = {*self.in_flight, *self.producing, *self.parked_records, *self._orphans.waiting}
        for source in self.sources:
            heads.update(source.ready, source.held)
        return heads

    def _begun(self) -> Iterable[AnyRecord]:
        return itertools.chain(self.in_flight, self.producing)

    def pause(self) -> None:
        """Start nothing until :meth:`resume`."""
        self.keep_books()
        self.paused = True

    def resume(self) -> None:
        """Start again."""
        self.paused = False

    def set_ceiling(self, source: Source, ceiling: int) -> None:
        """Start nothing above this offset from now on; what was held back below it is ready again."""
        source.map_ceiling = ceiling
        self._reconsider(source)

    def _fullness_changed(self, source: Source) -> None:
        self._reconsider(source)
        self.on_full(source)

    def _reconsider(self, source: Source) -> None:
        source.ceiling = -1 if source.full else source.map_ceiling
        if source.held and not source.stopped:
            source.ready.extend(source.held)
            source.held.clear()
            self._turns.join(source)
