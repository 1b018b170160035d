"""``in_threads``: a blocking function as a handler, in threads of its own."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

from aioparallel.blocking.calls import BlockingCall, outcome_of
from aioparallel.blocking.plain import check_plain_handler, name_of
from aioparallel.blocking.thread_pool import BlockingStats, ThreadPool
from aioparallel.handling import check_count

__all__ = ["InThreads", "in_threads"]

T = TypeVar("T")
R = TypeVar("R")

# Seconds after which a thread that has nothing to do ends.
_IDLE = 30.0
# Seconds that a call waits for a thread before that is worth a line in the log.
_LONG_WAIT = 1.0


class _Decorator(Protocol):
    def __call__(self, handler: Callable[[T], R], /) -> InThreads[T, R]: ...


@overload
def in_threads(handler: Callable[[T], R], *, threads: int = 100) -> InThreads[T, R]: ...
@overload
def in_threads(*, threads: int = 100) -> _Decorator: ...
def in_threads(handler: Callable[[T], R] | None = None, *, threads: int = 100) -> InThreads[T, R] | _Decorator:
    """Make a handler of a plain function that blocks: it runs in a thread. Also as ``@in_threads(threads=20)``.

    ``handler``: a plain function of a record, or of an item. What it returns or raises is the handler's, and it sees
    the context variables of the coroutine that awaits it.
    ``threads``: calls at once, at most; those above it wait in line, and their deadline begins when they begin. Give at
    least as many as ``max_concurrency`` allows; more are never used. An idle thread ends after half a minute.

    **A thread cannot be ended from outside.** A call that waits is taken out when its handler is cancelled; one that
    runs keeps its key and its slot until the function returns, and the handler ends with CancelledError then. So give
    the function timeouts of its own.

    Raises ConfigurationError for anything but a plain function of one argument, and for fewer than 1 thread.
    """
    if handler is None:
        return functools.partial(InThreads, threads=threads)
    return InThreads(handler, threads)


class InThreads(Generic[T, R]):
    """What :func:`in_threads` gives: a handler. For any event loop, and one after the other."""

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
        """Call the function with ``item`` in a thread. Raises RuntimeError when no thread can be started at all."""
        result: R = await outcome_of(BlockingCall(item, asyncio.get_running_loop()), self._pool)
        return result

    def stats(self) -> BlockingStats:
        """What it does at this moment."""
        return self._pool.stats()

    def __reduce__(self) -> tuple[Any, ...]:
        return InThreads, (self._function, self._size)

    def __repr__(self) -> str:
        return f"<in_threads of {name_of(self._function)}, {self._size} at most>"


class _Plain:
    """Runs calls right in the thread."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def prepare(self) -> None:
        """Nothing."""

    def run(self, call: BlockingCall) -> None:
        """See :class:`~aioparallel.blocking.thread_pool.CallRunner`."""
        try:
            value = call.context.run(self._function, call.item)
        except BaseException as error:
            call.tell_end(None, error)
        else:
            call.tell_end(value, None)

    def abort(self) -> None:
        """Nothing: a thread cannot be ended."""

    def close(self) -> None:
        """Nothing."""
