"""Waits that an event or a time limit interrupts, and waits that nothing interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aioparallel.records.errors import ConsumerStateError, WorkCancelled

__all__ = ["OutOfTime", "to_the_end", "unless", "why_ended", "within"]

T = TypeVar("T")


def _nothing() -> None:
    pass


class OutOfTime(TimeoutError):
    """The limit of :func:`within` has passed. A TimeoutError of the work itself is never one of these."""


async def within(limit: float | asyncio.Timeout, work: Awaitable[T]) -> T:
    """Await ``work``, and cancel it at the limit: then OutOfTime is raised. ``limit``: seconds, or an
    ``asyncio.Timeout`` that was not entered yet."""
    timeout = limit if isinstance(limit, asyncio.Timeout) else asyncio.timeout(limit)
    try:
        async with timeout:
            return await work
    except TimeoutError as error:
        if timeout.expired():
            raise OutOfTime from error
        if isinstance(error, OutOfTime):  # of another limit, within the work
            raise TimeoutError(*error.args) from error
        raise


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Await ``work`` in its own task. When ``event`` is set, the task is cancelled and the result is None.

    Returns when the task has ended, even if this wait is cancelled. Raises WorkCancelled if ``work`` raises
    CancelledError although neither the event nor a cancellation of this wait has caused it.
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
        task.cancel()  # does nothing if it has ended
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
    """Await ``work`` in its own task until it has ended. A cancellation meanwhile is raised after that.

    ``work`` must have deadlines. ``on_cancel`` is called at each cancellation; it may make the work end sooner.
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
    """Wait until the task has ended. Returns the last cancellation of this wait, if there was one."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))  # which does not cancel the task
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    return cancelled


def why_ended(task: asyncio.Task[Any], *, is_wanted: bool) -> BaseException | None:
    """Return the error of a task that has ended. A cancelled task that ``is_wanted`` is an error as well: its work
    would silently stop."""
    if not task.cancelled():
        return task.exception()
    if is_wanted and not task.cancelling():
        return WorkCancelled(f"its task {task.get_name()}")
    if is_wanted:
        return ConsumerStateError(f"its task {task.get_name()} was cancelled; cancel run() in its place")
    return None
