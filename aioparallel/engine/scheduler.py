"""The scheduler: which record runs next. Plain methods, no clock, no I/O, no event loop.

Counts obey I5 at every step: admitted = buffered + parked + in flight + producing + ended + dropped, where ended is
succeeded + dead-lettered + skipped.
"""

from __future__ import annotations

import enum
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aioparallel.engine.lanes import Lane, lane_keys, size_of
from aioparallel.engine.orphans import Orphans
from aioparallel.engine.parking import Parking
from aioparallel.engine.session import Session, SessionState
from aioparallel.options import OrderBy, Ordering
from aioparallel.records import Record

__all__ = ["Outcome", "Scheduler"]

AnyRecord = Record[Any, Any]


class Outcome(enum.Enum):
    """How a record ended."""

    SUCCEEDED = "succeeded"
    DEAD_LETTERED = "dead-lettered"
    """In the dead-letter topic, put away by a function, or in a retry topic."""
    SKIPPED = "skipped"


def _nothing() -> None:
    pass


def _ignore(session: Session) -> None:
    pass


class Scheduler:
    """Lanes of all sessions, and their records from admitted to ended.

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
        self._slots = slots
        self._ring: deque[Session] = deque()  # sessions with something ready, in turn
        self._orphans = Orphans()
        self.paused = False

        self.sessions: set[Session] = set()
        self.in_flight: set[AnyRecord] = set()
        self.producing: set[AnyRecord] = set()
        self.ready = 0  # lanes (and records without order) that could start now
        self.admitted = 0
        self.succeeded = 0
        self.dead_lettered = 0
        self.skipped = 0
        self.dropped = 0
        self.failed_attempts = 0
        self.parking = Parking(max_parked, self.sessions, self._fullness_changed)

        self.taken_left = sys.maxsize
        self.on_taken: Callable[[], None] = _nothing
        self.succeeded_left = sys.maxsize
        self.on_succeeded: Callable[[], None] = _nothing
        self.on_drained: Callable[[], None] = _nothing  # the last record of a stopped session that was waited for ended
        self.on_full: Callable[[Session], None] = _ignore  # a session became full of parked records, or no more

    # Buffered is counted by session alone: the sum is wanted once a fetch, the parts once a record.

    @property
    def buffered(self) -> int:
        """Records admitted and never started yet."""
        return sum(session.buffered for session in self.sessions)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of keys, values and headers of the buffered records."""
        return sum(session.buffered_bytes for session in self.sessions)

    @property
    def parked(self) -> int:
        """Records that wait for their next attempt."""
        return self.parking.count

    @property
    def unfinished(self) -> int:
        """Records admitted and not ended."""
        return self.buffered + self.parked + len(self.in_flight) + len(self.producing)

    # -- in ---------------------------------------------------------------------------------------------

    def admit(self, session: Session, records: Sequence[AnyRecord]) -> None:
        """Put records, ascending by offset and registered in the session's ledger, into their lanes."""
        lanes, ready, loose = session.lanes, session.ready, session.loose
        ready_before, size = len(ready), 0
        for record, key in zip(records, lane_keys(records, self._ordering, self._order_by), strict=False):
            record._next = None
            record._size = record_size = size_of(record)
            size += record_size
            if key is None:
                record._lane = loose
                ready.append(record)
                continue
            lane = lanes.get(key)
            if lane is not None:
                record._lane = lane
                lane.append(record)
                continue
            record._lane = lanes[key] = lane = Lane(session, key, record)
            if not (self._orphans and self._orphans.close(lane)):
                ready.append(lane)
        if session not in self.sessions:
            self.sessions.add(session)
            self.parking.join(session)
        self.admitted += len(records)
        session.buffered += len(records)
        session.buffered_bytes += size
        self._became_ready(session, len(ready) - ready_before)

    def _became_ready(self, session: Session, count: int) -> None:
        self.ready += count
        if count and not session.in_ring:
            session.in_ring = True
            self._ring.append(session)

    # -- out --------------------------------------------------------------------------------------------

    def take(self) -> AnyRecord | None:
        """The next record to run, now in flight; None when nothing is ready.

        Sessions take turns; one that holds more than its share of the slots lets the others go first. So a topic
        whose handlers hang takes no more than its part from those that are well.
        """
        if self.paused:
            return None
        ring = self._ring
        passed_over = 0
        while ring:
            session = ring[0]
            if not session.ready:
                ring.popleft()
                session.in_ring = False
                continue
            if session.in_flight * len(ring) > self._slots and passed_over < len(ring):
                passed_over += 1
                ring.rotate(-1)
                continue
            item = session.ready.popleft()
            self.ready -= 1
            record = item if isinstance(item, Record) else item.head
            assert record is not None
            if record.offset > session.ceiling and not (record._parks and record.offset <= session.map_ceiling):
                session.held.append(item)
                continue
            ring.rotate(-1)
            self._start(session, record)
            return record
        return None

    def _start(self, session: Session, record: AnyRecord) -> None:
        self.in_flight.add(record)
        session.in_flight += 1
        if record._parks:
            self.parking.leave(session)
        else:
            session.buffered -= 1
            session.buffered_bytes -= record._size
        self.taken_left -= 1
        if not self.taken_left:
            self.on_taken()

    # -- outcomes ---------------------------------------------------------------------------------------

    def succeed(self, record: AnyRecord) -> None:
        """The handler has ended well: complete the offset and open the lane for the next record."""
        lane = record._lane
        session = lane.session
        self.in_flight.remove(record)
        session.in_flight -= 1
        if session.stopped:
            self._end_stopped(record, session, Outcome.SUCCEEDED)
            return
        session.ledger.complete(record.offset)
        self.succeeded += 1
        self.succeeded_left -= 1
        if not self.succeeded_left:
            self.on_succeeded()
        if lane.key is None:
            return
        lane.head = following = record._next
        if following is None:
            # Nothing of the lane points back at the record: a cycle for each record would live until a full
            # garbage collection, which are rare.
            lane.tail = None
            del session.lanes[lane.key]
        else:
            record._next = None  # or whoever keeps a record would keep all that came after it
            session.ready.append(lane)
            self._became_ready(session, 1)

    def end(self, record: AnyRecord, outcome: Outcome) -> None:
        """A record in flight or producing has ended in another way, or after its outputs were acknowledged."""
        session = record._lane.session
        if session.stopped:
            self._leave(record)
            self._end_stopped(record, session, outcome)
            return
        # From here on it is a success; the hot path stays in one piece.
        if record in self.producing:
            self.producing.remove(record)
            self.in_flight.add(record)
            session.in_flight += 1
        self.succeed(record)
        if outcome is not Outcome.SUCCEEDED:
            self.succeeded -= 1
            self._count(outcome)

    def _leave(self, record: AnyRecord) -> None:
        if record in self.producing:
            self.producing.remove(record)
        else:
            self.in_flight.remove(record)
            record._lane.session.in_flight -= 1

    def _count(self, outcome: Outcome) -> None:
        if outcome is Outcome.SUCCEEDED:
            self.succeeded += 1
        elif outcome is Outcome.DEAD_LETTERED:
            self.dead_lettered += 1
        else:
            self.skipped += 1

    def produce(self, record: AnyRecord) -> None:
        """The handler has ended, its outputs are on their way: no longer in flight, the lane still closed.

        :meth:`end` or :meth:`park` comes next, whatever becomes of the session meanwhile.
        """
        self.in_flight.remove(record)
        record._lane.session.in_flight -= 1
        self.producing.add(record)

    def park(self, record: AnyRecord) -> bool:
        """The attempt failed: the record keeps its place in its lane and waits for :meth:`unpark`.

        False when its session is stopped: then nobody waits for it any more.
        """
        session = record._lane.session
        self._leave(record)
        if session.stopped:
            self._end_stopped(record, session, None)
            return False
        record._parks += 1
        self.parking.enter(session)
        return True

    def unpark(self, record: AnyRecord) -> None:
        """The retry time has come. The record counts as parked until it is taken again."""
        self._ready_again(record)

    def put_back(self, record: AnyRecord) -> None:
        """The start did not count: the record is ready again at once, with the same attempt."""
        session = record._lane.session
        self._leave(record)
        if session.stopped:
            self._end_stopped(record, session, None)
            return
        if record._parks:
            self.parking.enter(session)
        else:
            session.buffered += 1
            session.buffered_bytes += record._size
        self._ready_again(record)

    def _ready_again(self, record: AnyRecord) -> None:
        lane = record._lane
        if not lane.session.stopped:
            lane.session.ready.append(record if lane.key is None else lane)
            self._became_ready(lane.session, 1)

    def _end_stopped(self, record: AnyRecord, session: Session, outcome: Outcome | None) -> None:
        """An outcome in a session that drains (it still counts), or was dropped (nothing counts, I6)."""
        lane = record._lane
        if session.state is SessionState.DROPPED:
            self.dropped += 1
            opened = self._orphans.end(lane)
            if opened is not None:
                opened.session.ready.append(opened)
                self._became_ready(opened.session, 1)
            return
        if outcome is None:
            self.dropped += 1
        else:
            session.ledger.complete(record.offset)
            self._count(outcome)
        if lane.key is not None:
            lane.head = record._next
        session.draining -= 1
        if not session.draining:
            self.on_drained()

    # -- sessions ---------------------------------------------------------------------------------------

    def stop(self, session: Session) -> int:
        """Start nothing more of this session. Returns how many of its records are in flight or producing."""
        if not session.stopped:
            session.stopped = True
            self.ready -= len(session.ready)
            session.ready.clear()
            session.held.clear()
            session.draining = sum(1 for record in self._begun() if record._lane.session is session)
        return session.draining

    def drop(self, session: Session) -> None:
        """Forget this session. What has begun of it keeps its lane closed until it ends, and changes nothing."""
        if session.state is SessionState.DROPPED:
            return
        self.stop(session)
        session.state = SessionState.DROPPED
        for lane in session.lanes.values():
            lane.head = lane.tail = None
        for record in self._begun():
            if record._lane.session is session:
                self._orphans.adopt(record._lane)
                record._next = None
        self.dropped += session.buffered + session.parked
        session.buffered = session.buffered_bytes = 0
        session.lanes.clear()
        self.sessions.discard(session)
        self.parking.forget(session)
        self.on_drained()

    def _begun(self) -> Iterable[AnyRecord]:
        return itertools.chain(self.in_flight, self.producing)

    def set_ceiling(self, session: Session, ceiling: int) -> None:
        """Start nothing above this offset from now on; what was held back below it is ready again."""
        session.map_ceiling = ceiling
        self._reconsider(session)

    def _fullness_changed(self, session: Session) -> None:
        self._reconsider(session)
        self.on_full(session)

    def _reconsider(self, session: Session) -> None:
        session.ceiling = -1 if session.full else session.map_ceiling
        if session.held and not session.stopped:
            session.ready.extend(session.held)
            self._became_ready(session, len(session.held))
            session.held.clear()
