"""A turn: starts records of one source one after the other, until a handler suspends or fails.

A turn updates the counters once, not for each record. Code that reads them from inside a handler calls
:meth:`Turn.flush_counters` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Final

from aioparallel.engine.isolation import ENDED, Ended
from aioparallel.engine.schedule.counters import Counters, EndState
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import Offered
from aioparallel.engine.sources import Source
from aioparallel.handlers.batches import Call
from aioparallel.records.record import Record

__all__ = ["TOGETHER", "HandOver", "Step", "Taken", "TakenTogether", "Turn"]

AnyRecord = Record[Any, Any]

Step = Callable[[AnyRecord], object]
"""Makes the first step of a record's handler. Returns how it ended (:data:`~aioparallel.engine.isolation.ENDED` or an
:class:`~aioparallel.engine.isolation.Ended`), or anything else if it has suspended."""
HandOver = Callable[[AnyRecord, Ended], Offered | None]
"""Sends the output of a handler with a plain end. The delivery result comes later, never within this call. None: the
end was not plain, or the output could not be sent at once."""
_LEFT: Final = Offered.LEFT
Taken = tuple[AnyRecord, object]
"""A record in flight, and the result of its first step."""
TOGETHER: Final = object()
"""In place of the result: the first element is a call of several records."""
TakenTogether = tuple[Call, object]
# If the records of a measured turn took more seconds each, the next turns have one record: then its time is exact.
_SLOW: Final = 0.0005
_EXACT_TURNS: Final = 32
_ONE: Final = (None,)


class Turn:
    """The current turn. A scheduler has one object for all its turns."""

    __slots__ = (
        "_counters",
        "_current",
        "_ended",
        "_exact_turns",
        "_handed_over",
        "_is_taken",
        "_put_back",
        "_signals",
        "began",
        "source",
    )

    def __init__(self, counters: Counters, put_back: Callable[[AnyRecord], None], signals: Signals) -> None:
        self._counters = counters
        self._signals = signals
        self._put_back = put_back
        self.source: Source | None = None
        # Records of this turn that have ended, or are producing, and are not counted yet. And the record whose handler
        # makes its first step; None if it is counted as in flight.
        self._ended: list[AnyRecord] = []
        self._handed_over: list[AnyRecord] = []
        self._current: AnyRecord | None = None
        # Only if it is measured: when the first record that is not reported yet was started. After a turn: about when
        # the record was started that the turn returned.
        self.began = 0.0
        self._exact_turns = 0
        self._is_taken = False

    # The hot path in one function: a call would be paid for each record.
    def run(  # noqa: C901, PLR0912, PLR0915
        self, source: Source, step: Step, hand_over: HandOver, most: Iterable[object]
    ) -> Taken | None:
        """Start ready records, at most one for each element of ``most``. The first record whose end is not plain stays
        in flight and is returned with the result of its step. None: all started records have succeeded or are
        producing. If a step raises, its record is put back.

        ``most`` may be a list that another thread clears (:mod:`~aioparallel.engine.watch.loop_watch`): then the turn
        ends after the record that runs."""
        self.source = source
        ready, lanes, ended, counters = source.ready, source.lanes, self._ended, self._counters
        taken: Taken | None = None
        if self._signals.attempted is not None:
            self.began = perf_counter()
            if self._exact_turns:
                self._exact_turns -= 1
                most = _ONE
        try:
            for _ in most:
                if not ready:
                    break
                record = ready.popleft()
                if record._parks or record.offset > source.ceiling:
                    startable = self._start_slowly(record, source)
                    if startable is None:
                        break
                    record = startable
                else:
                    self._current = record
                outcome = step(record)
                if self._current is not record:  # a retry, or the counters were flushed: it is counted as in flight
                    taken = record, outcome
                    break
                if outcome is not ENDED:
                    offered = hand_over(record, outcome) if type(outcome) is Ended else None
                    if offered is None:
                        self._current = None
                        # The same lines as in counters.start(): its call would be paid for each record that suspends.
                        source.in_flight.add(record)
                        counters.in_flight += 1
                        source.buffered -= 1
                        source.buffered_bytes -= record._size
                        counters.taken_left -= 1
                        if not counters.taken_left:
                            counters.signals.taken()
                        taken = record, outcome
                        break
                    if offered is not _LEFT:
                        if self._current is not record:  # the counters were flushed while it was handed over
                            self.report_taken(record)
                            counters.produce(record)
                            break
                        self._handed_over.append(record)  # its lane stays closed
                        continue
                    if self._current is not record:
                        taken = record, ENDED
                        break
                ended.append(record)
                if record._lane is None:
                    continue
                following = record._next
                if following is None:
                    del lanes[record._lane]
                else:
                    record._next = None  # or code that keeps this record would keep all later ones alive
                    ready.append(following)
        except BaseException:
            self.flush_counters()
            self.source = None
            self._put_back(record)
            raise
        self._current = None
        if ended or self._handed_over:
            self._is_taken = taken is not None
            self.flush_counters()
            self._is_taken = False
        self.source = None
        return taken

    def _start_slowly(self, record: AnyRecord, source: Source) -> AnyRecord | None:
        """Return this record, or the first after it that is not held back. A retry is counted as in flight at once,
        because it was parked and not buffered."""
        ready = source.ready
        while True:
            self._current = None
            if not source.may_start(record):
                source.held.append(record)
                if not ready:
                    return None
                record = ready.popleft()
            elif record._parks:
                self.flush_counters()
                self._counters.start(record)
                return record
            else:
                self._current = record
                return record

    def flush_counters(self) -> None:
        """Count the records of this turn that have ended or were handed over so far. The record whose handler makes its
        first step counts as in flight from now on."""
        source, ended, handed_over, current = self.source, self._ended, self._handed_over, self._current
        if source is None:
            return
        signals = self._signals
        if (signals.attempted is not None or signals.completed is not None) and (ended or handed_over):
            self.source = None  # who measures may ask for the counters
            try:
                self._report()
            finally:
                self.source = source
        if handed_over:
            self._counters.start_and_produce(source, handed_over)
            handed_over.clear()
        if ended:
            self.source = None  # who hears that they are complete may ask for the counters
            try:
                self._counters.start_and_succeed(source, ended)
            finally:
                self.source = source
            ended.clear()
        if current is not None:
            self._current = None
            self._counters.start(current)

    def begin(self) -> None:
        """Note the time, if it is measured."""
        if self._signals.attempted is not None:
            self.began = perf_counter()

    def report_taken(self, record: AnyRecord) -> None:
        """Report a record whose handler has returned at once although it is counted as in flight."""
        if self._signals.attempted is not None:
            self._signals.attempted((record,), 1, self.began, perf_counter() - self.began, None)

    def _report(self) -> None:
        """Report the records that are not counted yet. Their handlers ran one after the other, and then, perhaps, the
        first step of the record that the turn returns: it has its part of the time, so that none counts twice."""
        signals = self._signals
        if signals.attempted is not None:
            began, now = self.began, perf_counter()
            records = [*self._ended, *self._handed_over] if self._handed_over else self._ended
            seconds = (now - began) / (len(records) + self._is_taken)
            self.began = now - seconds if self._is_taken else now
            if seconds > _SLOW:
                self._exact_turns = _EXACT_TURNS
            signals.attempted(records, len(records), began, seconds, None)
        if signals.completed is not None and self._ended:
            signals.completed(self._ended, EndState.SUCCEEDED.value)
