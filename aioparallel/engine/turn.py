"""A turn: records of one source are started, one after the other, until a handler suspends or fails.

A turn updates the counters once, not for each record. Code that reads them from inside a handler calls
:meth:`Turn.flush_counters` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from aioparallel.batches import Call
from aioparallel.engine.counters import Counters
from aioparallel.engine.isolation import ENDED, Ended
from aioparallel.engine.sinks import Offered
from aioparallel.engine.sources import Source
from aioparallel.records import Record

__all__ = ["TOGETHER", "HandOver", "Step", "Taken", "TakenTogether", "Turn"]

AnyRecord = Record[Any, Any]

Step = Callable[[AnyRecord], object]
"""The first step of a record's handler: how it ended (:data:`~aioparallel.engine.isolation.ENDED` or an
:class:`~aioparallel.engine.isolation.Ended`), or anything else when it goes on."""
HandOver = Callable[[AnyRecord, Ended], Offered | None]
"""What became of the outputs of a handler's plain end. What becomes of those on their way is told later, never within
this call. None: it was no plain end, or they could not leave at once."""
_LEFT: Final = Offered.LEFT
Taken = tuple[AnyRecord, object]
"""A record in flight, and what its first step has returned."""
TOGETHER: Final = object()
"""In the place of that: it is a call of several records."""
TakenTogether = tuple[Call, object]


class Turn:
    """The turn that runs now, or none. There is one object for all turns of a scheduler."""

    __slots__ = ("_counters", "_current", "_ended", "_handed_over", "_put_back", "source")

    def __init__(self, counters: Counters, put_back: Callable[[AnyRecord], None]) -> None:
        self._counters = counters
        self._put_back = put_back
        self.source: Source | None = None
        # What of it has ended, or is producing, and is not counted yet; and the record whose handler is in its first
        # step, unless it is counted as in flight.
        self._ended: list[AnyRecord] = []
        self._handed_over: list[AnyRecord] = []
        self._current: AnyRecord | None = None

    # The hot path in one piece: every call would be paid for each record.
    def run(  # noqa: C901, PLR0912, PLR0915
        self, source: Source, step: Step, hand_over: HandOver, most: Iterable[object]
    ) -> Taken | None:
        """Start ready records, as many as ``most`` has elements. The first whose end is not plain is in flight, and
        comes back with what its step returned; None: all that were started have ended well, or are producing. Where a
        step raises, its record is put back.

        ``most`` may be a list that another thread clears (:mod:`~aioparallel.engine.loop_watch`): then the record that
        runs now is the last."""
        self.source = source
        ready, lanes, ended, counters = source.ready, source.lanes, self._ended, self._counters
        taken: Taken | None = None
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
                if self._current is not record:  # a retry, or somebody has looked: it is in flight
                    taken = record, outcome
                    break
                if outcome is not ENDED:
                    offered = hand_over(record, outcome) if type(outcome) is Ended else None
                    if offered is None:
                        self._current = None
                        # As in counters.start(), whose call would be paid for each record that suspends.
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
                        if self._current is not record:  # somebody has looked while it was handed over
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
                    record._next = None  # or whoever keeps a record would keep all that came after it
                    ready.append(following)
        except BaseException:
            self.flush_counters()
            self.source = None
            self._put_back(record)
            raise
        self._current = None
        if ended or self._handed_over:
            self.flush_counters()
        self.source = None
        return taken

    def _start_slowly(self, record: AnyRecord, source: Source) -> AnyRecord | None:
        """This record or the first after it that is not held back. A retry is started: it has books of its own."""
        ready = source.ready
        while True:
            self._current = None
            if record.offset > (source.map_ceiling if record._parks else source.ceiling):
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
        """Count the records of this turn that have ended or were handed over so far. The record whose handler runs its
        first step now counts as in flight."""
        source, ended, handed_over, current = self.source, self._ended, self._handed_over, self._current
        if source is None:
            return
        if handed_over:
            self._counters.start_and_produce(source, handed_over)
            handed_over.clear()
        if ended:
            self._counters.start_and_succeed(source, ended)
            ended.clear()
        if current is not None:
            self._current = None
            self._counters.start(current)
