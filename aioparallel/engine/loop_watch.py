"""Watches an event loop from another thread: notices that it does not turn, and samples what blocks it.

Each loop on which workers run has one, from their first record to the close of the last pool. The loop pings it ten
times a second. Each ping costs one handover of the interpreter lock (:mod:`~aioparallel.engine.ping`).

**Ending a turn early.** A turn starts up to 16 records (:mod:`~aioparallel.engine.turn`), and several workers may go on
in one turn of the loop. With handlers that block 0.3 s each, the loop would stand still for seconds. So when a ping is
overdue the thread clears :attr:`LoopWatch.quota`, the list over which a turn iterates. A ``for`` over a list ends at
its next step if the list has become shorter, so the turn ends after the running record. Its hot path checks nothing.
The thread also sets :attr:`LoopWatch.overdue`: workers that would go on with other records wait for the next turn of
the loop. This costs little, so it is done before it is clear which handler is to blame.
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

from aioparallel.engine.blockage_log import BlockageLog
from aioparallel.engine.blockages import (
    LATE,
    OVERDUE,
    PING_INTERVAL,
    SAMPLE_INTERVAL,
    BlockageDetector,
    RecentBlockages,
    WorstBlockage,
)
from aioparallel.engine.ping import Ping
from aioparallel.engine.stack_sampling import run_queue_wait, sample_stack

__all__ = ["LoopWatch"]

# Records that a worker runs before it looks at the clock.
_TURN: Final = 16
# Seconds after a blockage in which a turn is one record.
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
        self.recent = RecentBlockages()
        self._loop = weakref.ref(loop)
        self._members: weakref.WeakSet[object] = weakref.WeakSet()
        self._lock = threading.Lock()  # of members, and of the thread's end
        self._thread: threading.Thread | None = None
        self._pings: Ping | None = None
        self._timer: asyncio.Handle | None = None
        self._loop_thread, self._native_thread = threading.get_ident(), threading.get_native_id()
        self._rest: CodeType | None = None
        self._turned_at = 0.0
        self._turns = 0
        self._is_asked = False
        self._wary_until = 0.0
        self._detector = BlockageDetector()
        self._log = BlockageLog()

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
            ping = self._pings = Ping()
            self._thread = threading.Thread(
                target=self._watch, args=(ping,), name="aioparallel-loop-watch", daemon=True
            )
            self._thread.start()
        self._timer = loop.call_soon(self._ping, ping)

    def leave(self, member: object) -> None:
        """It runs nothing any more. With the last member the thread ends."""
        with self._lock:
            self._members.discard(member)
            if self._members or self._thread is None:
                return
            thread, self._turned_at, self.recent = self._thread, monotonic(), RecentBlockages()
            self._end()
        thread.join(_JOIN)

    def _end(self) -> None:
        """Under the lock."""
        assert self._pings is not None
        self._pings.end()
        if self._timer is not None:
            self._timer.cancel()
        # The timer knows the loop, which would be kept for ever by it.
        self._pings = self._thread = self._timer = None

    def worst(self) -> list[WorstBlockage]:
        """The longest blockages of the last minute, one for each handler."""
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

    def _ping(self, ping: Ping) -> None:
        """Ten times a second."""
        loop = self._loop()
        if ping.ended or loop is None:
            return
        # First: what comes then may raise, a KeyboardInterrupt say.
        self._timer = loop.call_later(PING_INTERVAL, self._ping, ping)
        self._turned(ping, depth=2)

    def _turned(self, ping: Ping, depth: int = 1) -> None:
        """The loop turns. ``depth``: frames from here to who runs it."""
        with self._lock:
            if ping.ended:
                return
            if not self._members:
                self._end()
                return
        self._loop_thread, self._native_thread = threading.get_ident(), threading.get_native_id()
        self._rest = sys._getframe(depth).f_code
        self._turned_at = monotonic()
        self._turns += 1
        self.overdue = False
        ping.ping()

    # -- in the thread ----------------------------------------------------------------------------------

    def _watch(self, ping: Ping) -> None:
        timeout = PING_INTERVAL + OVERDUE
        self._detector.asked(monotonic())
        try:
            while (loop := self._loop()) is not None and not loop.is_closed():
                del loop  # or it would be kept for as long as it is silent
                planned = monotonic() + timeout
                beaten = ping.wait(timeout)
                now = monotonic()
                if beaten:
                    self._told(now)
                    timeout = PING_INTERVAL + OVERDUE
                else:
                    self._missed(ping, now, now - planned)
                    timeout = SAMPLE_INTERVAL
                if ping.ended:
                    return
        finally:
            self._ended(ping)

    def _ended(self, ping: Ping) -> None:
        with self._lock:
            if self._pings is ping:  # else there is another one already, or none
                self._timer = None  # the loop's, which is closed: not to be touched from here
                self._end()
            self.overdue = False

    def _told(self, now: float) -> None:
        """The loop has turned, or the watch is over."""
        self.overdue = False
        self.recent.forget(now)
        blockages = self._detector.answered(self._turned_at)
        self.recent.ended(blockages)
        for blockage in blockages:
            self._log.ended(blockage, now)
        if now >= self._wary_until and len(self.quota) < _TURN:
            self.quota = [None] * _TURN
        self._is_asked = False
        # Half an interval later: what blocks the loop may have begun just after this ping, or just before the next.
        self._detector.asked(self._turned_at + PING_INTERVAL / 2)

    def _missed(self, ping: Ping, now: float, late: float) -> None:
        """The loop should have turned."""
        loop = self._loop()
        if loop is None or not loop.is_running():
            self._detector.late()  # between two calls of run_until_complete(), say
            return
        if not self._is_asked:
            self._is_asked = True
            with contextlib.suppress(RuntimeError):  # it was closed just now
                # Its timers may stand still: a clock that somebody has frozen for a test.
                loop.call_soon_threadsafe(self._turned, ping)
        self._cut()
        self._sample(now, late)

    def _sample(self, now: float, late: float) -> None:
        if late > LATE:
            self._detector.late()
        sample = sample_stack(self._loop_thread, self._rest)
        self._detector.sampled(sample, now, run_queue_wait(self._native_thread))
        if self._detector.is_held:
            self._wary_until = now + _WARY
            self.quota = [None]  # what was there is cleared already
        if (blockage := self._detector.goes_on) is not None:
            self.recent.goes_on(blockage)
            self._log.goes_on(blockage, now)

    def _cut(self) -> None:
        """Let the loop turn after what runs now. Should it have turned meanwhile, that is heard next."""
        running, self.quota = self.quota, [None] * len(self.quota)
        running.clear()
        self.overdue = True
