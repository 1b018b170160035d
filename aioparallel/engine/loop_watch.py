"""Watches an event loop from a thread beside it: hears that it turns, and looks at what holds it when it does not.

There is one for each loop on which workers run, from their first record to the close of the last pool. The loop gives
it a pulse ten times a second; what it costs is the handover of the lock of the interpreter at each
(:mod:`~aioparallel.engine.pulse`).

**Cutting short.** A turn starts up to 16 records one after the other (:mod:`~aioparallel.engine.turn`), and several
workers may go on in one turn of the loop; with handlers that block 0.3 s each that would hold the loop for seconds.
So when a pulse is overdue the thread clears :attr:`LoopWatch.quota`, the list over which a turn iterates: a ``for``
over a list ends at its next step when that has become shorter, so the turn ends after the record that runs now, and
its hot path has nothing to look at. And it sets :attr:`LoopWatch.overdue`: workers that would go on with other records
wait for the loop's next turn. That is done without any doubt about who is to blame, for it costs little.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator
from time import monotonic
from types import CodeType
from typing import ClassVar, Final

from aioparallel.engine.hold_log import HoldLog
from aioparallel.engine.holds import LATE, OVERDUE, PULSE, TICK, Judge, Recent, Worst
from aioparallel.engine.pulse import Pulse
from aioparallel.engine.standing import look_at, run_queue_wait

__all__ = ["LoopWatch"]

# Records that a worker runs before it looks at the clock.
_TURN: Final = 16
# Seconds after a hold for which a turn is one record.
_WARY: Final = 5.0
# Turns of the loop after which somebody should have heard of one.
_DEAF: Final = 4
# Seconds that the thread has to end.
_JOIN: Final = 0.5
# Seconds by which the clocks of a real loop differ: uvloop's stands still while it is held.
_SAME_CLOCK: Final = 60.0


class LoopWatch:
    """Made by :meth:`of`.

    Who writes what: the loop's thread the members and when it turned, the watching thread all else.
    """

    _of_loops: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch]] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.quota: list[None] = [None] * _TURN
        """A turn runs as many records as are in it, unless it is cleared meanwhile. Never kept: read for each turn."""
        self.overdue = False
        """Whether this turn of the loop lasts too long: what could wait for the next one should."""
        self.recent = Recent()
        self._loop = weakref.ref(loop)
        self._members: weakref.WeakSet[object] = weakref.WeakSet()
        self._lock = threading.Lock()  # of members, and of the thread's end
        self._thread: threading.Thread | None = None
        self._pulse: Pulse | None = None
        self._timer: asyncio.Handle | None = None
        self._loop_thread, self._native_thread = threading.get_ident(), threading.get_native_id()
        self._rest: CodeType | None = None
        self._turned_at = 0.0
        self._turns = 0
        self._is_asked = False
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

    def join(self, member: object) -> None:
        """It runs records from now on. It is held weakly."""
        loop = self._loop()
        assert loop is not None
        if abs(loop.time() - monotonic()) > _SAME_CLOCK:
            return  # virtual time: a loop in which nothing lasts, and which takes the same turns each time
        with self._lock:
            self._members.add(member)
            if self._thread is not None:
                return
            pulse = self._pulse = Pulse()
            self._thread = threading.Thread(
                target=self._watch, args=(pulse,), name="aioparallel-loop-watch", daemon=True
            )
            self._thread.start()
        self._timer = loop.call_soon(self._beat, pulse)

    def leave(self, member: object) -> None:
        """It runs nothing any more. With the last member the thread ends."""
        with self._lock:
            self._members.discard(member)
            if self._members or self._thread is None:
                return
            thread, self._turned_at, self.recent = self._thread, monotonic(), Recent()
            self._end()
        thread.join(_JOIN)

    def _end(self) -> None:
        """Under the lock."""
        assert self._pulse is not None
        self._pulse.end()
        if self._timer is not None:
            self._timer.cancel()
        # The timer knows the loop, which would be kept for ever by it.
        self._pulse = self._thread = self._timer = None

    def worst(self) -> list[Worst]:
        """The longest holds of the last minute, one for each handler."""
        return self.recent.worst(monotonic())

    def breathe(self) -> Iterator[None]:
        """Yielded to the event loop by a handler that could go on, while this turn of it lasts too long."""
        heard, turns = self._turns, 0
        while self.overdue and turns < _DEAF:
            yield
            # Where nobody hears any more that it turns, it is not waited for.
            turns = turns + 1 if self._turns == heard else 0
            heard = self._turns

    # -- in the loop ------------------------------------------------------------------------------------

    def _beat(self, pulse: Pulse) -> None:
        """Ten times a second."""
        loop = self._loop()
        if pulse.ended or loop is None:
            return
        # First: what comes then may raise, a KeyboardInterrupt say.
        self._timer = loop.call_later(PULSE, self._beat, pulse)
        self._turned(pulse, depth=2)

    def _turned(self, pulse: Pulse, depth: int = 1) -> None:
        """The loop turns. ``depth``: frames from here to who runs it."""
        with self._lock:
            if pulse.ended:
                return
            if not self._members:
                self._end()
                return
        self._loop_thread, self._native_thread = threading.get_ident(), threading.get_native_id()
        self._rest = sys._getframe(depth).f_code
        self._turned_at = monotonic()
        self._turns += 1
        self.overdue = False
        pulse.beat()

    # -- in the thread ----------------------------------------------------------------------------------

    def _watch(self, pulse: Pulse) -> None:
        patience = PULSE + OVERDUE
        self._judge.asked(monotonic())
        try:
            while (loop := self._loop()) is not None and not loop.is_closed():
                del loop  # or it would be kept for as long as it is silent
                planned = monotonic() + patience
                beaten = pulse.wait(patience)
                now = monotonic()
                if beaten:
                    self._told(now)
                    patience = PULSE + OVERDUE
                else:
                    self._missed(pulse, now, now - planned)
                    patience = TICK
                if pulse.ended:
                    return
        finally:
            self._ended(pulse)

    def _ended(self, pulse: Pulse) -> None:
        with self._lock:
            if self._pulse is pulse:  # else there is another one already, or none
                self._timer = None  # the loop's, which is closed: not to be touched from here
                self._end()
            self.overdue = False

    def _told(self, now: float) -> None:
        """The loop has turned, or the watch is over."""
        self.overdue = False
        self.recent.forget(now)
        holds = self._judge.answered(self._turned_at)
        self.recent.ended(holds)
        for hold in holds:
            self._log.ended(hold, now)
        if now >= self._wary_until and len(self.quota) < _TURN:
            self.quota = [None] * _TURN
        self._is_asked = False
        # Half a pulse later: what holds the loop may have begun just after this one, or just before the next.
        self._judge.asked(self._turned_at + PULSE / 2)

    def _missed(self, pulse: Pulse, now: float, late: float) -> None:
        """The loop should have turned."""
        loop = self._loop()
        if loop is None or not loop.is_running():
            self._judge.late()  # between two calls of run_until_complete(), say
            return
        if not self._is_asked:
            self._is_asked = True
            with contextlib.suppress(RuntimeError):  # it was closed just now
                # Its timers may stand still: a clock that somebody has frozen for a test.
                loop.call_soon_threadsafe(self._turned, pulse)
        self._cut()
        self._look(now, late)

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
        """Let the loop turn after what runs now. Should it have turned meanwhile, that is heard next."""
        running, self.quota = self.quota, [None] * len(self.quota)
        running.clear()
        self.overdue = True
