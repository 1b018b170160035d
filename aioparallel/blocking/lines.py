"""Calls in a line, first come first served, and the threads that take them: started on demand, kept, ended when idle.

Daemon threads: none of them keeps the interpreter from ending, whatever its function does.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from aioparallel.blocking.calls import BlockingCall
from aioparallel.errors import ConsumerStateError

__all__ = ["BlockingStats", "Hand", "Threads"]

logger = logging.getLogger(__name__)

# Seconds between two lines about long waits.
_QUIET = 60.0


class BlockingStats(NamedTuple):
    """What a blocking handler does at this moment."""

    running: int
    """Calls that threads or processes have begun."""
    waiting: int
    """Calls that wait for one."""
    threads: int
    """Threads that are there, idle ones among them; for ``in_processes`` one for each process."""


class Hand(Protocol):
    """What one thread runs calls with."""

    def prepare(self) -> None:
        """Be ready for a call; raises what keeps it from that, and a call that waits fails with it."""

    def run(self, call: BlockingCall) -> None:
        """Run it, and tell its end. Raises nothing."""

    def abort(self) -> None:
        """End the call that runs, where that is possible. From any thread, quickly."""

    def close(self) -> None:
        """No more calls. From any thread, also amid the others."""


class _Thread:
    __slots__ = ("given", "hand", "woken")

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.given: BlockingCall | None = None  # already taken
        self.woken = threading.Semaphore(0)


class Threads:
    """At most ``size`` threads, named after ``name``, each with a hand of its own. What is called on the loop takes no
    time; whoever cancels a call that runs has it aborted, under the lock that its end needs: never the one after it.

    ``idle_seconds``: after which a thread without calls ends; None: when it is closed. ``prepares``: whether hands have
    to be prepared: then a call waits in line meanwhile, and is not running. ``long_wait``: seconds that are worth a
    line in the log; None: none are.
    """

    def __init__(
        self,
        size: int,
        name: str,
        hand: Callable[[], Hand],
        *,
        idle_seconds: float | None,
        prepares: bool,
        long_wait: float | None,
    ) -> None:
        self._size = size
        self._name = name
        self._hand = hand
        self._idle_seconds = idle_seconds
        self._prepares = prepares
        self._long_wait = long_wait
        self._noted_at = -_QUIET
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # close() may come from a garbage collection, anywhere
        self._waiting: dict[BlockingCall, None] = {}
        self._idle: dict[_Thread, None] = {}
        self._threads: set[_Thread] = set()
        self._running = 0
        self._numbers = 0

    # -- on the loop ------------------------------------------------------------------------------------

    def put(self, call: BlockingCall) -> bool:
        """See :class:`~aioparallel.blocking.calls.Line`."""
        if self._process != os.getpid():
            self._begin_anew()  # after a fork, where none of the threads is
        with self._lock:
            thread = self._free_thread()
            if thread is None or self._prepares:
                self._waiting[call] = None
            else:
                thread.given = call
                self._take(thread, call)
            if thread is not None:
                thread.woken.release()
            return call.taken

    def _free_thread(self) -> _Thread | None:
        if self._idle:
            return self._idle.popitem()[0]  # the last one: those that are not needed stay idle, and end
        if len(self._threads) == self._size:
            return None
        thread = _Thread(self._hand())
        try:
            self._start(thread)
        except RuntimeError:
            if not self._threads:
                raise
            return None  # one of the others takes the call
        self._threads.add(thread)
        return thread

    def take_out(self, call: BlockingCall) -> bool:
        """See :class:`~aioparallel.blocking.calls.Line`."""
        with self._lock:
            if call in self._waiting:
                del self._waiting[call]
                return True
            if call.abort is not None:
                call.abort()
            return False

    def note_wait(self, seconds: float) -> None:
        """A line in the log about long waits, one a minute at most."""
        now = time.monotonic()
        if self._long_wait is None or seconds < self._long_wait or now - self._noted_at < _QUIET:
            return
        self._noted_at = now
        logger.warning(
            "a call of %s waited %.1f s for a free thread, and %d wait now: there are %d; allow more of them, or lower "
            "max_concurrency",
            self._name,
            seconds,
            len(self._waiting),
            self._size,
            extra={"action": "blocking_wait", "waiting": len(self._waiting)},
        )

    def stats(self) -> BlockingStats:
        """A snapshot."""
        with self._lock:
            return BlockingStats(self._running, len(self._waiting), len(self._threads))

    def close(self) -> None:
        """End the threads that are idle, and the hands of all. Calls that run in plain threads go on to their end. The
        next call starts threads anew."""
        with self._lock:
            threads, waiting = list(self._threads), list(self._waiting)
            for one in (self._threads, self._idle, self._waiting):
                one.clear()
        for call in waiting:
            call.tell_end(None, ConsumerStateError(f"{self._name} was closed before it was called"))
        for thread in threads:
            thread.woken.release()
            thread.hand.close()

    # -- a thread ---------------------------------------------------------------------------------------

    def _start(self, thread: _Thread) -> None:
        self._numbers += 1
        name = f"aioparallel-{self._name}-{self._numbers}"
        threading.Thread(target=self._serve, args=(thread,), name=name, daemon=True).start()

    def _serve(self, thread: _Thread) -> None:
        while self._wait(thread):
            while (call := self._next(thread)) is not None:
                call.tell_begin()
                thread.hand.run(call)
                with self._lock:
                    self._running -= 1
                    call.abort = None
                del call  # or an idle thread would keep the item
        thread.hand.close()

    def _wait(self, thread: _Thread) -> bool:
        """False: the thread is to end."""
        woken = thread.woken.acquire(timeout=self._idle_seconds)
        with self._lock:
            if thread not in self._threads:  # closed, perhaps just after it was given a call
                return thread.given is not None
            # Else whoever has woken it took it out. (Also just after it gave up waiting: then it finds a call, and
            # later, idle again, the token of that.)
            if thread in self._idle:
                del self._idle[thread]
                if not woken:
                    self._threads.discard(thread)
                    return False
        return True

    def _next(self, thread: _Thread) -> BlockingCall | None:
        """The next call; the thread is idle when there is none."""
        if thread.given is not None:
            call, thread.given = thread.given, None
            return call
        while self._prepares and self._waiting and thread in self._threads:
            try:
                thread.hand.prepare()
                break
            except BaseException as error:  # a handler's module may raise SystemExit when it is imported
                self._fail_one(thread, error)
        with self._lock:
            if thread not in self._threads:
                return None
            if self._waiting:
                call = next(iter(self._waiting))
                del self._waiting[call]
                self._take(thread, call)
                return call
            self._idle[thread] = None
            return None

    def _take(self, thread: _Thread, call: BlockingCall) -> None:
        call.taken = True
        call.abort = thread.hand.abort
        self._running += 1

    def _fail_one(self, thread: _Thread, error: BaseException) -> None:
        with self._lock:
            call = next(iter(self._waiting), None)
            if call is None or thread not in self._threads:
                return  # it was closed, and that is the cause; what waits now is for those after it
            del self._waiting[call]
        call.tell_end(None, error)
