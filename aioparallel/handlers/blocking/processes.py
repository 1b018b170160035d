"""``in_processes``: a function that computes as a handler, in separate processes."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import multiprocessing.process
import multiprocessing.util  # registers its exit handler, which must run after the one below
import os
import pickle
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextvars import ContextVar
from types import FunctionType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, cast, overload

from aioparallel.config.handling import check_count
from aioparallel.config.unknown_options import refuses_others
from aioparallel.handlers.blocking.children import Child
from aioparallel.handlers.blocking.crossing import NamedFunction, Wrapping, returned
from aioparallel.handlers.blocking.main_guard import is_importing_main, refuse_in_import_of_main
from aioparallel.handlers.blocking.plain_functions import check_plain_handler, name_of
from aioparallel.handlers.blocking.thread_pool import BlockingStats, ThreadPool
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.user_errors import text_of

__all__ = ["InProcesses", "in_processes", "leaving_this_program"]

T = TypeVar("T")
R = TypeVar("R")

_OPTION = "in_processes handler"
_WAY_OUT = "so its processes cannot import it: put it into a module that both import"
_leaves: ContextVar[bool] = ContextVar("aioparallel_leaves", default=False)


class _Decorator(Protocol):
    def __call__(self, handler: Callable[[T], R], /) -> InProcesses[T, R]: ...


@overload
def in_processes(
    handler: Callable[[T], R], *, processes: int | None = None, max_tasks: int = 0
) -> InProcesses[T, R]: ...
@overload
def in_processes(*, processes: int | None = None, max_tasks: int = 0) -> _Decorator: ...
@refuses_others
def in_processes(
    handler: Callable[[T], R] | None = None, *, processes: int | None = None, max_tasks: int = 0
) -> InProcesses[T, R] | _Decorator:
    """Turn a plain function that computes into a handler that runs it in processes. Also as ``@in_processes()``.

    ``handler``: a plain function of a record or an item, at the top level of a module, so that each process can import
    it. Its argument, and what it returns or raises, are pickled.
    ``processes``: most processes at a time; None: one per core that this process may use. They are spawned at the first
    calls. They end with the event loop, with this object, and with the program, however that ends.
    ``max_tasks``: calls after which a process is replaced; 0: never.

    Cancelling a call, for example at its deadline, kills its process. Another one is started for the next call. A call
    that still waits for a process is removed from the queue; waiting does not count towards the deadline. If a process
    dies, only the call that it ran fails, with :class:`~aioparallel.ProcessDied`.

    Raises ConfigurationError for anything but a plain function of one argument that a process can import, for fewer
    than 1 process, and for ``max_tasks`` below 0.
    """
    if handler is None:
        return functools.partial(InProcesses, processes=processes, max_tasks=max_tasks)
    return InProcesses(handler, processes, max_tasks)


class InProcesses(Wrapping, Generic[T, R]):
    """The result of :func:`in_processes`: a handler for any number of event loops.

    ``with in_processes(...) as handler:`` ends its processes after the block.
    """

    def __init__(self, function: Callable[[T], R], processes: int | None, max_tasks: int) -> None:
        check_plain_handler(function, "in_processes")
        if processes is None:
            processes = _cores()
        check_count("in_processes processes", processes)
        check_count("in_processes max_tasks", max_tasks, 0)
        functools.update_wrapper(self, function, updated=())
        self.wrapped = function
        self._size, self._max_tasks = processes, max_tasks
        reference = _reference(function)
        name = name_of(function)
        self._named = reference if isinstance(reference, NamedFunction) else None
        pickled = pickle.dumps(reference)
        self._pool = ThreadPool(
            processes,
            name,
            lambda: Child(pickled, f"aioparallel-{name}", max_tasks),
            idle_seconds=None,
            prepares=True,
            long_wait=None,
        )
        self._loops: dict[asyncio.AbstractEventLoop, AsyncGenerator[None]] = {}
        _open.add(self._pool)
        weakref.finalize(self, self._pool.close).atexit = False

    async def __call__(self, item: T) -> R:
        """Call the function with ``item`` in a process. Raises TypeError if the item cannot be pickled."""
        refuse_in_import_of_main()
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._check_name()
            await self._end_with(loop)
        return cast("R", returned(item, await self._pool.run(item)))

    def stats(self) -> BlockingStats:
        """A snapshot of calls and threads."""
        return self._pool.stats()

    def close(self) -> None:
        """End the processes. Running and waiting calls fail; the next call starts new processes. Usually blocks for
        milliseconds, and at most for a second per process."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if _leaves.get() and _module_of(self.wrapped) == "__main__":
            raise ConfigurationError(
                _OPTION,
                self.wrapped,
                f"belongs to this program, which the worker it is sent to does not run, {_WAY_OUT}",
            )
        return InProcesses, (self.wrapped, self._size, self._max_tasks)

    def __repr__(self) -> str:
        return f"<in_processes of {name_of(self.wrapped)}, {self._size} at most>"

    async def _end_with(self, loop: asyncio.AbstractEventLoop) -> None:
        for other in [one for one in self._loops if one.is_closed()]:
            del self._loops[other]
        # Before a loop closes, it closes the async generators that were started in it.
        self._loops[loop] = end = _until_the_end(loop, self._loops, self._pool)
        await anext(end)

    def _check_name(self) -> None:
        if self._named is None:
            return
        try:
            found: object = self._named.found()
        except (ImportError, AttributeError):
            found = None
        if found is not self.wrapped:
            raise ConfigurationError(
                _OPTION,
                self.wrapped,
                f"is not what {'.'.join(self._named)} refers to, so no process can import it: it must be a "
                "function at the top level of a module, under its own name",
            )


@contextlib.contextmanager
def leaving_this_program() -> Iterator[None]:
    """Pickle for processes of another program. A function of this program's main module cannot run in their processes,
    and raises ConfigurationError."""
    token = _leaves.set(True)
    try:
        yield
    finally:
        _leaves.reset(token)


# Pools to close at exit, before multiprocessing waits for all processes to end by themselves.
_open: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for threads in list(_open):
        threads.close()


async def _until_the_end(
    loop: asyncio.AbstractEventLoop, loops: dict[asyncio.AbstractEventLoop, AsyncGenerator[None]], threads: ThreadPool
) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        loops.pop(loop, None)
        if not loops:
            threads.close()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_program_there() -> bool:
    """Whether a process can import the program's main module, which it does first, whatever it runs."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or getattr(sys, "frozen", False):
        return True  # interactive, run as a module, or frozen
    return os.path.isfile(os.path.join(getattr(multiprocessing.process, "ORIGINAL_DIR", None) or "", file))


def _inner(function: object) -> object:
    return getattr(function, "func", function)


def _module_of(function: object) -> str:
    inner = _inner(function)
    return getattr(inner, "__module__", None) or type(inner).__module__


def _is_of_another_program(function: object) -> bool:
    """Whether the function was pickled by value, and belongs to the main module of another process."""
    return (
        isinstance(function, FunctionType)
        and function.__module__ == "__main__"
        and function.__globals__ is not vars(sys.modules["__main__"])
    )


def _reference(function: Callable[..., object]) -> object:
    """What to pickle for each process. Raises ConfigurationError if a process cannot import the function."""
    if is_importing_main():
        return None  # no call will be made here, and the module does not have its final name yet
    if (why_not := _why_not_imported(function)) is not None:
        raise ConfigurationError(_OPTION, function, why_not)
    if isinstance(function, FunctionType):
        return NamedFunction(function.__module__, function.__qualname__)
    try:
        pickle.loads(pickle.dumps(function))
    except Exception as error:
        raise ConfigurationError(
            _OPTION,
            function,
            f"cannot be pickled, so it cannot be sent to a process ({type(error).__name__}: {text_of(error)})",
        ) from None
    return function


def _why_not_imported(function: Callable[..., object]) -> str | None:
    """Why no process can import the function; None if one can, as far as is known."""
    if _is_of_another_program(_inner(function)):
        return (
            "belongs to the program that sent it here, which this process (a Spark worker, say) does not run, "
            f"{_WAY_OUT}"
        )
    if not _is_program_there():
        return (
            "cannot run because no process can import this program (it comes from standard input, say): put it into a "
            "file"
        )
    if _module_of(function) == "__main__" and not os.path.isfile(
        getattr(sys.modules["__main__"], "__file__", None) or ""
    ):
        return "belongs to an interactive program, which no process can import: put it into a file"
    if isinstance(function, FunctionType) and "<" in function.__qualname__:
        return (
            "is a lambda, or defined within another function, so no process can import it: it must be a function at "
            "the top level of a module"
        )
    return None
