"""Gates: bounds of what is under way at one place, a host say. A record that finds one shut holds no worker: it waits
parked, without an attempt counted, and is woken when there is room.

A handler enters a gate with :meth:`Gate.enter` and leaves it with :meth:`Gate.leave`. Where there is no room ``enter``
raises :class:`NoRoom`; the engine parks the record and lets it wait in the gate's line. Who has waited goes first:
while somebody waits, or was woken and is on the way, newcomers wait behind. What is on its way keeps a place, so a
woken record finds one, however long it takes; where it goes to another gate, or its attempt says with :func:`give_back`
that it goes to none, the place is free at once; and where it does not come, since its partition was taken away say, it
is found again at the next look, a second later at most.

A handler that needs several at once enters them with :func:`enter_all`. Who waits for one and keeps a place at another
may wait for somebody who waits for that, so one record at a time does: the one whose turn it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from aioparallel.errors import NotToBlame
from aioparallel.history import history_of
from aioparallel.observe.stats import Waiting
from aioparallel.records import Record

__all__ = ["Gate", "NoRoom", "Waking", "enter_all", "give_back", "give_back_of", "name_woken"]

AnyRecord = Record[Any, Any]

# Seconds between two looks at a gate where somebody waits: for whom nobody wakes it.
_LOOK: Final = 1.0
# Seconds from one moment at which a timer may come before its time.
_EARLY: Final = 0.001

_WOKEN: Final[ContextVar[AnyRecord | None]] = ContextVar("aioparallel_woken", default=None)


class NoRoom(NotToBlame):
    """There is no room at ``gate``: to be tried again when there is.

    ``keeping``: while it waits it keeps places at these, if nobody takes them before it does; the first is its turn,
    and without that it keeps none. Who keeps any waits before all others: they wait for its places.
    """

    def __init__(self, gate: Gate, keeping: Sequence[Gate] = ()) -> None:
        super().__init__(max(0.0, gate.opens_in), f"no room at {gate.name}")
        self.gate = gate
        self.keeping = keeping

    def __reduce__(self) -> tuple[object, ...]:
        return NotToBlame, (self.delay, str(self))  # of no use where the gate is not


class Waking(Protocol):
    """Who has parked the records."""

    def wake(self, record: AnyRecord, seconds: float) -> bool:
        """Make it ready, after so many seconds at a gate. False: nobody waits for it any more."""

    def is_waiting(self, record: AnyRecord) -> bool:
        """Whether it is parked still."""

    def is_coming(self, record: AnyRecord) -> bool:
        """Whether it was made ready and not parked anew: the next free worker may start it, or runs it."""


class _Coming(NamedTuple):
    waking: Waking
    parks: int
    """How often it had been parked: once more, and it waits for something else."""


class _Waiter(NamedTuple):
    record: AnyRecord
    since: float
    until: float | None
    waking: Waking


class Gate:
    """For one event loop. ``limit``: how many may be under way, at most."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.under_way = 0
        self._loop = asyncio.get_running_loop()
        self._shut_until = 0.0
        self._line: deque[_Waiter] = deque()
        self._woken: dict[AnyRecord, _Coming] = {}  # on their way, each with a place kept for it
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._look_comes = False

    # -- for handlers -----------------------------------------------------------------------------------

    def enter(self) -> None:
        """One more is under way. Raises NoRoom."""
        record = _WOKEN.get()
        if (
            ((record is not None and self in _given_back(record)) or not self._line)
            and self.under_way + len(self._woken) < self.limit
            and not (self._shut_until and self._is_shut)
        ):
            self.under_way += 1
            return
        raise NoRoom(self)

    def leave(self) -> None:
        """One of those under way has ended."""
        self.under_way -= 1
        if self._line:
            self._look_soon()

    def shut(self, seconds: float) -> None:
        """Nobody enters for so long; where it is shut for longer, it stays so."""
        self._shut_until = max(self._shut_until, self._loop.time() + seconds)
        if self._line:
            _given_back(self._line[0].record)  # the first may keep places elsewhere, and that would be for long
            self._set_timer()

    # -- for the engine ---------------------------------------------------------------------------------

    def wait(self, record: AnyRecord, waking: Waking, longest: float | None, keeping: Sequence[Gate] = ()) -> None:
        """Let it wait, for ``longest`` seconds at most; None: for as long as it takes. ``keeping``: see NoRoom."""
        now = self._loop.time()
        waiter = _Waiter(record, now, None if longest is None else now + longest, waking)
        if keeping and _kept(waiter, keeping):
            self._line.appendleft(waiter)
        else:
            self._line.append(waiter)
        # It may have become free since the record found no room.
        if self._has_room:
            self._look_soon()
        else:
            self._set_timer()

    @property
    def waiting(self) -> Waiting | None:
        """None where nobody does."""
        if not self._line:
            return None
        since = min(waiter.since for waiter in islice(self._line, 2))  # the first may have come from elsewhere
        return Waiting(self.name, len(self._line), self._loop.time() - since, max(0.0, self.opens_in))

    @property
    def opens_in(self) -> float:
        """Seconds; 0 or less where it is not shut."""
        return self._shut_until - self._loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be forgotten with it."""
        return not self.under_way and not self._line and not self._woken and not self._is_shut

    def close(self) -> None:
        """Wake nobody any more."""
        self._line.clear()
        self._woken.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- looks ------------------------------------------------------------------------------------------

    @property
    def _is_shut(self) -> bool:
        return self._shut_until > 0 and self.opens_in > _EARLY

    @property
    def _has_room(self) -> bool:
        return self.under_way + len(self._woken) < self.limit and not (self._shut_until and self._is_shut)

    def _look_soon(self) -> None:
        """Not at once: this may be in the middle of a handler's step."""
        if not self._look_comes:
            self._look_comes = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_comes = False
        room = 0 if self._is_shut else self.limit - self.under_way - len(self._woken)
        now = self._loop.time()
        while room > 0 and self._line:
            room -= self._wake(self._line.popleft(), now, keeps_a_place=True)
        if self._line:
            self._set_timer()

    def _wake(self, waiter: _Waiter, now: float, *, keeps_a_place: bool) -> bool:
        is_woken = waiter.waking.wake(waiter.record, now - waiter.since)
        if is_woken and keeps_a_place:
            self._keep(waiter)
        return is_woken

    def _keep(self, waiter: _Waiter) -> None:
        """A place, for its next attempt."""
        self._woken[waiter.record] = _Coming(waiter.waking, waiter.record._parks)
        history = history_of(waiter.record)
        history.kept_at = (*history.kept_at, self)

    def _set_timer(self) -> None:
        wait = min(self.opens_in, _LOOK) if self._is_shut else _LOOK
        if self._timer is not None:
            if self._timer_at <= self._loop.time() + wait:
                return
            self._timer.cancel()
        self._timer_at = self._loop.time() + wait
        self._timer = self._loop.call_later(wait, self._look_around)

    def _look_around(self) -> None:
        """For whom nobody wakes it: it opens, who waited is gone, or has waited long enough."""
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
                self._wake(waiter, now, keeps_a_place=False)
            elif waiter.waking.is_waiting(waiter.record):
                line.append(waiter)
        self._line = line
        self._look()


def enter_all(gates: Sequence[Gate], turn: Gate) -> None:
    """One more is under way at each of these. Raises NoRoom where one of them has no room; then nothing is under way.

    ``turn``: a gate of one place, the same for all that enter several of the same gates. A newcomer waits in line where
    most do, as all others. Who was woken, and finds no room at another, waits for its turn; then it keeps its places,
    and is first in line for those that it has not. Where one is shut nobody keeps places elsewhere.
    """
    record = _WOKEN.get()
    kept = () if record is None else _given_back(record)
    full = [gate for gate in gates if not gate._has_room or (gate._line and gate not in kept)]
    if not full:
        for gate in gates:
            gate.under_way += 1
        return
    slowest = max(full, key=lambda gate: (gate.opens_in if gate._is_shut else 0.0, len(gate._line)))
    if slowest._is_shut or not kept:
        raise NoRoom(slowest)
    if not turn._has_room or (turn._line and turn not in kept):
        raise NoRoom(turn)
    raise NoRoom(slowest, [turn, *(gate for gate in gates if gate not in full)])


def give_back() -> None:
    """The attempt that runs in this context goes to no gate any more: places that are kept for it are for who waits."""
    record = _WOKEN.get()
    if record is not None:
        _given_back(record)


def give_back_of(record: AnyRecord) -> None:
    """Its attempt has ended, perhaps before it got to a gate: places that were kept for that are for who waits."""
    if record._history is not None:
        _given_back(record)


def _given_back(record: AnyRecord) -> Sequence[Gate]:
    """The gates that have kept a place for it until now."""
    history = record._history
    if history is None or not history.kept_at:
        return ()
    gates, history.kept_at = history.kept_at, ()
    kept: list[Gate] = []
    for gate in gates:
        if gate._woken.pop(record, None) is not None:
            kept.append(gate)
            if gate._line:
                gate._look_soon()
    return kept


def _kept(waiter: _Waiter, gates: Sequence[Gate]) -> bool:
    """Whether it has its turn, still: the first of these. Then it keeps a place at all that have one."""
    for gate in gates:
        if not gate._has_room:
            return gate is not gates[0]
        gate._keep(waiter)
    return True


def name_woken(record: AnyRecord) -> None:
    """What runs in this context is an attempt of this record. Of one that was parked before: others wait at no gate."""
    if record._parks:
        _WOKEN.set(record)
