"""One call of a blocking function: made on an event loop, run by a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

__all__ = ["BlockingCall"]


class BlockingCall:
    """``item``: the function's argument, or its replacement.

    ``taken`` and ``abort`` belong to the pool, under its lock. The loop alone changes all other attributes after
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
