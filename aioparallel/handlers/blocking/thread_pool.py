"""A pool of threads that run blocking calls in order. Threads start on demand and end when idle.

They are daemon threads, so they do not keep the interpreter from ending, whatever their function does.

A thread cannot be ended from outside. If the coroutine of a call is cancelled while the call runs, it waits until the
call ends and raises CancelledError then. So the record keeps its lane and slot, and the next record of its key cannot
overtake it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from aioparallel.handlers.blocking.calls import BlockingCall
from aioparallel.handlers.blocking.clock import CLOCK
from aioparallel.records.errors import ConsumerStateError

__all__ = ["BlockingStats", "CallRunner", "ThreadPool"]

logger = logging.getLogger(__name__)

# Seconds between two log lines about long waits.
_QUIET = 60.0


class BlockingStats(NamedTuple):
    """The calls and threads of a blocking handler at one moment."""

    running: int
    """Calls that run in threads or processes."""
    waiting: int
    """Calls that wait for a thread or process."""
    threads: int
    """Threads, including idle ones; ``in_processes`` has one for each process."""


class CallRunner:
    """Runs the calls of one thread."""

    def prepare(self) -> None:
        """Get ready for a call. If it raises, a waiting call fails with that error."""

    def run(self, call: BlockingCall) -> None:
        """Run it and report its end. Raises nothing."""
        raise NotImplementedError

    def abort(self) -> None:
        """End the running call if that is possible. Any thread may call it; it returns quickly."""

    def close(self) -> None:
        """Take no more calls. Any thread may call it, also during the other methods."""


class _Thread:
    """A thread of the pool, with a call that was taken for it."""

    __slots__ = ("given", "runner", "woken")

    def __init__(self, runner: CallRunner) -> None:
        self.runner = runner
        self.given: BlockingCall | None = None  # already taken
        self.woken = threading.Semaphore(0)


class ThreadPool:
    """At most ``size`` threads, named after ``name``, each with its own runner.

    Methods called on the event loop do not block. A running call is aborted under the lock that its end takes as well,
    so the next call is never aborted instead. ``idle_seconds``: an idle thread ends after this time; None: when the
    pool is closed. ``prepares``: whether runners need :meth:`CallRunner.prepare`, during which a call waits.
    ``long_wait``: seconds of waiting from which a call is logged; None: never.
    """

    def __init__(
        self,
        size: int,
        name: str,
        runner: Callable[[], CallRunner],
        *,
        idle_seconds: float | None,
        prepares: bool,
        long_wait: float | None,
    ) -> None:
        self._size = size
        self._name = name
        self._runner = runner
        self._idle_seconds = idle_seconds
        self._prepares = prepares
        self._long_wait = long_wait
        self._noted_at = -_QUIET
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # close() may be called by a garbage collection, at any time
        self._waiting: dict[BlockingCall, None] = {}
        self._idle: dict[_Thread, None] = {}
        self._threads: set[_Thread] = set()
        self._running = 0
        self._numbers = 0

    # -- on the loop

    async def run(self, item: object) -> Any:
        """Call the function in a thread. Returns or raises what it does, or raises CancelledError. Raises RuntimeError
        if there is no thread and none can be started."""
        call = BlockingCall(item, asyncio.get_running_loop())
        if self._put(call):
            return await self._end_of(call)
        clock, queued_at = CLOCK.get(), call.loop.time()
        restart = None if clock is None else clock.stop()

        def begin() -> None:
            if call.on_begin is None:
                return  # has run already
            call.on_begin = None
            if restart is not None:
                restart()
            self._note_wait(call.loop.time() - queued_at)

        # Set after _put(): a thread may have taken the call in between, without on_begin, so check that below.
        call.on_begin = begin
        if call.taken:
            begin()
        noting = None if self._long_wait is None else call.loop.call_later(self._long_wait, self._note_waiting, call)
        try:
            return await self._end_of(call)
        finally:
            if noting is not None:
                noting.cancel()
            if restart is not None and call.on_begin is not None:
                restart()

    async def _end_of(self, call: BlockingCall) -> Any:
        cancelled: BaseException | None = None
        while not call.is_over:
            try:
                await call.waiter
            except asyncio.CancelledError as error:
                if self._take_out(call) or _is_abandoned():
                    raise
                cancelled = error
                if call.waiter.cancelled():
                    call.waiter = call.loop.create_future()
            except BaseException:  # GeneratorExit: the loop has ended
                self._take_out(call)
                raise
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled
        return call.result()

    def _put(self, call: BlockingCall) -> bool:
        """Queue a call, or give it to a thread. Returns whether a thread has it."""
        if self._process != os.getpid():
            self._reset()  # after a fork, which has none of the threads
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
            return self._idle.popitem()[0]  # the last one, so that threads that are not needed stay idle and end
        if len(self._threads) == self._size:
            return None
        thread = _Thread(self._runner())
        try:
            self._start(thread)
        except RuntimeError:
            if not self._threads:
                raise
            return None  # one of the others takes the call
        self._threads.add(thread)
        return thread

    def _take_out(self, call: BlockingCall) -> bool:
        """Remove a waiting call and return True; abort a running call and return False."""
        with self._lock:
            if call in self._waiting:
                del self._waiting[call]
                return True
            if call.abort is not None:
                call.abort()
            return False

    def _note_waiting(self, call: BlockingCall) -> None:
        if not call.taken and self._long_wait is not None:  # a call that never begins would not be logged otherwise
            self._note_wait(self._long_wait)

    def _note_wait(self, seconds: float) -> None:
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
        """End the idle threads and close all runners. Calls that run in plain threads continue.

        The next call starts new threads. After a fork, the child has no threads, and this does nothing.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            threads, waiting = list(self._threads), list(self._waiting)
            for one in (self._threads, self._idle, self._waiting):
                one.clear()
        for call in waiting:
            call.report_end(None, ConsumerStateError(f"{self._name} was closed before it was called"))
        for thread in threads:
            thread.woken.release()
            thread.runner.close()

    # -- in a thread

    def _start(self, thread: _Thread) -> None:
        self._numbers += 1
        name = f"aioparallel-{self._name}-{self._numbers}"
        threading.Thread(target=self._serve, args=(thread,), name=name, daemon=True).start()

    def _serve(self, thread: _Thread) -> None:
        while self._wait(thread):
            while (call := self._next(thread)) is not None:
                call.report_begin()
                thread.runner.run(call)
                with self._lock:
                    self._running -= 1
                    call.abort = None
                del call  # so that an idle thread does not keep the item
        thread.runner.close()

    def _wait(self, thread: _Thread) -> bool:
        """Wait for a call. Returns False if the thread must end."""
        woken = thread.woken.acquire(timeout=self._idle_seconds)
        with self._lock:
            if thread not in self._threads:  # the pool was closed, perhaps just after the thread was given a call
                return thread.given is not None
            # If the thread is not idle, it was taken from the idle ones when it was woken. This may happen just after
            # its wait timed out: it then finds a call, and when idle again, the semaphore's token for that call.
            if thread in self._idle:
                del self._idle[thread]
                if not woken:
                    self._threads.discard(thread)
                    return False
        return True

    def _next(self, thread: _Thread) -> BlockingCall | None:
        """The next call. The thread becomes idle if there is none."""
        if thread.given is not None:
            call, thread.given = thread.given, None
            return call
        while self._prepares and self._waiting and thread in self._threads:
            try:
                thread.runner.prepare()
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
        call.abort = thread.runner.abort
        self._running += 1

    def _fail_one(self, thread: _Thread, error: BaseException) -> None:
        with self._lock:
            call = next(iter(self._waiting), None)
            if call is None or thread not in self._threads:
                return  # closed, which caused the error; calls that wait now are for new threads
            del self._waiting[call]
        call.report_end(None, error)


def _is_abandoned() -> bool:
    clock = CLOCK.get()
    return clock is not None and clock.abandoned
