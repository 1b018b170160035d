"""Tasks that still run after their cancellation: where they are, and how an event loop ends without them.

``asyncio.run`` and web servers cancel all tasks of their loop at the end and wait for them without limit. A task that
has ignored its cancellation is unregistered from asyncio, so that nothing waits for it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import threading
import traceback
from collections.abc import Collection, Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, NamedTuple

from aioparallel.records.record import Record

__all__ = ["LeftBehind", "ended", "leave_behind", "leave_thread", "leave_told", "stack_of", "still_running"]

logger = logging.getLogger(__name__)

_PACKAGE = __name__.partition(".")[0] + "."
_DEEPEST = 1_000  # most coroutines in a chain of awaits
_left: set[asyncio.Task[Any]] = set()
_threads: list[threading.Thread] = []


class LeftBehind(NamedTuple):
    """A handler that still runs after its cancellation."""

    record: Record[Any, Any]
    """Its record; of a batch the first one."""
    stack: str
    """Where it is, formatted as in tracebacks."""
    task: asyncio.Task[None]
    """The task that runs it."""


def leave_behind(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Keep event loops from waiting for these tasks and those they await. The tasks run on while their loop runs."""
    for task in _with_awaited(tasks):
        asyncio._unregister_task(task)  # documented for custom task classes
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # logged already
        _never_finalise()
        _left.add(task)
        task.add_done_callback(_left.discard)


def leave_told(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """:func:`leave_behind`, and log each task. ``seconds``: how long they were waited for."""
    for task in tasks:
        logger.error(
            "task %s did not end within %g s after it was cancelled: its event loop ends without it. It is at:\n%s",
            task.get_name(),
            seconds,
            stack_of(task),
            extra={"action": "task_not_stopped"},
        )
    leave_behind(tasks)


async def ended(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Wait at most ``seconds`` for cancelled tasks, and leave those behind that have not ended."""
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=seconds)
        leave_told(pending, seconds)


def leave_thread(thread: threading.Thread) -> None:
    """Count a thread whose end was not waited for. The interpreter will wait for it."""
    _threads.append(thread)


def still_running() -> int:
    """Number of tasks and threads left behind in this process that have not ended."""
    return len(_left) + sum(thread.is_alive() for thread in _threads)


def stack_of(task: asyncio.Task[Any]) -> str:
    """Where the task is, across the tasks that it awaits. Frames of this package that come first are left out."""
    frames: list[FrameType] = []
    for _ in _walk(task, frames):
        pass
    users = next((number for number, frame in enumerate(frames) if not _is_ours(frame)), 0)
    found = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames[users:])
    return "".join(found.format()).rstrip("\n")


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE)


def _with_awaited(tasks: Collection[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    found: set[asyncio.Task[Any]] = set()
    new = list(tasks)
    while new:
        task = new.pop()
        if task in found or task.done():
            continue
        found.add(task)
        for one in _walk(task, []):
            new += [one] if isinstance(one, asyncio.Task) else _gathered(one)
        new += _grouped(task)
    return found


def _gathered(awaited: object) -> list[asyncio.Task[Any]]:
    children = getattr(awaited, "_children", ()) if isinstance(awaited, asyncio.Future) else ()
    return [one for one in children if isinstance(one, asyncio.Task) and not one.done()]


def _grouped(parent: asyncio.Task[Any]) -> Iterator[asyncio.Task[Any]]:
    for task in asyncio.all_tasks(parent.get_loop()):
        for callback, _ in getattr(task, "_callbacks", None) or ():
            group = getattr(callback, "__self__", None)
            if isinstance(group, asyncio.TaskGroup) and getattr(group, "_parent_task", None) is parent:
                yield task


def _walk(task: asyncio.Task[Any], frames: list[FrameType]) -> Iterator[object]:
    """The chain of coroutines and futures that it awaits. Appends their frames to ``frames``."""
    at: object = task.get_coro()
    for _ in range(_DEEPEST):
        if at is None:
            return
        yield at
        at = _awaited_by(at, frames)


def _awaited_by(at: object, frames: list[FrameType]) -> object:
    if isinstance(at, asyncio.Task):
        return at.get_coro()
    if isinstance(at, asyncio.Future):
        return next(iter(_gathered(at)), None)
    if isinstance(at, CoroutineType):
        frame, awaited = at.cr_frame, at.cr_await
    elif isinstance(at, GeneratorType):
        frame, awaited = at.gi_frame, at.gi_yieldfrom
    elif isinstance(at, AsyncGeneratorType):
        frame, awaited = at.ag_frame, at.ag_await
    else:
        # Other awaitables (an __await__ iterator, an asend()) have no attribute for it: look at what they refer to.
        known = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future)
        return next((one for one in gc.get_referents(at) if isinstance(one, known)), None)
    if frame is None:
        return None
    frames.append(frame)
    if awaited is None:
        # A worker drives the handler itself and yields what the handler yields, see engine/isolation.py.
        driver = frame.f_locals.get("driver")
        is_one = isinstance(driver, GeneratorType) and driver.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE
        return driver if is_one else None
    return awaited


@functools.cache  # once
def _never_finalise() -> None:
    """Keep the coroutines alive even when the interpreter ends. Finalising one raises GeneratorExit in it, and one that
    ignores this too, such as ``except BaseException`` in a loop, would run for ever there."""
    import ctypes  # noqa: PLC0415 - hardly ever needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_left))
