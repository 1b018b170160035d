"""``in_processes``: a function that computes as a handler, in processes of its own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import multiprocessing.process
import multiprocessing.util  # registers its own end of processes at exit, which must come after ours
import os
import pickle
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextvars import ContextVar
from types import FunctionType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, cast, overload

from aioparallel.blocking.calls import BlockingCall, outcome_of
from aioparallel.blocking.children import Child
from aioparallel.blocking.crossing import NamedFunction, Wrapping, returned
from aioparallel.blocking.guard import is_importing_main, refuse_in_import_of_main
from aioparallel.blocking.plain import check_plain_handler, name_of
from aioparallel.blocking.thread_pool import BlockingStats, ThreadPool
from aioparallel.errors import ConfigurationError
from aioparallel.handling import check_count
from aioparallel.user_errors import text_of

__all__ = ["InProcesses", "in_processes", "leaving_this_program"]

T = TypeVar("T")
R = TypeVar("R")

_OPTION = "in_processes handler"
_WAY_OUT = "so no process of its own can import it: put it into a module, and let both import that"
_leaves: ContextVar[bool] = ContextVar("aioparallel_leaves", default=False)


class _Decorator(Protocol):
    def __call__(self, handler: Callable[[T], R], /) -> InProcesses[T, R]: ...


@overload
def in_processes(
    handler: Callable[[T], R], *, processes: int | None = None, max_tasks: int = 0
) -> InProcesses[T, R]: ...
@overload
def in_processes(*, processes: int | None = None, max_tasks: int = 0) -> _Decorator: ...
def in_processes(
    handler: Callable[[T], R] | None = None, *, processes: int | None = None, max_tasks: int = 0
) -> InProcesses[T, R] | _Decorator:
    """Make a handler of a plain function that computes: it runs in a process. Also as ``@in_processes()``.

    ``handler``: a plain function of a record, or of an item, that stands at the top level of a module, so that each
    process can import it. Its argument, and what it returns or raises, are pickled.
    ``processes``: at once, at most; None: one for each core that this process may use. They are spawned at the first
    calls, and end with the event loop, with this object, and with the program, however that ends.
    ``max_tasks``: calls after which a process is replaced by a new one; 0: any number.

    A call that is cancelled, at its deadline for one, is ended: its process is killed, and another one is started for
    the next call. One that still waits for a process is taken out, and waiting counts for no deadline. A process that
    dies fails the call it ran, with :class:`~aioparallel.errors.ProcessDied`, and no other.

    Raises ConfigurationError for anything but a plain function of one argument that a process can import, for fewer
    than 1 process, and for ``max_tasks`` below 0.
    """
    if handler is None:
        return functools.partial(InProcesses, processes=processes, max_tasks=max_tasks)
    return InProcesses(handler, processes, max_tasks)


class InProcesses(Wrapping, Generic[T, R]):
    """What :func:`in_processes` gives: a handler. For any event loop, and one after the other.

    As ``with in_processes(...) as handler:`` its processes end with the block.
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
        """Call the function with ``item`` in a process. Raises TypeError for an item that cannot be pickled."""
        refuse_in_import_of_main()
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._check_name()
            await self._end_with(loop)
        reply: object = await outcome_of(BlockingCall(item, loop), self._pool)
        return cast("R", returned(item, reply))

    def stats(self) -> BlockingStats:
        """What it does at this moment."""
        return self._pool.stats()

    def close(self) -> None:
        """End its processes; calls that run or wait fail. The next call starts them anew. Blocks for a second at
        most for each process, in general for milliseconds."""
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
                _OPTION, self.wrapped, f"is of this program, which a worker that it is sent to is not, {_WAY_OUT}"
            )
        return InProcesses, (self.wrapped, self._size, self._max_tasks)

    def __repr__(self) -> str:
        return f"<in_processes of {name_of(self.wrapped)}, {self._size} at most>"

    async def _end_with(self, loop: asyncio.AbstractEventLoop) -> None:
        for other in [one for one in self._loops if one.is_closed()]:
            del self._loops[other]
        # What a loop does before it closes is to close the async generators that were begun in it.
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
                f"is not what {'.'.join(self._named)} stands for, so that no process can import it: it must be a "
                "function at the top level of a module, under its own name",
            )


@contextlib.contextmanager
def leaving_this_program() -> Iterator[None]:
    """What is pickled within goes to processes of another program. Functions of this one's main module cannot run in
    their processes, and are refused with ConfigurationError."""
    token = _leaves.set(True)
    try:
        yield
    finally:
        _leaves.reset(token)


# To be closed at exit, before multiprocessing waits for all processes to end by themselves.
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
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_program_there() -> bool:
    """Whether each process can import the program's main module, as it does first of all, whatever it is to run."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or getattr(sys, "frozen", False):
        return True  # interactive, or found by its name, or in one piece with the interpreter
    return os.path.isfile(os.path.join(getattr(multiprocessing.process, "ORIGINAL_DIR", None) or "", file))


def _inner(function: object) -> object:
    """What a partial calls."""
    return getattr(function, "func", function)


def _module_of(function: object) -> str:
    """In which module it stands, or what a partial of it calls."""
    inner = _inner(function)
    return getattr(inner, "__module__", None) or type(inner).__module__


def _is_of_another_program(function: object) -> bool:
    """Whether it was sent by value: the function of a main module that is not this process's."""
    return (
        isinstance(function, FunctionType)
        and function.__module__ == "__main__"
        and function.__globals__ is not vars(sys.modules["__main__"])
    )


def _reference(function: Callable[..., object]) -> object:
    """What is pickled for each process. Raises ConfigurationError for what a process cannot import."""
    inner, module = _inner(function), _module_of(function)
    if is_importing_main():
        return None  # nothing will be called here, and the module is not where it will be
    if _is_of_another_program(inner):
        raise ConfigurationError(
            _OPTION,
            function,
            f"is of the program that sent it here, which this process (a worker of Spark, say) is not, {_WAY_OUT}",
        )
    if not _is_program_there():
        raise ConfigurationError(
            _OPTION,
            function,
            "cannot run beside a program that no process can import (from standard input, say): put "
            "the program into a file",
        )
    if module == "__main__" and not os.path.isfile(getattr(sys.modules["__main__"], "__file__", None) or ""):
        raise ConfigurationError(
            _OPTION, function, "is of an interactive program, which no process can import: put it into a file"
        )
    if isinstance(function, FunctionType):
        if "<" in function.__qualname__:
            raise ConfigurationError(
                _OPTION,
                function,
                "is a lambda, or stands within another function, and no process can import it: it must be a function "
                "at the top level of a module",
            )
        return NamedFunction(function.__module__, function.__qualname__)
    try:
        pickle.loads(pickle.dumps(function))
    except Exception as error:
        raise ConfigurationError(
            _OPTION,
            function,
            f"cannot be pickled, so that no process can have it ({type(error).__name__}: {text_of(error)})",
        ) from None
    return function
