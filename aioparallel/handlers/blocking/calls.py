"""One call of a blocking function, and the coroutine that waits for it.

A thread cannot be ended from outside. If the coroutine is cancelled while the call runs, it waits until the call ends
and raises CancelledError then. So the record keeps its lane and slot, and the next record of its key cannot overtake
it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Protocol

from aioparallel.handlers.blocking.clock import CLOCK

__all__ = ["BlockingCall", "CallQueue", "outcome_of"]


class BlockingCall:
    """A call, made on an event loop and run by a thread. ``item``: the function's argument, or its replacement.

    ``taken`` and ``abort`` belong to the queue, under its lock. The loop alone changes all other attributes after
    construction.
    """

    __slots__ = ("abort", "context", "error", "is_over", "item", "loop", "on_begin", "taken", "value", "waiter")

    def __init__(self, item: object, loop: asyncio.AbstractEventLoop) -> None:
        self.item = item
        self.loop = loop
        self.context: Context = copy_context()
        self.taken = False
        """Whether a thread has the call."""
        self.abort: Callable[[], None] | None = None
        """Ends the call while it runs, if possible."""
        self.on_begin: Callable[[], None] | None = None
        """Called on the loop when a thread takes a call that had to wait."""
        self.waiter: asyncio.Future[None] = loop.create_future()
        self.is_over = False
        self.value: Any = None
        self.error: BaseException | None = None

    def report_begin(self) -> None:
        """Called by the thread: the call begins."""
        if self.on_begin is not None:
            self._on_loop(self.on_begin)

    def report_end(self, value: object, error: BaseException | None) -> None:
        """Called by the thread: the call has ended."""
        self._on_loop(self._end, value, error)

    def _on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        # A loop that was closed meanwhile raises RuntimeError; nothing waits there any more.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _end(self, value: object, error: BaseException | None) -> None:
        self.is_over, self.value, self.error = True, value, error
        if not self.waiter.done():
            self.waiter.set_result(None)

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised."""
        error, self.error = self.error, None  # breaks a cycle: the traceback refers to this call
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error, self


class CallQueue(Protocol):
    """A queue of calls that wait for threads."""

    def put(self, call: BlockingCall) -> bool:
        """Return True if the call has begun, False if it waits. Raises RuntimeError if there is no thread and none can
        be started."""

    def take_out(self, call: BlockingCall) -> bool:
        """Return True if the call was still waiting; it will not run. A running call is aborted if possible."""

    @property
    def long_wait(self) -> float | None:
        """Seconds of waiting from which a call is logged; None: never."""

    def note_wait(self, seconds: float) -> None:
        """A call has waited at least this long."""


async def outcome_of(call: BlockingCall, queue: CallQueue) -> Any:
    """Queue the call and wait for its end. Returns or raises what its function did, or raises CancelledError."""
    if queue.put(call):
        return await _end_of(call, queue)
    clock, queued_at = CLOCK.get(), call.loop.time()
    restart = None if clock is None else clock.stop()

    def begin() -> None:
        if call.on_begin is None:
            return  # has run already
        call.on_begin = None
        if restart is not None:
            restart()
        queue.note_wait(call.loop.time() - queued_at)

    # Set after put(): a thread may have taken the call in between, without on_begin, so check that below.
    call.on_begin = begin
    if call.taken:
        begin()
    noting = None if queue.long_wait is None else call.loop.call_later(queue.long_wait, _note, call, queue)
    try:
        return await _end_of(call, queue)
    finally:
        if noting is not None:
            noting.cancel()
        if restart is not None and call.on_begin is not None:
            restart()


def _note(call: BlockingCall, queue: CallQueue) -> None:
    if not call.taken and queue.long_wait is not None:  # a call that never begins would not be logged otherwise
        queue.note_wait(queue.long_wait)


async def _end_of(call: BlockingCall, queue: CallQueue) -> Any:
    cancelled: BaseException | None = None
    while not call.is_over:
        try:
            await call.waiter
        except asyncio.CancelledError as error:
            if queue.take_out(call) or _is_abandoned():
                raise
            cancelled = error
            if call.waiter.cancelled():
                call.waiter = call.loop.create_future()
        except BaseException:  # GeneratorExit: the loop has ended
            queue.take_out(call)
            raise
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled
    return call.result()


def _is_abandoned() -> bool:
    clock = CLOCK.get()
    return clock is not None and clock.abandoned
