"""Tasks that go on though they were cancelled: where they stand, and how an event loop ends without them.

``asyncio.run``, and every server, cancels all tasks of its loop at the end and waits for them, for ever. What has
ignored its cancellation is taken out of the tasks that asyncio knows, so that nobody waits for it any more.
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

from aioparallel.records import Record

__all__ = ["LeftBehind", "ended", "leave_behind", "leave_thread", "leave_told", "stack_of", "still_running"]

logger = logging.getLogger(__name__)

_PACKAGE = __name__.partition(".")[0] + "."
_DEEPEST = 1_000
_left: set[asyncio.Task[Any]] = set()
_threads: list[threading.Thread] = []


class LeftBehind(NamedTuple):
    """A handler that goes on."""

    record: Record[Any, Any]
    """Its record; of a batch the first one."""
    stack: str
    """Where it stands, as tracebacks show it."""
    task: asyncio.Task[None]
    """That runs it."""


def leave_behind(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Let no event loop wait for these tasks, nor for those that they wait for. They go on while their loop turns."""
    for task in _with_awaited(tasks):
        asyncio._unregister_task(task)  # documented, for who writes tasks of their own
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it was said already
        _keep_for_ever()
        _left.add(task)
        task.add_done_callback(_left.discard)


def leave_told(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """:func:`leave_behind`, with a line in the log for each. ``seconds``: for which it was waited for."""
    for task in tasks:
        logger.error(
            "task %s did not end within %g s after it was cancelled: its event loop ends without it. It stands at:\n%s",
            task.get_name(),
            seconds,
            stack_of(task),
            extra={"action": "task_not_stopped"},
        )
    leave_behind(tasks)


async def ended(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Wait for tasks that were cancelled, so long at most; who goes on is left behind."""
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=seconds)
        leave_told(pending, seconds)


def leave_thread(thread: threading.Thread) -> None:
    """Nobody has waited for its end. The interpreter will."""
    _threads.append(thread)


def still_running() -> int:
    """How many tasks and threads of all that were left behind in this process have not ended."""
    return len(_left) + sum(thread.is_alive() for thread in _threads)


def stack_of(task: asyncio.Task[Any]) -> str:
    """Where it stands, also across the tasks that it waits for; of a worker the handler alone."""
    frames: list[FrameType] = []
    for _ in _walk(task, frames):
        pass
    theirs = next((number for number, frame in enumerate(frames) if not _is_ours(frame)), 0)
    found = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames[theirs:])
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
    """The tasks of a gather() that have not ended."""
    children = getattr(awaited, "_children", ()) if isinstance(awaited, asyncio.Future) else ()
    return [one for one in children if isinstance(one, asyncio.Task) and not one.done()]


def _grouped(parent: asyncio.Task[Any]) -> Iterator[asyncio.Task[Any]]:
    """The tasks of its TaskGroup, where it waits for one."""
    for task in asyncio.all_tasks(parent.get_loop()):
        for callback, _ in getattr(task, "_callbacks", None) or ():
            group = getattr(callback, "__self__", None)
            if isinstance(group, asyncio.TaskGroup) and getattr(group, "_parent_task", None) is parent:
                yield task


def _walk(task: asyncio.Task[Any], frames: list[FrameType]) -> Iterator[object]:
    """What it waits for, one behind the other; of each that has a frame, that is noted."""
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
        # The iterator of an __await__, an asend(), ...: no attribute says what is behind it.
        known = (CoroutineType, GeneratorType, AsyncGeneratorType, asyncio.Future)
        return next((one for one in gc.get_referents(at) if isinstance(one, known)), None)
    if frame is None:
        return None
    frames.append(frame)
    if awaited is None:
        # The worker passes on by itself what a handler yields, see engine/isolation.py.
        driver = frame.f_locals.get("driver")
        is_one = isinstance(driver, GeneratorType) and driver.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE
        return driver if is_one else None
    return awaited


@functools.cache  # once
def _keep_for_ever() -> None:
    """Also at the end of the interpreter: a coroutine that is finalised gets a GeneratorExit, and what ignores that as
    well runs on in there, where ``except BaseException`` around a loop never ends."""
    import ctypes  # noqa: PLC0415 - hardly ever needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_left))
