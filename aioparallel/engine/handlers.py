"""What a user gives as a handler, made into one kind of function: ``async def`` of a record."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from typing import Any

from aioparallel.records import Record

__all__ = ["Handler", "NotAHandler", "collect", "coroutine_handler", "in_task"]

Handler = Callable[[Record[Any, Any]], Awaitable[object] | AsyncIterable[object]]
"""An ``async def`` function of a record, with or without ``yield``, or anything that is called like one."""
_Run = Callable[[Record[Any, Any]], Coroutine[Any, Any, object]]


class NotAHandler(BaseException):
    """Outside Exception, so that it is not retried: every record would end the same way."""


def coroutine_handler(handler: Handler) -> _Run:
    """The handler itself if it is a plain ``async def`` function, else one around it that checks what it gives."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return handler  # type: ignore[return-value]

    async def checked(record: Record[Any, Any]) -> object:
        result = handler(record)
        if isinstance(result, Awaitable):
            return await result
        if isinstance(result, AsyncIterable):
            return await collect(result)
        raise NotAHandler(
            f"the handler returned {type(result).__name__}, not an awaitable: it must be an `async def` "
            "function; put a blocking one into it: `await asyncio.to_thread(function, record)`"
        )

    return checked


async def collect(outputs: AsyncIterable[object]) -> list[object]:
    """All that an async iterator gives: nothing is produced of a handler that fails half way."""
    return [output async for output in outputs]


def in_task(handler: Handler) -> _Run:
    """Each record in a task of its own, for code that keys state by ``current_task()``."""
    handle = coroutine_handler(handler)

    async def run(record: Record[Any, Any]) -> object:
        ended: list[tuple[object, BaseException | None]] = []
        task = asyncio.get_running_loop().create_task(_note_end(handle, record, ended), name=f"handler-{record}")
        try:
            await task
        except asyncio.CancelledError:
            # A handler that cancels its task and returns has ended well; asyncio calls its task cancelled.
            if not ended:
                raise
        value, error = ended[0] if ended else (None, None)
        if error is not None:
            raise error
        return value

    return run


async def _note_end(handle: _Run, record: Record[Any, Any], ended: list[tuple[object, BaseException | None]]) -> None:
    # asyncio lets KeyboardInterrupt and SystemExit of a task fall through the whole event loop: carry them out.
    try:
        value = await handle(record)
    except (KeyboardInterrupt, SystemExit, NotAHandler) as error:
        ended.append((None, error))
    else:
        ended.append((value, None))
