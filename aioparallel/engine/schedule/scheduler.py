"""The scheduler: which record runs next. Plain methods, no clock, no I/O, no event loop.

:mod:`~aioparallel.engine.schedule.counters` counts its records; its hot path is
:mod:`~aioparallel.engine.schedule.turn`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from aioparallel.config.handling import OrderBy, Ordering
from aioparallel.engine.isolation import ENDED
from aioparallel.engine.schedule.batch_assembler import BatchAssembler, DueBatches
from aioparallel.engine.schedule.counters import Counters, EndState
from aioparallel.engine.schedule.fairness import MakeTurnQueue, round_robin
from aioparallel.engine.schedule.lanes import StaleLanes, lane_keys
from aioparallel.engine.schedule.parking import Parking
from aioparallel.engine.schedule.skipping import Waiting
from aioparallel.engine.schedule.success_reports import SuccessReports
from aioparallel.engine.schedule.turn import TOGETHER, HandOver, Step, Taken, TakenTogether, Turn
from aioparallel.engine.signals import Completed, Signals
from aioparallel.engine.sources import EndCounts, Source
from aioparallel.handlers.batches import Call
from aioparallel.handlers.stack import Batchings
from aioparallel.records.history import history_of
from aioparallel.records.record import Record

__all__ = ["AnyRecord", "PausesOf", "Scheduler"]

AnyRecord = Record[Any, Any]


PausesOf = Callable[[Hashable], tuple[bool, Callable[[AnyRecord], bool] | None]]
"""Returns :attr:`Source.paused` and :attr:`Source.pauses` for the name of a source."""


def _ignore(source: Source) -> None:
    pass


def _no_pauses(name: Hashable) -> tuple[bool, None]:
    return False, None


class Scheduler:
    """Keeps the lanes of all sources, and moves each record from admitted to ended. A source is an assignment of a
    partition, or the items of one iterable.

    ``slots``: how many handlers may run at once. Sources share them fairly: one that holds more than its share lets the
    others go first. ``max_parked``: the bound of :class:`~aioparallel.engine.schedule.parking.Parking`.
    ``on_drained(source)`` is called when a stopped source has nothing in flight or producing, and when a source is
    dropped. ``on_full(source)`` is called when :attr:`Source.full` changes. ``turns``: makes the queue in which sources
    take turns.
    """

    def __init__(
        self,
        ordering: Ordering = Ordering.KEY,
        order_by: OrderBy | None = None,
        *,
        slots: int = sys.maxsize,
        max_parked: int = sys.maxsize,
        signals: Signals | None = None,
        on_drained: Callable[[Source], None] = _ignore,
        on_full: Callable[[Source], None] = _ignore,
        batchings: Batchings | None = None,
        turns: MakeTurnQueue = round_robin,
    ) -> None:
        self._ordering = ordering
        self._order_by = order_by
        self._stale_lanes = StaleLanes()
        self._on_drained = on_drained
        self._on_full = on_full
        # A dict, not a set: a simulation must take the same turns each time, so the order must not depend on addresses.
        self.sources: dict[Source, None] = {}
        self._parking = Parking(max_parked, self.sources, self._fullness_changed)
        self.slots = slots
        self._signals = signals or Signals()
        self.counters = Counters(self._parking, self._signals)
        self.end_counts: dict[Hashable, EndCounts] = {}
        """By name of a source, from its first record on."""
        self._turns = turns(slots, self.counters)
        self._line = self._turns.line
        self.turn = Turn(self.counters, self.put_back, self._signals)
        self.reports = SuccessReports(self._signals)
        self.assembler = None if batchings is None else BatchAssembler(self._turns, self.counters, batchings)
        """None: there are no batch handlers, so each record has its own call."""
        self.paused = False
        self.pauses_of: PausesOf = _no_pauses
        """After a change of what it returns, call :meth:`follow_pauses` for all sources."""

    @property
    def ready(self) -> int:
        """How many lanes, and records without a lane, could start now."""
        return sum(len(source.ready) for source in self.sources)

    @property
    def has_ready(self) -> bool:
        """Whether a source is in line and the scheduler is not paused. The source may still have nothing that may
        start."""
        return bool(self._line) and not self.paused

    @property
    def buffered(self) -> int:
        """Records admitted and never started."""
        return sum(source.buffered for source in self.sources)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of keys, values and headers of the buffered records."""
        return sum(source.buffered_bytes for source in self.sources)

    @property
    def parked(self) -> int:
        """Records that wait for their next attempt."""
        return self._parking.count

    @property
    def begun(self) -> int:
        """Records in flight or producing."""
        return self.counters.in_flight + self.counters.producing

    @property
    def unfinished(self) -> int:
        """Records admitted and not ended."""
        return self.buffered + self.parked + self.begun

    # -- in ---------------------------------------------------------------------------------------------

    def admit(self, source: Source, records: Sequence[AnyRecord]) -> None:
        """Put records, ascending by offset, into their lanes."""
        lanes, ready = source.lanes, source.ready
        heads = len(ready)
        stale_lanes = self._stale_lanes if self._stale_lanes.left else None
        buffered_bytes = 0
        for record, key in zip(records, lane_keys(records, self._ordering, self._order_by), strict=False):
            buffered_bytes += record._size
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
            elif stale_lanes is None or not stale_lanes.close(record):
                ready.append(record)
        if source not in self.sources:
            self.sources[source] = None
            source.counts = self.end_counts.setdefault(source.name, source.counts)
            self._parking.join(source)
            if self.assembler is not None:
                self.assembler.join(source, records[0])
            self.follow_pauses((source,))
        self.counters.admitted += len(records)
        source.counts.admitted += len(records)
        source.buffered += len(records)
        source.buffered_bytes += buffered_bytes
        if self.assembler is not None:
            self.assembler.admitted(source, records, len(ready) - heads)
        if ready:
            self._turns.join(source)

    # -- out --------------------------------------------------------------------------------------------

    def run_ready(self, step: Step, hand_over: HandOver, most: Iterable[object]) -> Taken | TakenTogether | None:
        """Start ready records of one source by calling ``step(record)``: at most as many as ``most`` has elements.

        A record whose step returns :data:`~aioparallel.engine.isolation.ENDED` has succeeded. After a plain end,
        ``hand_over(record, ended)`` reports whether the record is producing or has succeeded. The first record with
        another result stays in flight and is returned with that result. None: there was no such record, or nothing was
        ready (:attr:`has_ready`).

        If the records of the source go into batches, a call in flight is returned and no step was made.
        """
        if not self._line or self.paused:
            return None
        turns = self._turns
        source = turns.begin()
        try:
            if type(source) is not DueBatches and source.batching is None:
                taken = self.turn.run(source, step, hand_over, most)
            else:
                assert self.assembler is not None
                found = self.assembler.take(source)
                if found is None:
                    return None
                if isinstance(found, Call):
                    return found, TOGETHER
                taken = self._run_by_itself(found, step)
        finally:
            turns.end(source)
        if taken is not None and taken[1] is ENDED:
            self.turn.report_taken(taken[0])
            self.succeed(taken[0])
            return None
        return taken

    def _run_by_itself(self, record: AnyRecord, step: Step) -> Taken:
        """Start a record that goes into no batch, although others of its source do."""
        self.counters.start(record)
        self.turn.begin()
        try:
            return record, step(record)
        except BaseException:
            self.put_back(record)
            raise

    def flush_counters(self) -> None:
        """Bring the counters up to date in the middle of a turn, because a handler may read them."""
        self.turn.flush_counters()
        self.reports.flush()

    # -- outcomes ---------------------------------------------------------------------------------------

    def succeed(self, record: AnyRecord, is_reported: bool = False) -> None:
        """End a record whose handler has succeeded: complete its offset, and open its lane for the next record.

        ``is_reported``: its source is not stopped, and the caller reports it."""
        source, counters = record._source, self.counters
        source.in_flight.remove(record)
        counters.in_flight -= 1
        if source.stopped:
            self._end_stopped(record, source, EndState.SUCCEEDED)
            return
        source.complete(record.offset)
        counters.succeeded += 1
        counters.succeeded_left -= 1
        if not counters.succeeded_left:
            counters.signals.succeeded()
        if self._signals.completed is not None and not is_reported:
            self._signals.completed((record,), EndState.SUCCEEDED.value)
        if record._lane is None:
            return
        following = record._next
        if following is None:
            del source.lanes[record._lane]
        else:
            record._next = None
            source.ready.append(following)
            if not source.is_queued:
                self._turns.join(source)

    def succeed_together(self, call: Call) -> None:
        """End a call in flight whose records have all succeeded."""
        assert self.assembler is not None
        if any(source.stopped for source in call.parts):
            self.settle(call, ())
            return
        self.assembler.ended(call)
        mates, count = call.mates, 0
        for source, records in call.parts.items():
            source.in_flight.difference_update(records)
            source.complete_all([record.offset for record in records])
            count += len(records)
            lanes, ready = source.lanes, source.ready
            if not lanes:
                continue
            for record in records:
                if record._lane is None:
                    continue
                following = record._next
                if following is None:
                    del lanes[record._lane]
                    continue
                record._next = None
                if not mates or following not in mates:
                    ready.append(following)
            if ready:
                self._turns.join(source)
        self.counters.in_flight -= count
        self.counters.count_succeeded(count)
        if self._signals.completed is not None:
            for records in call.parts.values():
                self._signals.completed(records, EndState.SUCCEEDED.value)

    def produce_together(self, call: Call) -> None:
        """Move a call from in flight to producing. :meth:`settle` must follow."""
        assert self.assembler is not None
        self.assembler.ended(call)
        self.counters.produce_together(call)

    def settle(self, call: Call, failed: Collection[AnyRecord]) -> list[AnyRecord]:
        """End a call whose records are in flight or producing: the ``failed`` ones have failed, the others succeeded.

        Returns the failed records that still need an outcome, in flight or producing. That is the first failed record
        of each lane. The records behind it in the lane are parked. Each becomes ready when the record before it has
        ended. Records of dropped sources are ended.
        """
        assert self.assembler is not None
        self.assembler.ended(call)
        closed: set[tuple[Source, Hashable]] = set()
        still: list[AnyRecord] = []
        for record in call.records:
            source = record._source
            lane = source, record._lane
            if source.dropped:
                self.counters.leave(record)
                self._end_stopped(record, source, None)
            elif lane in closed:
                self._put_behind(record)
            elif record in failed:
                still.append(record)
                if record._lane is not None:
                    closed.add(lane)
            else:
                self.end(record, EndState.SUCCEEDED, call.mates)
        return still

    def _put_behind(self, record: AnyRecord) -> None:
        """Park a record without a retry time. It becomes ready when the record before it in its lane has ended, or when
        the caller makes it ready."""
        source = record._source
        self.counters.leave(record)
        if source.stopped:
            self._end_stopped(record, source, None)
            return
        if not record._parks:
            record._parks = history_of(record).idle_parks = 1
        self._parking.enter(record)

    def put_back_together(self, call: Call) -> None:
        """Make all records of a call ready again, with the same attempt."""
        for record in self.settle(call, set(call.records)):
            self.put_back(record)

    def end_produced(self, records: Sequence[AnyRecord]) -> None:
        """End producing records whose outputs are all acknowledged: they have succeeded.

        There may be hundreds, because whole batches are acknowledged at once. So the counters are updated once for each
        source.
        """
        self.flush_counters()
        completed: defaultdict[Source, list[int]] = defaultdict(list)
        if self._signals.completed is not None:
            self._report_produced(self._signals.completed, records)
        for record in records:
            source = record._source
            source.producing.remove(record)
            if source.stopped:
                self.counters.producing -= 1
                self._end_stopped(record, source, EndState.SUCCEEDED)
                continue
            completed[source].append(record.offset)
            # The same lines as in succeed(): a shared function would cost 1 % of all work for a record.
            if record._lane is None:
                continue
            following = record._next
            if following is None:
                del source.lanes[record._lane]
            else:
                record._next = None
                source.ready.append(following)
                if not source.is_queued:
                    self._turns.join(source)
        count = 0
        for source, offsets in completed.items():
            source.complete_all(offsets)
            count += len(offsets)
        self.counters.producing -= count
        self.counters.count_succeeded(count)

    @staticmethod
    def _report_produced(completed: Completed, records: Sequence[AnyRecord]) -> None:
        parts: defaultdict[Source, list[AnyRecord]] = defaultdict(list)
        for record in records:
            if not record._source.stopped:  # else reported when it is counted
                parts[record._source].append(record)
        for part in parts.values():
            completed(part, EndState.SUCCEEDED.value)

    def end(self, record: AnyRecord, outcome: EndState, mates: Collection[AnyRecord] = ()) -> None:
        """End a record in flight or producing.

        ``mates``: the records of the same call that follow another record of the call in their lane. They do not become
        ready when a lane opens.
        """
        source = record._source
        self.counters.leave(record)
        if source.stopped:
            self._end_stopped(record, source, outcome)
            return
        self._count(record, source, outcome)
        if record._lane is None:
            return
        following, record._next = record._next, None
        if following is None:
            del source.lanes[record._lane]
        elif following not in mates:
            source.ready.append(following)
            self._turns.join(source)

    def produce(self, record: AnyRecord) -> None:
        """Move a record from in flight to producing. Its lane stays closed.

        :meth:`end`, :meth:`end_produced`, :meth:`park` or :meth:`put_back` must follow, even if the source is dropped
        meanwhile.
        """
        self.counters.produce(record)

    def park(self, record: AnyRecord) -> bool:
        """Park a record whose attempt has failed. It keeps its place in its lane until :meth:`unpark`.

        False: its source is stopped, so the record is dropped.
        """
        source = record._source
        self.counters.leave(record)
        if source.stopped:
            self._end_stopped(record, source, None)
            return False
        record._parks += 1
        self._parking.enter(record)
        return True

    def unpark(self, record: AnyRecord) -> None:
        """Make a parked record ready. It counts as parked until it is started."""
        source = record._source
        if not source.stopped:
            source.ready.append(record)
            self._turns.join(source)

    def put_back(self, record: AnyRecord) -> None:
        """Make a record ready again at once, with the same attempt, because its start did not count.

        It counts as parked and due, not as buffered: records read meanwhile may have filled the buffer. The bound of
        parked records leaves room for all records in flight.
        """
        self._put_behind(record)
        self.unpark(record)

    def find(self, source: Source) -> Mapping[int, AnyRecord]:
        """Return the unfinished records of a source by offset. Takes time in proportion to them."""
        self.flush_counters()
        return Waiting(source, self._stale_lanes, self.assembler).by_offset

    def skip(self, source: Source, records: Collection[AnyRecord], outcome: EndState | None = EndState.SKIPPED) -> None:
        """End buffered or parked records of a source that is not stopped, as skipped or released and without their
        handlers. Their lanes go on with the next record. ``outcome`` None: they are producing from now on."""
        self.flush_counters()
        waiting = Waiting(source, self._stale_lanes, self.assembler)
        in_batches = waiting.take_out(records)
        for record in sorted(records, key=lambda one: one.offset, reverse=True):  # each lane from its end
            waiting.unlink(record)
            self.counters.start(record)
            if outcome is None:
                self.produce(record)
            else:
                self.end(record, outcome, in_batches)
        if not source.ready:
            self._turns.leave(source)

    def count_dropped_as_dead_letter(self, record: AnyRecord) -> None:
        """Count a record of a stopped source as dead-lettered that was cut off, and so counted as dropped. Does nothing
        if its handler has not ended even so."""
        source = record._source
        if record not in source.in_flight and record not in source.producing:
            self.counters.dropped -= 1
            source.counts.dropped -= 1
            self.counters.count(source, EndState.DEAD_LETTERED)

    def _end_stopped(self, record: AnyRecord, source: Source, outcome: EndState | None) -> None:
        """Apply an outcome if the source is draining. Ignore it if the source is dropped (invariant I6 in
        docs/internals.md)."""
        record._next = None
        if source.dropped:
            self.counters.dropped += 1
            opened = self._stale_lanes.end(record)
            if opened is not None:
                self.unpark(opened)
            return
        if outcome is None:
            self.counters.dropped += 1
            source.counts.dropped += 1
        else:
            self._count(record, source, outcome)
        if not source.begun:
            self._on_drained(source)

    def _count(self, record: AnyRecord, source: Source, outcome: EndState) -> None:
        if outcome is EndState.RELEASED:
            source.release(record.offset)
        else:
            if outcome is not EndState.SUCCEEDED:
                source.gave_up(record.offset)
            source.complete(record.offset)
        self.counters.count(source, outcome)
        if self._signals.completed is not None:
            self._signals.completed((record,), outcome.value)

    # -- sources ----------------------------------------------------------------------------------------

    def stop(self, source: Source) -> int:
        """Start nothing more of this source. Returns how many of its records are in flight or producing."""
        self.flush_counters()
        if not source.stopped:
            source.stopped = True
            self._turns.leave(source)
            source.ready.clear()
            source.held.clear()
            if self.assembler is not None:
                self.assembler.leave(source)
        return source.begun

    def drop(self, source: Source) -> None:
        """Forget this source. A started record keeps its lane closed until it ends. Its outcome changes nothing."""
        if source.dropped:
            return
        self.stop(source)
        source.dropped = True
        if source.begun:
            self._stale_lanes.adopt(source)
        self.counters.drop(source)
        source.lanes.clear()
        self.sources.pop(source, None)
        self._on_drained(source)

    def heads(self) -> set[AnyRecord]:
        """Return the first record of each lane, and all started or ready records without a lane."""
        heads = {*self._stale_lanes.waiting}
        for source in self.sources:
            heads.update(source.in_flight, source.producing, source.parked, source.ready, source.held)
        if self.assembler is not None:
            heads.update(self.assembler.heads)
            # Several records of one lane may be in one call, or parked after their call was put back.
            heads.difference_update([head._next for head in heads])
        return heads

    def pause(self) -> None:
        """Start nothing until :meth:`resume`."""
        self.flush_counters()
        self.paused = True

    def resume(self) -> None:
        """Start again."""
        self.paused = False

    def set_bounds(self, slots: int, max_parked: int) -> None:
        """Change how many handlers may run at once, and the bound of parked records."""
        self.slots = slots
        self._turns.set_slots(slots)
        self._parking.set_bound(max_parked)

    def follow_pauses(self, sources: Iterable[Source]) -> None:
        """Start nothing of these sources that is paused. Their records that are not paused any more become ready
        again."""
        changed = list[Source]()
        for source in sources:
            paused, pauses = self.pauses_of(source.name)
            if paused is source.paused and pauses is source.pauses:
                continue
            if paused is not source.paused and source in self.sources:
                changed.append(source)
            source.paused, source.pauses = paused, pauses
            self._reconsider(source)
        if changed:
            self._parking.follow_pauses(changed)

    def set_ceiling(self, source: Source, ceiling: int) -> None:
        """Start no record above this offset. Records below it that were held back become ready again."""
        source.map_ceiling = ceiling
        self._reconsider(source)

    def _fullness_changed(self, source: Source) -> None:
        self._reconsider(source)
        self._on_full(source)

    def _reconsider(self, source: Source) -> None:
        checks = source.full or source.paused or source.pauses is not None
        source.ceiling = -1 if checks else source.map_ceiling
        if source.held and not source.stopped and not source.paused:
            held, source.held = source.held, []
            # Not one by one in a turn: there may be a hundred thousand that stay paused.
            for record in held:
                (source.ready if source.may_start(record) else source.held).append(record)
            if source.ready:
                self._turns.join(source)
        if self.assembler is not None and not source.stopped:
            self.assembler.hold(source)
