"""Gates: bounds of what is under way at one place, a host say. A record that finds one shut holds no worker: it waits
parked, without an attempt counted, and is woken when there is room.

A handler enters a gate with :meth:`Gate.enter` and leaves it with :meth:`Gate.leave`. Where there is no room ``enter``
raises :class:`NoRoom`; the engine parks the record and lets it wait in the gate's line. Who has waited goes first:
while somebody waits, or was woken and is on the way, newcomers wait behind. What is on its way keeps a place, so a
woken record finds one, however long it takes; where it goes to another gate, or its attempt says with :func:`give_back`
that it goes to none, the place is free at once; and where it does not come, since its partition was taken away say, it
is found again at the next look, a second later at most.

A handler that must be in several gates at once enters them with :func:`enter_all`. If each that lacks one gave the
others back they could go round for ever, and if each kept them they could wait for each other. So one at a time keeps
its places while it waits for the next one, as the first in that line.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from aioparallel.errors import RetryLater
from aioparallel.history import history_of
from aioparallel.observe.stats import Waiting
from aioparallel.records import Record

__all__ = ["Gate", "NoRoom", "Waking", "enter_all", "give_back", "name_woken"]

AnyRecord = Record[Any, Any]

# Seconds between two looks at a gate where somebody waits: for whom nobody wakes it.
_LOOK: Final = 1.0
# Seconds from one moment at which a timer may come before its time.
_EARLY: Final = 0.001

_WOKEN: Final[ContextVar[AnyRecord | None]] = ContextVar("aioparallel_woken", default=None)


class NoRoom(RetryLater):
    """There is no room at ``gate``: to be tried again when there is."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(max(0.0, gate.opens_in), f"no room at {gate.name}")
        self.gate = gate

    def __reduce__(self) -> tuple[object, ...]:
        return RetryLater, (self.delay, str(self))  # of no use where the gate is not


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
    """How often it has been parked in the attempt that comes: once more, and it waits for something else."""

    def is_for(self, record: AnyRecord) -> bool:
        """Whether it comes yet."""
        return record._parks <= self.parks and self.waking.is_coming(record)


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
        if (record := _WOKEN.get()) is not None:
            _give_back(record, but=(self,))
        self._enter(record)

    def _enter(self, record: AnyRecord | None) -> None:
        if record is not None and self._was_kept_for(record):
            if self.under_way < self.limit and not self._is_shut:
                self.under_way += 1
                return
            raise NoRoom(self)
        if not self._line and self.under_way + len(self._woken) < self.limit and not self._is_shut:
            self.under_way += 1
            return
        raise NoRoom(self)

    def _was_kept_for(self, record: AnyRecord) -> bool:
        history = record._history
        if history is None or self not in history.kept:
            return False
        history.kept.discard(self)
        self._woken.pop(record, None)
        return True

    def leave(self) -> None:
        """One of those under way has ended."""
        self.under_way -= 1
        if self._line:
            self._look_soon()

    def shut(self, seconds: float) -> None:
        """Nobody enters for so long; where it is shut for longer, it stays so."""
        self._shut_until = max(self._shut_until, self._loop.time() + seconds)
        if self._line:
            _give_back(self._line[0].record)  # who is the first may keep places elsewhere
            self._set_timer()

    def keep(self, record: AnyRecord, waking: Waking, *, entered: bool) -> None:
        """The place of this record, for its next attempt: where it is ``entered``, or what is kept for it already."""
        if entered:
            self.under_way -= 1
        if entered or record in self._woken:
            self._woken[record] = _Coming(waking, record._parks + 1)
            history_of(record).kept.add(self)

    def keeps(self, record: AnyRecord) -> bool:
        """Whether there is a place for it, and it comes yet."""
        coming = self._woken.get(record)
        return coming is not None and coming.is_for(record)

    def give_back(self, record: AnyRecord, parks: float) -> None:
        """The place that is kept for it, unless it is for a later attempt than that of so many ``parks``."""
        coming = self._woken.get(record)
        if coming is not None and coming.parks > parks:
            return
        history_of(record).kept.discard(self)
        if self._woken.pop(record, None) is not None and self._line:
            self._look_soon()

    # -- for the engine ---------------------------------------------------------------------------------

    def wait(self, record: AnyRecord, waking: Waking, longest: float | None) -> None:
        """Let it wait, for ``longest`` seconds at most; None: for as long as it takes."""
        now = self._loop.time()
        waiter = _Waiter(record, now, None if longest is None else now + longest, waking)
        if record._history is not None and record._history.kept:
            self._line.appendleft(waiter)  # others wait for the places that it keeps
        else:
            self._line.append(waiter)
        # It may have become free since the record found no room.
        if self.under_way + len(self._woken) < self.limit and not self._is_shut:
            self._look_soon()
        else:
            self._set_timer()

    @property
    def waiting(self) -> Waiting | None:
        """None where nobody does."""
        if not self._line:
            return None
        now = self._loop.time()
        since = min(waiter.since for waiter in islice(self._line, 2))  # the first may have come before its turn
        return Waiting(self.name, len(self._line), now - since, max(0.0, self.opens_in))

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
            self._woken[waiter.record] = _Coming(waiter.waking, waiter.record._parks)
            history = history_of(waiter.record)
            history.kept.add(self)
            history.woken_by = waiter.waking
        return is_woken

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
        self._woken = {record: coming for record, coming in self._woken.items() if coming.is_for(record)}
        line: deque[_Waiter] = deque()
        for waiter in self._line:
            if waiter.until is not None and now >= waiter.until - _EARLY:
                self._wake(waiter, now, keeps_a_place=False)
            elif waiter.waking.is_waiting(waiter.record):
                line.append(waiter)
        self._line = line
        self._look()


def enter_all(gates: Sequence[Gate], may_keep: Callable[[AnyRecord], bool]) -> None:
    """One more is under way at each of these. Raises NoRoom where one of them has none: then nothing is under way.

    A woken record that finds no room at another gate keeps its places if it ``may_keep`` them, and that gate is not
    shut.
    """
    record = _WOKEN.get()
    if record is not None:
        _give_back(record, but=gates)
    for count, gate in enumerate(gates):
        try:
            gate._enter(record)
        except NoRoom:
            waking = None if record is None or record._history is None else record._history.woken_by
            if record is not None and waking is not None and gate.opens_in <= 0 and may_keep(record):
                for index, one in enumerate(gates):
                    one.keep(record, waking, entered=index < count)
            else:
                for one in gates[:count]:
                    one.leave()
            raise


def give_back() -> None:
    """The attempt that runs in this context goes to no gate any more: what is kept for it is for who waits."""
    if (record := _WOKEN.get()) is not None:
        _give_back(record, parks=record._parks)


def _give_back(record: AnyRecord, *, but: Collection[Gate] = (), parks: float = math.inf) -> None:
    if record._history is not None and record._history.kept:
        for gate in tuple(record._history.kept):
            if gate not in but:
                gate.give_back(record, parks)


def name_woken(record: AnyRecord) -> None:
    """What runs in this context is an attempt of this record. Of one that was parked before: others wait at no gate."""
    if record._parks:
        _WOKEN.set(record)
