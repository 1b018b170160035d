"""Watches an event loop from a thread beside it: asks whether it turns, and looks at what holds it when it does not.

There is one for each loop on which workers run, from their first record to the close of the last pool. It asks 20
times a second, twice a second while nothing runs; what it costs is the handover of the interpreter's lock at each.

**Cutting short.** A turn starts up to 16 records one after the other (:mod:`~aioparallel.engine.turn`), and several
workers may go on in one turn of the loop; with handlers that block 0.3 s each that would hold the loop for seconds.
So when an answer is overdue the thread clears :attr:`LoopWatch.quota`, the list over which a turn iterates: a ``for``
over a list ends at its next step when that has become shorter, so the turn ends after the record that runs now, and
its hot path has nothing to look at. And it sets :attr:`LoopWatch.overdue`: workers that would go on with other records
wait for the loop's next turn. That is done without any doubt about who is to blame, for it costs little.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import weakref
from types import CodeType
from typing import ClassVar, Final, Protocol

from aioparallel.engine.hold_log import HoldLog
from aioparallel.engine.holds import LATE, TICK, Hold, Judge, Recent, Worst
from aioparallel.engine.standing import look_at, run_queue_wait

__all__ = ["LoopWatch"]

# Records that a worker runs before it looks at the clock.
_TURN: Final = 16
# Seconds after a hold for which a turn is one record.
_WARY: Final = 5.0
# Seconds between two questions while nothing runs.
_IDLE: Final = 0.5
# Seconds that the thread has to end.
_JOIN: Final = 0.5
# Seconds by which the clocks of a real loop differ: uvloop's stands still while it is held.
_SAME_CLOCK: Final = 60.0


class Watched(Protocol):
    """Who runs records on the loop."""

    @property
    def is_busy(self) -> bool:
        """Whether it runs something. Called within the loop."""


class LoopWatch:
    """Made by :meth:`of`.

    Who writes what: the loop's thread the members and the answer, the watching thread all else.
    """

    _of_loops: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch]] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.quota: list[None] = [None] * _TURN
        """A turn runs as many records as are in it, unless it is cleared meanwhile. Never kept: read for each turn."""
        self.overdue = False
        """Whether this turn of the loop lasts too long: what could wait for the next one should."""
        self.recent = Recent()
        self._loop = weakref.ref(loop)
        self._members: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._lock = threading.Lock()  # of members, and of the thread's end
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._loop_thread, self._native_thread = threading.get_ident(), threading.get_native_id()
        self._rest: CodeType | None = None
        self._asked = False
        self._answered_at: float | None = None
        self._busy = True
        self._wary_until = 0.0
        self._judge = Judge()
        self._log = HoldLog()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopWatch:
        """The one of this loop. Called within it."""
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls(loop)
        return found

    def join(self, member: Watched) -> None:
        """It runs records from now on. It is held weakly."""
        loop = self._loop()
        assert loop is not None
        if abs(loop.time() - time.monotonic()) > _SAME_CLOCK:
            return  # virtual time: a loop in which nothing lasts, and which takes the same turns each time
        with self._lock:
            self._members.add(member)
            if self._thread is None:
                self._stop, self._asked = threading.Event(), False
                self._thread = threading.Thread(
                    target=self._watch, args=(self._stop,), name="aioparallel-loop-watch", daemon=True
                )
                self._thread.start()

    def leave(self, member: Watched) -> None:
        """It runs nothing any more. With the last member the thread ends."""
        with self._lock:
            self._members.discard(member)
            if self._members or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._stop.set()
        thread.join(_JOIN)

    def worst(self) -> list[Worst]:
        """The longest holds of the last minute, one for each handler."""
        return self.recent.worst(time.monotonic())

    # -- in the loop ------------------------------------------------------------------------------------

    def _answer(self) -> None:
        # In this order, see _cut().
        self._busy = any(member.is_busy for member in self._members)
        self._loop_thread, self._native_thread = threading.get_ident(), threading.get_native_id()
        self._rest = sys._getframe(1).f_code
        self._answered_at = time.monotonic()
        self.overdue = False

    # -- in the thread ----------------------------------------------------------------------------------

    def _watch(self, stop: threading.Event) -> None:
        try:
            pause: float | None = 0.0
            while pause is not None:
                planned = time.monotonic() + pause
                if stop.wait(pause):
                    self._tell(self._judge.answered(self._answered_at or time.monotonic()), time.monotonic())
                    return
                now = time.monotonic()
                pause = self._tick(now, now - planned)
        finally:
            self._ended(stop)

    def _ended(self, stop: threading.Event) -> None:
        with self._lock:
            if self._stop is stop:  # else there is another one already
                self._thread = None
            self.overdue = False

    def _tick(self, now: float, late: float) -> float | None:
        """What is done at each look; seconds until the next one. None: there is nothing to watch any more."""
        loop = self._loop()
        if loop is None or loop.is_closed() or not self._is_wanted():
            return None
        if not self._asked:
            return self._ask(loop)
        answered_at = self._answered_at
        if answered_at is not None:
            self._tell(self._judge.answered(answered_at), now)
            if now >= self._wary_until and len(self.quota) < _TURN:
                self.quota = [None] * _TURN
            if self._busy:
                return self._ask(loop)
            self._asked = False
            return _IDLE
        if not loop.is_running():
            self._judge.late()  # between two calls of run_until_complete(), say
        elif self._judge.overdue(now):
            self._cut()
            self._look(now, late)
        return TICK

    def _is_wanted(self) -> bool:
        with self._lock:
            return bool(self._members)

    def _ask(self, loop: asyncio.AbstractEventLoop) -> float | None:
        self._asked, self._answered_at = True, None
        self._judge.asked(time.monotonic())
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._answer)
            return TICK
        return None  # it was closed just now

    def _look(self, now: float, late: float) -> None:
        if late > LATE:
            self._judge.late()
        look = look_at(self._loop_thread, self._rest)
        self._judge.looked(look, now, run_queue_wait(self._native_thread))
        if self._judge.is_held:
            self._wary_until = now + _WARY
            self.quota = [None]  # what was there is cleared already
        if (hold := self._judge.goes_on) is not None:
            self.recent.goes_on(hold)
            self._log.goes_on(hold, now)

    def _cut(self) -> None:
        """Let the loop turn after what runs now.

        The answer may come while this happens. ``_answer`` notes it first and resets ``overdue`` then; here it is the
        other way round. So whichever of the two is the last, ``overdue`` does not stay set without a question.
        """
        running, self.quota = self.quota, [None] * len(self.quota)
        running.clear()
        self.overdue = True
        if self._answered_at is not None:
            self.overdue = False

    def _tell(self, holds: list[Hold], now: float) -> None:
        self.recent.ended(holds)
        for hold in holds:
            self._log.ended(hold, now)
