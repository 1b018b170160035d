"""From what a user gives to one handler: checks, handlers by topic, deserialisers, middleware."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from aioparallel.delivery.retry_topics import from_retry_topics
from aioparallel.engine.handlers import Handler, coroutine_handler
from aioparallel.errors import ConfigurationError, DeserializationError, NoHandler
from aioparallel.options import CallNext, Deserializer, Middleware, Options
from aioparallel.policies import is_async
from aioparallel.records import K_co, Outgoing, Record, V_co

__all__ = ["Handlers", "HandlersOf", "Outputs", "check_handlers", "check_middleware", "handler_stack"]

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

    ``topics``: the names that exist now. Raises ConfigurationError.
    """
    handler = _one_handler(handlers, topics - set(options.failures.retry_topics))
    if options.middleware or options.key_deserializer or options.value_deserializer:
        run: _Run = coroutine_handler(handler)
        for middleware in reversed(options.middleware):
            run = _around(middleware, run)
        if options.key_deserializer or options.value_deserializer:
            run = _deserialised(run, options.key_deserializer, options.value_deserializer)
        handler = run
    if options.failures.retry_topics:
        handler = from_retry_topics(coroutine_handler(handler), options.failures.retry_topics)
    return handler


def check_middleware(middleware: Sequence[Middleware]) -> None:
    """Raises ConfigurationError for what cannot be called as middleware."""
    for one in middleware:
        _check(one, "middleware", "two arguments, the record and call_next", 2)


def check_handlers(handlers: Handlers) -> None:
    """Raises ConfigurationError for what cannot be a handler."""
    if not isinstance(handlers, Mapping):
        _check(handlers, "handler", "one argument, the record", 1)
        return
    for topic, handler in handlers.items():
        _check(handler, f"handler for topic {topic!r}", "one argument, the record", 1)


def _one_handler(handlers: Handlers, topics: set[str]) -> Handler:
    check_handlers(handlers)
    if not isinstance(handlers, Mapping):
        return handlers
    missing = sorted(topics - set(handlers))
    if missing:
        raise ConfigurationError("handler", sorted(handlers), f"has none for topic {', '.join(missing)}")
    return _by_topic(dict(handlers))


def _check(function: object, name: str, wanted: str, arguments: int) -> None:
    if not callable(function):
        raise ConfigurationError(name, function, f"must be an async function of {wanted}")
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        raise ConfigurationError(name, function, f"must take {wanted} ({error})") from None
    except ValueError:
        pass  # a callable without a signature, e.g. one written in C
    called: object = getattr(function, "__call__", None)  # noqa: B004 - of an object; a function has none of its own
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(called):
        raise ConfigurationError(name, function, "must be an `async def` function, this is a plain one with `yield`")
    if not is_async(function):
        raise ConfigurationError(
            name,
            function,
            "must be an `async def` function, or a partial, a method, a `__call__` or a wrapper (functools.wraps) of "
            "one; call a blocking function within one: `await asyncio.to_thread(function, record)`",
        )


def _by_topic(handlers: dict[str, Handler]) -> Handler:
    runs = {topic: coroutine_handler(handler) for topic, handler in handlers.items()}

    def handle(record: Record[Any, Any]) -> Awaitable[object]:
        run = runs.get(record.topic) or runs.get(record.origin.topic)
        if run is None:  # a topic that appeared later, and matches the pattern
            raise NoHandler(record.topic, list(runs))
        return run(record)

    return handle


def _around(middleware: Middleware, call_next: CallNext) -> _Run:
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
