"""One call of a blocking function: queued, running, over; and the coroutine that waits for it.

A thread cannot be ended from outside. So whoever is cancelled while the call runs goes on waiting, and passes the
cancellation on when it is over: the record keeps its lane and its slot, and the next of its key cannot overtake it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Protocol

from aioparallel.blocking.clock import CLOCK

__all__ = ["BlockingCall", "CallQueue", "outcome_of"]


class BlockingCall:
    """Made on an event loop, run by a thread. ``item``: what the function is called with, or what stands for it.

    ``taken`` and ``abort`` belong to the queue, under its lock; everything else that is not set here is touched on the
    loop only.
    """

    __slots__ = ("abort", "context", "error", "is_over", "item", "loop", "on_begin", "taken", "value", "waiter")

    def __init__(self, item: object, loop: asyncio.AbstractEventLoop) -> None:
        self.item = item
        self.loop = loop
        self.context: Context = copy_context()
        self.taken = False
        """Whether a thread has it."""
        self.abort: Callable[[], None] | None = None
        """Ends it while it runs, where that is possible."""
        self.on_begin: Callable[[], None] | None = None
        """To be called on the loop when a thread takes it; for one that had to wait."""
        self.waiter: asyncio.Future[None] = loop.create_future()
        self.is_over = False
        self.value: Any = None
        self.error: BaseException | None = None

    def tell_begin(self) -> None:
        """From the thread: it begins."""
        if self.on_begin is not None:
            self._tell(self.on_begin)

    def tell_end(self, value: object, error: BaseException | None) -> None:
        """From the thread: it is over."""
        self._tell(self._end, value, error)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        # A loop that was closed meanwhile refuses: nobody waits there any more.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _end(self, value: object, error: BaseException | None) -> None:
        self.is_over, self.value, self.error = True, value, error
        if not self.waiter.done():
            self.waiter.set_result(None)

    def result(self) -> Any:
        """What the function returned; raises what it raised."""
        error, self.error = self.error, None  # or the traceback would hold this call, which holds the error
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error, self


class CallQueue(Protocol):
    """Where calls wait for a thread."""

    def put(self, call: BlockingCall) -> bool:
        """Return True if it runs already, False if it waits. Raises RuntimeError if there is no thread and none can be
        started."""

    def take_out(self, call: BlockingCall) -> bool:
        """Return True if it was still waiting: then it does not run. A running call is aborted if possible."""

    @property
    def long_wait(self) -> float | None:
        """The seconds of waiting that are logged; None: not at all."""

    def note_wait(self, seconds: float) -> None:
        """A call has waited at least this long."""


async def outcome_of(call: BlockingCall, queue: CallQueue) -> Any:
    """Queue the call and wait until it is over. Returns or raises what its function did, or CancelledError."""
    if queue.put(call):
        return await _end_of(call, queue)
    clock, queued_at = CLOCK.get(), call.loop.time()
    restart = None if clock is None else clock.stop()

    def begin() -> None:
        if call.on_begin is None:
            return  # both of us have seen it
        call.on_begin = None
        if restart is not None:
            restart()
        queue.note_wait(call.loop.time() - queued_at)

    # Set after the call was queued: a thread may have taken it already, and then knows of none to tell.
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
    if not call.taken and queue.long_wait is not None:  # it may never begin, and then nobody else would say so
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
        except BaseException:  # GeneratorExit: the loop is gone
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
