"""When parked records may run again: a heap with one timer for all, or a gate that wakes them."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Collection
from typing import Any

from aioparallel.engine.outcomes.gates import Gate, NoRoom, give_back_of
from aioparallel.engine.outcomes.throttling import Throttled
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.engine.watch.cancellation import EARLY
from aioparallel.observe.stats import Waiting
from aioparallel.records.history import history_of
from aioparallel.records.record import Record

__all__ = ["Retries", "RetryQueue"]

# The most parked records that one turn of the event loop makes ready (about half a millisecond).
_AT_ONCE = 1_000
# The queue is cleaned up when it holds twice as many entries as records are parked, and so many more: the others belong
# to dropped sources.
_FORGOTTEN = 1_000

AnyRecord = Record[Any, Any]


class RetryQueue:
    """Parked records by the time of their next attempt (seconds, on any one clock). Plain: times are passed in."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, AnyRecord]] = []
        self._sequence = itertools.count()  # keeps the order of records with the same time; records are not comparable

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, record: AnyRecord, when: float) -> None:
        """Add a record that becomes due at ``when``."""
        heapq.heappush(self._heap, (when, next(self._sequence), record))

    @property
    def next_time(self) -> float | None:
        """When the first record becomes due; None if the queue is empty."""
        return self._heap[0][0] if self._heap else None

    def keep(self, wanted: Callable[[AnyRecord], bool]) -> None:
        """Remove the records that are not ``wanted``. Takes time in proportion to all records."""
        self._heap = [entry for entry in self._heap if wanted(entry[2])]
        heapq.heapify(self._heap)

    def due(self, now: float, at_most: int = sys.maxsize) -> list[AnyRecord]:
        """Remove and return due records in order. Records with one time stay together, even beyond ``at_most``."""
        taken: list[AnyRecord] = []
        last = -math.inf
        while self._heap and (first := self._heap[0][0]) <= now and (len(taken) < at_most or first == last):
            last = first
            taken.append(heapq.heappop(self._heap)[2])
        return taken


class Retries:
    """Parks records, and makes them ready when they are due or woken. Then it calls ``on_ready()``."""

    def __init__(self, scheduler: Scheduler, on_ready: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._on_ready = on_ready
        self._queue = RetryQueue()
        # uvloop returns a handle without a time if the time has passed, so the time is kept separately.
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._gates: weakref.WeakSet[Gate] = weakref.WeakSet()  # at which records have waited or were refused

    def park(self, record: AnyRecord, delay: float | None, now: float | None = None) -> None:
        """Park a record for ``delay`` seconds; None: for good, because the run ends. ``now``: when the delay begins, on
        the loop's clock. Records parked with the same ``now`` and delay become ready in one step."""
        if not self._scheduler.park(record) or delay is None:
            return
        self._queue.add(record, (asyncio.get_running_loop().time() if now is None else now) + delay)
        if len(self._queue) > 2 * self._scheduler.parked + _FORGOTTEN:
            # Without this, records of dropped sources stay until they are due, perhaps for hours.
            self._queue.keep(lambda one: one._source.current)
        self._set_timer()

    def wait_at(self, no_room: NoRoom, record: AnyRecord, longest: float | None) -> None:
        """Park a record until its gate wakes it, or ``longest`` seconds have passed. None or infinity: no limit."""
        if self._scheduler.park(record) and not self._closed:
            self._gates.add(no_room.gate)
            no_room.gate.wait(record, self, None if longest == math.inf else longest, no_room.reserving)

    def forget(self, records: Collection[AnyRecord]) -> None:
        """Forget when these records become due: they have ended."""
        for record in records:
            give_back_of(record)
        self._queue.keep(lambda record: record not in records)

    def watch(self, gate: Gate) -> None:
        """Show this gate in :attr:`throttled`."""
        self._gates.add(gate)

    @property
    def throttled(self) -> list[tuple[str, Throttled]]:
        """The gates that have refused most requests in the last minute, by name."""
        found = [(gate.name, throttled) for gate in self._gates if (throttled := gate.throttled) is not None]
        return sorted(one for one in found if one[1].is_mostly)

    @property
    def at_gates(self) -> list[Waiting]:
        """The gates at which records wait, the longest wait first."""
        found = [waiting for gate in self._gates if (waiting := gate.waiting) is not None]
        return sorted(found, key=lambda one: -one.seconds)

    @property
    def next_time(self) -> float:
        """When the next parked record may run, on the loop's clock; infinity if none has a time. Minus infinity if
        records wait at gates, because they may be woken at any moment."""
        if self.at_gates:
            return -math.inf
        return math.inf if (when := self._queue.next_time) is None else when

    def wake(self, record: AnyRecord, seconds: float) -> bool:
        """Make a record ready that a gate has let through. False: it is not parked any more, or paused, so it needs no
        place now."""
        if self._closed or not self.is_waiting(record):
            return False
        history_of(record).waited_at_gate(seconds)
        self._scheduler.unpark(record)
        self._on_ready()
        return not record._source.is_paused(record)

    def is_waiting(self, record: AnyRecord) -> bool:
        """Whether the record is still parked, or ready and not started."""
        return not record._source.stopped and record in record._source.parked

    def is_coming(self, record: AnyRecord) -> bool:
        """Whether a woken record runs or may be started. A record above the ceiling of its offset map does not come,
        nor does a paused one. It must hold no place, because the ceiling may wait for a record in line at the same
        gate."""
        source = record._source
        return record in source.in_flight or (self.is_waiting(record) and source.may_start(record))

    def close(self) -> None:
        """Make nothing ready any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        when = self._queue.next_time
        if self._closed or when is None or (self._timer is not None and self._timer_at <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = asyncio.get_running_loop().call_at(when, self._unpark_due), when

    def _unpark_due(self) -> None:
        self._timer = None
        for record in self._queue.due(asyncio.get_running_loop().time() + EARLY, _AT_ONCE):
            self._scheduler.unpark(record)
        self._set_timer()  # it fires at once if more records are due
        self._on_ready()
