"""Watches an event loop from another thread: notices when it does not turn, and samples what blocks it.

Each loop on which workers run has one, from their first record to the close of the last pool. The loop pings it ten
times a second. Each ping costs one handover of the interpreter lock (:mod:`~aioparallel.engine.watch.ping`).

**Ending a turn early.** A turn starts up to 16 records (:mod:`~aioparallel.engine.schedule.turn`), and several workers
may run in one turn of the loop. With handlers that block for 0.3 s each, the loop would be blocked for seconds. So when
a ping is overdue, the thread clears :attr:`LoopWatch.quota`, the list over which a turn iterates. A ``for`` over a list
ends at its next step if the list has become shorter, so the turn ends after the running record. The hot path needs no
check. The thread also sets :attr:`LoopWatch.overdue`: workers with other records then wait for the next turn of the
loop. This costs little, so it is done before it is clear which handler is to blame.
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

from aioparallel.engine.watch.blockage_log import BlockageLog, WorstBlockage
from aioparallel.engine.watch.blockages import LATE, OVERDUE, PING_INTERVAL, SAMPLE_INTERVAL, BlockageDetector
from aioparallel.engine.watch.ping import Ping
from aioparallel.engine.watch.stack_sampling import run_queue_wait, sample_stack

__all__ = ["LoopWatch"]

# Records that a worker runs before it checks the clock.
_TURN: Final = 16
# For so many seconds after a blockage a turn has one record.
_WARY: Final = 5.0
# A handler that waits for an overdue turn to end goes on after so many turns without a ping.
_MISSED_TURNS: Final = 4
# Seconds that the thread has to end.
_JOIN: Final = 0.5
# Seconds by which a real loop's clock may be off: uvloop's does not advance while the loop is blocked.
_SAME_CLOCK: Final = 60.0


class LoopWatch:
    """The watch of one event loop. Get it with :meth:`of`.

    The loop's thread writes the members and the time of the last turn. The watching thread writes everything else.
    """

    _of_loops: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch]] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.quota: list[None] = [None] * _TURN
        """A turn runs one record for each element, and ends when the list is cleared. Read it anew for each turn."""
        self.overdue = False
        """Whether this turn of the loop takes too long: work that can wait for the next turn should."""
        self._loop = weakref.ref(loop)
        self._members: weakref.WeakSet[object] = weakref.WeakSet()
        self._lock = threading.Lock()  # guards the members and the end of the thread
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
        """Return the watch of this loop, which is the running one. Makes one if there is none."""
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls(loop)
        return found

    def join(self, member: object) -> None:
        """Add a member, which runs records from now on. It is referenced weakly."""
        loop = self._loop()
        assert loop is not None
        if abs(loop.time() - monotonic()) > _SAME_CLOCK:
            return  # a simulation with virtual time: nothing takes time there, and turns must be reproducible
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
        """Remove a member. The thread ends with the last one."""
        with self._lock:
            self._members.discard(member)
            if self._members or self._thread is None:
                return
            thread, self._turned_at = self._thread, monotonic()
            self._log.forget()
            self._end()
        thread.join(_JOIN)

    def _end(self) -> None:
        """Call it with the lock held."""
        assert self._pings is not None
        self._pings.end()
        if self._timer is not None:
            self._timer.cancel()
        # The timer references the loop: forget it, so that the loop can be collected.
        self._pings = self._thread = self._timer = None

    def worst(self) -> list[WorstBlockage]:
        """Return the longest blockages of the last minute, one for each handler, the longest first."""
        return self._log.worst(monotonic())

    @property
    def blockages(self) -> int:
        """How often something has blocked the loop."""
        return self._log.count

    @property
    def blocked_seconds(self) -> float:
        """For how long, in total."""
        return self._log.seconds

    def breathe(self) -> Iterator[None]:
        """Yield to the event loop before a handler resumes, while this turn of the loop takes too long."""
        seen, missed = self._turns, 0
        while self.overdue and missed < _MISSED_TURNS:
            yield
            # If the watch notes no turns any more (it has ended), do not wait for it.
            missed = missed + 1 if self._turns == seen else 0
            seen = self._turns

    # -- in the loop ------------------------------------------------------------------------------------

    def _ping(self, ping: Ping) -> None:
        loop = self._loop()
        if ping.ended or loop is None:
            return
        # The timer first: the rest may raise, for example KeyboardInterrupt.
        self._timer = loop.call_later(PING_INTERVAL, self._ping, ping)
        self._turned(ping, depth=2)

    def _turned(self, ping: Ping, depth: int = 1) -> None:
        """Note that the loop turns. ``depth``: how many frames the code that runs the loop is above this one."""
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
                del loop  # or this thread would keep it alive while it waits
                planned = monotonic() + timeout
                has_come = ping.wait(timeout)
                now = monotonic()
                if has_come:
                    self._pinged(now)
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
            if self._pings is ping:  # else another thread has started, or the watch has ended
                self._timer = None  # it belongs to the closed loop: this thread must not touch it
                self._end()
            self.overdue = False

    def _pinged(self, now: float) -> None:
        """A ping has come: the loop has turned, or the watch has ended."""
        self.overdue = False
        self._log.ended(self._detector.answered(self._turned_at), now)
        if now >= self._wary_until and len(self.quota) < _TURN:
            self.quota = [None] * _TURN
        self._is_asked = False
        # A blockage may begin just after this ping, or just before the next. On average it is half an interval.
        self._detector.asked(self._turned_at + PING_INTERVAL / 2)

    def _missed(self, ping: Ping, now: float, late: float) -> None:
        """A ping is overdue: end the turn early, and take a sample."""
        loop = self._loop()
        if loop is None or not loop.is_running():
            self._detector.late()  # for example between two calls of run_until_complete()
            return
        if not self._is_asked:
            self._is_asked = True
            with contextlib.suppress(RuntimeError):  # the loop was closed just now
                # The timer of the next ping may never fire: a test may have frozen the loop's clock.
                loop.call_soon_threadsafe(self._turned, ping)
        self._end_turn()
        self._sample(now, late)

    def _sample(self, now: float, late: float) -> None:
        if late > LATE:
            self._detector.late()
        sample = sample_stack(self._loop_thread, self._rest)
        self._detector.sampled(sample, now, run_queue_wait(self._native_thread))
        if self._detector.is_held:
            self._wary_until = now + _WARY
            self.quota = [None]  # the list before is cleared already
        if (blockage := self._detector.goes_on) is not None:
            self._log.goes_on(blockage, now)

    def _end_turn(self) -> None:
        """Let the loop turn after the running record. If it has turned meanwhile, the next ping resets this."""
        running, self.quota = self.quota, [None] * len(self.quota)
        running.clear()
        self.overdue = True
