"""The locks of acquired records: what must be done before they end.

Plain: no ``await``, no I/O; times are passed in, in seconds.

From the half of its time on, a lock is looked at again and again:

* Its record runs, waits for its next attempt, or its outputs are sent: the lock is renewed. If that is refused, the
  handler is cancelled, and the attempt is given up, shortly before the end.
* Its record was not begun: it keeps its place if it will begin before the lock ends, by the measured throughput. If it
  will begin within another lock, the lock is renewed. Otherwise the record is released to other members. So is a record
  that is still there shortly before the end. In its last delivery nobody would get it: the lock is renewed.
* Its offset cannot be read: it is released shortly before the end. Earlier would use up its deliveries within
  milliseconds.

A lock that ends without a renewal is *lost*: another member may have the record.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from aioparallel.records.record import Record, TopicPartition

__all__ = ["DueLocks", "Lock", "Locks", "Stage", "reserve_of"]

_LOOKS: Final = 16
"""Looks in the time of a lock."""
_RESERVE_PART: Final = 8
"""The reserve before the end of a lock, for an acknowledgement on its way: one of so many parts of the lock."""
_RESERVE_AT_MOST: Final = 2.0
_EARLY: Final = 0.0005
"""A timer may fire so many seconds early."""


class Stage(enum.Enum):
    """What becomes of a locked record now."""

    WAITING = "waiting"
    """It was not begun."""
    RUNNING = "running"
    PARKED = "parked"
    """It waits here for its next attempt."""
    PRODUCING = "producing"
    """Its handler has ended, and its outputs or its dead letter are sent."""
    UNREADABLE = "unreadable"
    """There is no record."""


class Lock:
    """The lock of one offset."""

    __slots__ = (
        "ends",
        "is_given_up",
        "is_last",
        "is_letter",
        "is_lost",
        "is_refused",
        "is_renewing",
        "number",
        "offset",
        "partition",
        "record",
    )

    def __init__(self, partition: TopicPartition, offset: int, record: Record[Any, Any] | None) -> None:
        self.partition = partition
        self.offset = offset
        self.record = record
        """None: it cannot be read."""
        self.ends = 0.0
        self.number = 0
        """Ascends in the order of acquisition."""
        self.is_last = False
        """The group gives the record up if it is released."""
        self.is_renewing = False
        """A renewal is not answered yet."""
        self.is_given_up = False
        """It cannot be renewed and ends soon: its handler was cancelled."""
        self.is_lost = False
        """It has ended."""
        self.is_letter = False
        """Its dead letter was sent, or is being sent."""
        self.is_refused = False
        """Its record was rejected or skipped."""


class DueLocks(NamedTuple):
    """What to do now. No lock is in two of the lists."""

    renew: list[Lock]
    release: list[Lock]
    give_up: list[Lock]
    """Cancel their handlers. The locks are not lost yet."""
    lost: list[Lock]


class _Term:
    """Locks that end together."""

    __slots__ = ("ends", "locks", "seconds")

    def __init__(self, ends: float, seconds: float) -> None:
        self.ends = ends
        self.seconds = seconds
        """From the acquisition or renewal to the end."""
        self.locks: dict[Lock, None] = {}

    def next_look(self, now: float) -> float:
        half = self.ends - self.seconds / 2
        if now + _EARLY < half:
            return half
        reserved = self.ends - reserve_of(self.seconds)
        upcoming = now + self.seconds / _LOOKS
        return min([upcoming, *[at for at in (reserved, self.ends) if at > now + _EARLY]])


def reserve_of(seconds: float) -> float:
    """Return how long before the end of a lock of so many seconds it is over for this member."""
    return min(seconds / _RESERVE_PART, _RESERVE_AT_MOST)


class Locks:
    """All locks of a member. ``stage_of(lock)``: what becomes of its record now. ``is_last(record)``: whether this is
    its last delivery, as far as known."""

    def __init__(self, stage_of: Callable[[Lock], Stage], is_last: Callable[[Record[Any, Any] | None], bool]) -> None:
        self._stage_of = stage_of
        self.is_last = is_last
        self._numbers = itertools.count()
        self._terms: dict[float, _Term] = {}
        self._heap: list[tuple[float, int, _Term]] = []
        self.seconds = 0.0
        """Of the last lock that was acquired or renewed."""

    def __len__(self) -> int:
        return sum([len(term.locks) for term in self._terms.values()])

    def __contains__(self, lock: Lock) -> bool:
        term = self._terms.get(lock.ends)
        return term is not None and lock in term.locks

    def add(self, locks: Iterable[Lock], ends: float, now: float) -> None:
        """Locks were acquired."""
        term = self._term(ends, now)
        for lock in locks:
            lock.is_last = self.is_last(lock.record)
            lock.ends = ends
            lock.number = next(self._numbers)
            term.locks[lock] = None

    def remove(self, lock: Lock) -> None:
        """The record is acknowledged, or its lock is lost."""
        if (term := self._terms.get(lock.ends)) is not None:
            term.locks.pop(lock, None)

    def renewed(self, lock: Lock, ends: float, now: float) -> None:
        """The broker has renewed a lock. Does nothing if it was removed meanwhile."""
        lock.is_renewing = False
        if lock not in self:
            return
        del self._terms[lock.ends].locks[lock]
        lock.ends = ends
        lock.is_given_up = False
        self._term(ends, now).locks[lock] = None

    def _term(self, ends: float, now: float) -> _Term:
        term = self._terms.get(ends)
        if term is None:
            self.seconds = max(ends - now, _EARLY)
            term = self._terms[ends] = _Term(ends, self.seconds)
            self._push(term, now)
        return term

    def _push(self, term: _Term, now: float) -> None:
        heapq.heappush(self._heap, (term.next_look(now), next(self._numbers), term))

    @property
    def next_look(self) -> float | None:
        """When to call :meth:`look` next; None: there are no locks."""
        return self._heap[0][0] if self._heap else None

    def look(self, now: float, per_second: float, may_renew: bool) -> DueLocks:
        """Return what to do now. Lost locks are removed. ``per_second``: how many records begin in a second, as
        measured. ``may_renew``: whether renewals are accepted, as far as known."""
        due, waiting = DueLocks([], [], [], []), list[Lock]()
        while self._heap and self._heap[0][0] <= now + _EARLY:
            term = heapq.heappop(self._heap)[2]
            is_over, reserved = now >= term.ends - _EARLY, now >= term.ends - reserve_of(term.seconds) - _EARLY
            for lock in [*term.locks]:
                stage = self._stage_of(lock)
                if is_over:
                    lock.is_lost = True
                    due.lost.append(lock)
                elif stage is Stage.WAITING and not (lock.is_last and may_renew):
                    waiting.append(lock)
                elif stage is Stage.UNREADABLE:
                    if reserved:
                        due.release.append(lock)
                elif may_renew:
                    if not lock.is_renewing:
                        due.renew.append(lock)
                elif reserved and not lock.is_given_up:
                    self._end_soon(lock, stage, due)
            if is_over or not term.locks:
                del self._terms[term.ends]
            else:
                self._push(term, now)
        self._share_out(waiting, now, per_second, may_renew, due)
        return due

    @staticmethod
    def _end_soon(lock: Lock, stage: Stage, due: DueLocks) -> None:
        """The lock cannot be renewed. Outputs that are sent are waited for: they may be acknowledged in time."""
        if stage is Stage.PARKED:
            due.release.append(lock)
        elif stage is Stage.RUNNING:
            lock.is_given_up = True
            due.give_up.append(lock)

    def _share_out(self, waiting: list[Lock], now: float, per_second: float, may_renew: bool, due: DueLocks) -> None:
        """Decide about records that were not begun, the first acquired first."""
        waiting.sort(key=lambda lock: lock.number)
        for place, lock in enumerate(waiting):
            left = lock.ends - reserve_of(self.seconds) - now
            if place < per_second * left:
                continue
            if may_renew and place < per_second * (left + self.seconds):
                if not lock.is_renewing:
                    due.renew.append(lock)
            else:
                due.release.append(lock)

    def held(self) -> Collection[Lock]:
        """Return all locks that are held."""
        return [lock for term in self._terms.values() for lock in term.locks]
