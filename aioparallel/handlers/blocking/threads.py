"""``in_threads``: a blocking function as a handler, in its own threads."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

from aioparallel.config.handling import check_count
from aioparallel.config.unknown_options import refuses_others
from aioparallel.handlers.blocking.calls import BlockingCall
from aioparallel.handlers.blocking.plain_functions import check_plain_handler, name_of
from aioparallel.handlers.blocking.thread_pool import BlockingStats, CallRunner, ThreadPool

__all__ = ["InThreads", "in_threads"]

T = TypeVar("T")
R = TypeVar("R")

# Seconds before an idle thread ends.
_IDLE = 30.0
# Seconds that a call may wait for a thread before that is logged.
_LONG_WAIT = 1.0


class _Decorator(Protocol):
    def __call__(self, handler: Callable[[T], R], /) -> InThreads[T, R]: ...


@overload
def in_threads(handler: Callable[[T], R], *, threads: int = 100) -> InThreads[T, R]: ...
@overload
def in_threads(*, threads: int = 100) -> _Decorator: ...
@refuses_others
def in_threads(handler: Callable[[T], R] | None = None, *, threads: int = 100) -> InThreads[T, R] | _Decorator:
    """Turn a plain function that blocks into a handler that runs it in threads. Also as ``@in_threads(threads=20)``.

    ``handler``: a plain function of a record or an item. The handler returns or raises what it returns or raises. It
    sees the context variables of the coroutine that awaits it.
    ``threads``: most calls at a time. Further calls wait, and their deadline starts when they begin. Set it to at least
    ``max_concurrency``; more than that are never used. An idle thread ends after half a minute.

    **A thread cannot be ended from outside.** If a handler is cancelled, a waiting call is removed. A running call
    keeps its key and its slot until the function returns, and the handler then raises CancelledError. So the function
    should have timeouts of its own.

    Raises ConfigurationError for anything but a plain function of one argument, and for fewer than 1 thread.
    """
    if handler is None:
        return functools.partial(InThreads, threads=threads)
    return InThreads(handler, threads)


class InThreads(Generic[T, R]):
    """The result of :func:`in_threads`: a handler for any number of event loops."""

    def __init__(self, function: Callable[[T], R], threads: int) -> None:
        check_plain_handler(function, "in_threads")
        check_count("in_threads threads", threads)
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._size = threads
        runner = _Plain(function)
        self._pool = ThreadPool(
            threads, name_of(function), lambda: runner, idle_seconds=_IDLE, prepares=False, long_wait=_LONG_WAIT
        )
        weakref.finalize(self, self._pool.close).atexit = False

    async def __call__(self, item: T) -> R:
        """Call the function with ``item`` in a thread. Raises RuntimeError if no thread can be started."""
        result: R = await self._pool.run(item)
        return result

    def stats(self) -> BlockingStats:
        """A snapshot of calls and threads."""
        return self._pool.stats()

    def __reduce__(self) -> tuple[Any, ...]:
        return InThreads, (self._function, self._size)

    def __repr__(self) -> str:
        return f"<in_threads of {name_of(self._function)}, {self._size} at most>"


class _Plain(CallRunner):
    """Runs calls directly in the thread."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def run(self, call: BlockingCall) -> None:
        """Call the function and report its end."""
        try:
            value = call.context.run(self._function, call.item)
        except BaseException as error:
            call.report_end(None, error)
        else:
            call.report_end(value, None)
