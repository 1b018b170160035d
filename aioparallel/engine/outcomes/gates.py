"""Gates limit how many handlers work at one place at once, such as one HTTP host. A record that finds its gate full
holds no worker. It is parked without counting an attempt, and woken when there is room.

A handler calls :meth:`Gate.enter` and :meth:`Gate.leave`. If the gate is full, ``enter`` raises :class:`NoRoom`: the
engine parks the record, and the record waits in the gate's line. Records that have waited go first. While a record
waits, or is woken and has not entered yet, newcomers join the end of the line.

A woken record has a *reserved place*, so it finds room however long it takes to get there. The place is released in
three ways:

* The record enters another gate, or its attempt calls :func:`give_back`, or the attempt ends: the place is free at
  once.
* The record does not come, for example because its partition was revoked: the next check finds this, at most a second
  later.
* The record waits first in line at another gate, and that gate is shut: the place is free at once.

A handler that needs several gates at once uses :func:`enter_all`. A record that waits at one gate and holds a place at
another could wait for a record that waits for that place: a deadlock. So only one record at a time may do this: the one
that holds the *turn* gate.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from aioparallel.engine.outcomes.throttling import Throttled, Throttling
from aioparallel.observe.stats import Waiting
from aioparallel.records.errors import NotToBlame, RetryLater
from aioparallel.records.history import history_of
from aioparallel.records.record import Record

__all__ = ["Gate", "NoRoom", "Refused", "Waking", "enter_all", "give_back", "give_back_of", "name_woken"]

AnyRecord = Record[Any, Any]

# Seconds between two checks of a gate with waiting records. Checks find the records that no other event would wake.
_CHECK_INTERVAL: Final = 1.0
# Seconds by which a timer may fire early.
_EARLY: Final = 0.001

_WOKEN: Final[ContextVar[AnyRecord | None]] = ContextVar("aioparallel_woken", default=None)


class NoRoom(NotToBlame):
    """``gate`` is full or shut: the record is tried again when there is room.

    ``reserving``: gates at which it reserves places while it waits, if they are still free then. The first is the turn
    gate: without a place there it reserves none. A record with reserved places goes to the front of the line, because
    others wait for those places.
    """

    def __init__(self, gate: Gate, reserving: Sequence[Gate] = ()) -> None:
        super().__init__(max(0.0, gate.opens_in), f"no room at {gate.name}")
        self.gate = gate
        self.reserving = reserving

    def __reduce__(self) -> tuple[object, ...]:
        return NotToBlame, (self.delay, str(self))  # the gate exists only in this process


class Refused(RetryLater):
    """The place of ``gate`` has refused a request without a delay for all: only this record waits."""

    def __init__(self, gate: Gate, delay: float, reason: str) -> None:
        super().__init__(delay, reason)
        self.gate = gate

    def __reduce__(self) -> tuple[object, ...]:
        return RetryLater, (self.delay, str(self))  # the gate exists only in this process


class Waking(Protocol):
    """Wakes the records that it has parked, when a gate lets them through."""

    def wake(self, record: AnyRecord, seconds: float) -> bool:
        """Make a record ready that has waited ``seconds`` at a gate. False: it is not parked any more."""

    def is_waiting(self, record: AnyRecord) -> bool:
        """Whether the record is still parked, or ready and not started."""

    def is_coming(self, record: AnyRecord) -> bool:
        """Whether a woken record runs, or may be started by the next free worker."""


class _Coming(NamedTuple):
    waking: Waking
    parks: int
    """How often the record had been parked. If it is parked again, it waits for something else."""


class _Waiter(NamedTuple):
    record: AnyRecord
    since: float
    until: float | None
    waking: Waking


class Gate:
    """Belongs to one event loop. ``limit``: the most handlers that may be inside."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.under_way = 0
        self._left = 0
        self._throttling: Throttling | None = None
        self._loop = asyncio.get_running_loop()
        self._shut_until = 0.0
        self._line: deque[_Waiter] = deque()
        self._woken: dict[AnyRecord, _Coming] = {}  # records with a reserved place
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_scheduled = False

    # -- for handlers -----------------------------------------------------------------------------------

    def enter(self) -> None:
        """Enter the gate. Raises NoRoom if it is full or shut."""
        record = _WOKEN.get()
        may_enter = (record is not None and self in _release_places(record)) or not self._line
        if not (may_enter and self._has_room):
            raise NoRoom(self)
        self.under_way += 1

    def leave(self) -> None:
        """Leave the gate."""
        self.under_way -= 1
        self._left += 1
        if self._line:
            self._schedule_wake()

    def shut(self, seconds: float) -> None:
        """Let no record enter for ``seconds``. A longer time that was set before stays."""
        self._shut_until = max(self._shut_until, self._loop.time() + seconds)
        if self._throttling is not None:
            self._throttling.delays(self._shut_until)
        if self._line:
            _release_places(self._line[0].record)  # or it would hold places at other gates for a long time
            self._set_timer()

    def refused(self) -> None:
        """Note that a request which is inside was refused, for :attr:`throttled`."""
        if self._throttling is None:
            self._throttling = Throttling()
        self._throttling.refused(self._left)

    # -- for the engine ---------------------------------------------------------------------------------

    def wait(self, record: AnyRecord, waking: Waking, longest: float | None, reserving: Sequence[Gate] = ()) -> None:
        """Add a parked record to the line, for at most ``longest`` seconds. ``reserving``: as in :class:`NoRoom`."""
        now = self._loop.time()
        waiter = _Waiter(record, now, None if longest is None else now + longest, waking)
        if reserving and _reserve_places(waiter, reserving):
            self._line.appendleft(waiter)
        else:
            self._line.append(waiter)
        # A place may have become free since the record found none.
        if self._has_room:
            self._schedule_wake()
        else:
            self._set_timer()

    @property
    def waiting(self) -> Waiting | None:
        """How many records wait, and for how long; None if none does."""
        if not self._line:
            return None
        since = min(waiter.since for waiter in islice(self._line, 2))  # the first may have jumped the line
        return Waiting(self.name, len(self._line), self._loop.time() - since, max(0.0, self.opens_in))

    @property
    def throttled(self) -> Throttled | None:
        """What it refused in the last minute; None if nothing, or for a few seconds only."""
        return None if self._throttling is None else self._throttling.of_last_minute(self._left)

    @property
    def opens_in(self) -> float:
        """Seconds until it opens; 0 or less if it is not shut."""
        return self._shut_until - self._loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if the gate is discarded."""
        return not self.under_way and not self._line and not self._woken and not self._is_shut

    def close(self) -> None:
        """Forget all records, and wake none any more."""
        self._line.clear()
        self._woken.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- waking -----------------------------------------------------------------------------------------

    @property
    def _is_shut(self) -> bool:
        return self._shut_until > 0 and self.opens_in > _EARLY

    @property
    def _has_room(self) -> bool:
        return self.under_way + len(self._woken) < self.limit and not self._is_shut

    def _schedule_wake(self) -> None:
        """Wake records soon, not now: this call may come from the middle of a handler's step."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._wake_first)

    def _wake_first(self) -> None:
        self._is_scheduled = False
        now = self._loop.time()
        while self._line and self._has_room:
            waiter = self._line.popleft()
            if waiter.waking.wake(waiter.record, now - waiter.since):
                self._reserve(waiter)
        if self._line:
            self._set_timer()

    def _reserve(self, waiter: _Waiter) -> None:
        self._woken[waiter.record] = _Coming(waiter.waking, waiter.record._parks)
        history = history_of(waiter.record)
        history.kept_at = (*history.kept_at, self)

    def _set_timer(self) -> None:
        wait = min(self.opens_in, _CHECK_INTERVAL) if self._is_shut else _CHECK_INTERVAL
        if self._timer is not None:
            if self._timer_at <= self._loop.time() + wait:
                return
            self._timer.cancel()
        self._timer_at = self._loop.time() + wait
        self._timer = self._loop.call_later(wait, self._check)

    def _check(self) -> None:
        """Handle what no other event reports: the gate opens, a record is gone, or a record has waited long enough."""
        self._timer = None
        now = self._loop.time()
        self._woken = {
            record: coming
            for record, coming in self._woken.items()
            if record._parks == coming.parks and coming.waking.is_coming(record)
        }
        line: deque[_Waiter] = deque()
        for waiter in self._line:
            if waiter.until is not None and now >= waiter.until - _EARLY:
                waiter.waking.wake(waiter.record, now - waiter.since)  # without a place: it may find no room again
            elif waiter.waking.is_waiting(waiter.record):
                line.append(waiter)
        self._line = line
        self._wake_first()


def enter_all(gates: Sequence[Gate], turn: Gate) -> None:
    """Enter all of these gates. Raises NoRoom if one has no room; then none is entered.

    ``turn``: a gate with one place, shared by all handlers that enter several of the same gates. It prevents deadlocks:

    1. A newcomer waits in the longest line, without reserved places.
    2. A woken record that finds another gate full waits for the turn.
    3. With the turn, the record reserves places at the gates that have room, and goes to the front of the line at the
    others.

    While one of the gates is shut, a record reserves no places at the others.
    """
    record = _WOKEN.get()
    reserved = () if record is None else _release_places(record)
    full = [gate for gate in gates if not gate._has_room or (gate._line and gate not in reserved)]
    if not full:
        for gate in gates:
            gate.under_way += 1
        return
    slowest = max(full, key=lambda gate: (gate.opens_in if gate._is_shut else 0.0, len(gate._line)))
    if slowest._is_shut or not reserved:
        raise NoRoom(slowest)
    if not turn._has_room or (turn._line and turn not in reserved):
        raise NoRoom(turn)
    raise NoRoom(slowest, [turn, *(gate for gate in gates if gate not in full)])


def give_back() -> None:
    """Release the places reserved for the attempt that runs in this context: it enters no gate any more."""
    record = _WOKEN.get()
    if record is not None:
        _release_places(record)


def give_back_of(record: AnyRecord) -> None:
    """Release the places reserved for an attempt that has ended: it may not have entered any gate."""
    if record._history is not None:
        _release_places(record)


def _release_places(record: AnyRecord) -> Sequence[Gate]:
    history = record._history
    if history is None or not history.kept_at:
        return ()
    gates, history.kept_at = history.kept_at, ()
    released: list[Gate] = []
    for gate in gates:
        if gate._woken.pop(record, None) is not None:
            released.append(gate)
            if gate._line:
                gate._schedule_wake()
    return released


def _reserve_places(waiter: _Waiter, gates: Sequence[Gate]) -> bool:
    """Reserve a place at each gate, up to the first full one. Returns whether the first gate, the turn, had one."""
    for gate in gates:
        if not gate._has_room:
            return gate is not gates[0]
        gate._reserve(waiter)
    return True


def name_woken(record: AnyRecord) -> None:
    """Name the record whose attempt runs in this context. Only records that were parked have reserved places."""
    if record._parks:
        _WOKEN.set(record)
