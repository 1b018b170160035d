"""What a user gives as a handler, checked, and made into one function: ``async def`` of a record, or of an item; with
handlers by topic, deserialisers and middleware around it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from aioparallel.errors import ConfigurationError, DeserializationError, NoHandler
from aioparallel.handling import CallNext, Middleware
from aioparallel.options import Deserializer, Options
from aioparallel.policies import check_arguments, is_async
from aioparallel.records import K_co, Outgoing, Record, V_co

__all__ = [
    "Handler",
    "Handlers",
    "HandlersOf",
    "NotAHandler",
    "Outputs",
    "around",
    "check_handlers",
    "check_middleware",
    "collect",
    "coroutine_handler",
    "handler_stack",
    "in_task",
]

Handler = Callable[[Record[Any, Any]], Awaitable[object] | AsyncIterable[object]]
"""An ``async def`` function of a record, with or without ``yield``, or anything that is called like one."""
Outputs = Outgoing | Iterable[Outgoing] | AsyncIterable[Outgoing] | None
"""What a handler may return."""
HandlerOf = Callable[[Record[K_co, V_co]], Awaitable[Outputs]] | Callable[[Record[K_co, V_co]], AsyncIterable[Outgoing]]
"""A handler of records whose keys and values are of these types."""
HandlersOf = HandlerOf[K_co, V_co] | Mapping[str, HandlerOf[K_co, V_co]]
"""One handler for all topics, or one by topic."""
Handlers = Handler | Mapping[str, Handler]
"""The same, of any types."""
_Run = Callable[[Record[Any, Any]], Coroutine[Any, Any, object]]


def handler_stack(handlers: Handlers, topics: set[str], options: Options) -> Handler:
    """One handler with all around it that the options ask for; the bare handler where they ask for nothing.

    ``topics``: the names that exist now, and need a handler. Raises ConfigurationError.
    """
    handler = around(_one_handler(handlers, topics), options.middleware)
    if options.key_deserializer or options.value_deserializer:
        return _deserialised(coroutine_handler(handler), options.key_deserializer, options.value_deserializer)
    return handler


def around(handler: Handler, middleware: Sequence[Middleware]) -> Handler:
    """The handler within its middleware, the first outermost; the bare handler without any."""
    for one in reversed(middleware):
        handler = _called(one, coroutine_handler(handler))
    return handler


def check_middleware(middleware: Sequence[Middleware], *, takes: str = "the record") -> None:
    """Raises ConfigurationError for what cannot be called as middleware."""
    for one in middleware:
        _check(one, "middleware", f"two arguments, {takes} and call_next", 2, takes)


def check_handlers(handlers: Handlers, *, takes: str = "the record") -> None:
    """Raises ConfigurationError for what cannot be a handler."""
    if not isinstance(handlers, Mapping):
        _check(handlers, "handler", f"one argument, {takes}", 1, takes)
        return
    for topic, handler in handlers.items():
        _check(handler, f"handler for topic {topic!r}", f"one argument, {takes}", 1, takes)


def _one_handler(handlers: Handlers, topics: set[str]) -> Handler:
    check_handlers(handlers)
    if not isinstance(handlers, Mapping):
        return handlers
    missing = sorted(topics - set(handlers))
    if missing:
        raise ConfigurationError("handler", sorted(handlers), f"has none for topic {', '.join(missing)}")
    return _by_topic(dict(handlers))


def _check(function: object, name: str, wanted: str, arguments: int, takes: str) -> None:
    if inspect.iscoroutine(function):
        function.close()
        raise ConfigurationError(name, function, "is a call of a function: give the function itself, without ()")
    if not callable(function):
        raise ConfigurationError(name, function, f"must be an async function of {wanted}")
    check_arguments(function, name, wanted, arguments)
    called: object = getattr(function, "__call__", None)  # noqa: B004 - of an object; a function has none of its own
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(called):
        raise ConfigurationError(name, function, "must be an `async def` function, this is a plain one with `yield`")
    if getattr(function, "__name__", None) == "<lambda>":
        raise ConfigurationError(
            name,
            function,
            "must be an `async def` function, or a partial of one: what a lambda gives is known when it is called",
        )
    if not is_async(function):
        raise ConfigurationError(
            name,
            function,
            "must be an `async def` function, or a partial, a method, a `__call__` or a wrapper (functools.wraps) of "
            "one; one that blocks, or computes, becomes a handler by in_threads(function), or in_processes(function)",
        )


def _by_topic(handlers: dict[str, Handler]) -> Handler:
    runs = {topic: coroutine_handler(handler) for topic, handler in handlers.items()}

    def handle(record: Record[Any, Any]) -> Awaitable[object]:
        run = runs.get(record.topic) or runs.get(record.origin.topic)
        if run is None:  # a topic that appeared later, and matches the pattern
            raise NoHandler(record.topic, list(runs))
        return run(record)

    return handle


def _called(middleware: Middleware, call_next: CallNext) -> _Run:
    async def called(record: Record[Any, Any]) -> object:
        return await middleware(record, call_next)

    return called


def _deserialised(run: _Run, of_key: Deserializer | None, of_value: Deserializer | None) -> _Run:
    async def deserialised(record: Record[Any, Any]) -> object:
        if not hasattr(record, "_raw"):  # else an earlier attempt has done it
            raw = record.key, record.value
            key = _read("key", of_key, raw[0])
            record.value = _read("value", of_value, raw[1])
            record.key, record._raw = key, raw
        return await run(record)

    return deserialised


def _read(part: str, deserializer: Deserializer | None, raw: bytes | None) -> object:
    if deserializer is None or raw is None:
        return raw
    try:
        return deserializer(raw)
    except Exception as error:
        raise DeserializationError(part, len(raw), error) from error


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
            "function; a blocking one becomes a handler by in_threads(function)"
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
