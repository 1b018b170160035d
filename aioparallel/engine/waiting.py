"""Waiting that something else cuts short, and waiting that nothing cuts short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aioparallel.errors import ConsumerStateError, WorkCancelled

__all__ = ["to_the_end", "unless", "why_ended"]

T = TypeVar("T")


def _nothing() -> None:
    pass


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Await ``work`` in a task of its own until ``event`` is set: then it is cancelled, and the result is None.

    Returns when the task has ended, also when this wait is cancelled. Raises WorkCancelled where ``work`` ends as if it
    were cancelled, and it was neither: only the event is the event.
    """
    if event.is_set():
        work.close()
        return None
    loop = asyncio.get_running_loop()
    task, signal = loop.create_task(work, name="aioparallel-step"), loop.create_task(event.wait())
    try:
        await asyncio.wait((task, signal), return_when=asyncio.FIRST_COMPLETED)
    finally:
        signal.cancel()
        task.cancel()  # nothing, if it has ended
        cancelled = await _outlast(task, _nothing)
    if cancelled is not None:
        raise cancelled
    try:
        return task.result()
    except asyncio.CancelledError as error:
        if event.is_set():
            return None
        raise WorkCancelled from error


async def to_the_end(work: Coroutine[Any, Any, None], on_cancel: Callable[[], None] = _nothing) -> None:
    """Await ``work`` in a task of its own until it has ended, whatever cancels meanwhile; then that goes on.

    ``work`` must have deadlines. ``on_cancel`` is called at each cancellation, to make it quicker.
    """
    task = asyncio.get_running_loop().create_task(work, name="aioparallel-leaving")
    cancelled = await _outlast(task, on_cancel)
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    try:
        task.result()
    except asyncio.CancelledError as error:
        raise WorkCancelled from error


async def _outlast(task: asyncio.Task[Any], on_cancel: Callable[[], None]) -> asyncio.CancelledError | None:
    """Wait until the task has ended. Returns the last cancellation of this wait."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))  # does not cancel it
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    return cancelled


def why_ended(task: asyncio.Task[Any], *, is_wanted: bool) -> BaseException | None:
    """What must be told of a task that has ended: its error; or that it was cancelled though it ``is_wanted``, and not
    by us: what it did would not be done any more, and nobody would know."""
    if not task.cancelled():
        return task.exception()
    if is_wanted:
        return ConsumerStateError(f"its task {task.get_name()} was cancelled; cancel run() in its place")
    return None
