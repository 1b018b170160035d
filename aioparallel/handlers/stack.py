"""Checks handlers and builds one function from them, with deserialisers and middleware."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple, cast

from aioparallel.config.callables import check_async
from aioparallel.config.handling import CallNext, Middleware
from aioparallel.config.options import Deserializer, Options
from aioparallel.handlers.batches import Batch, BatchHandler, Batching, Call
from aioparallel.records.errors import (
    ConfigurationError,
    ConsumerStateError,
    DeserializationError,
    NoHandler,
    NotAHandler,
)
from aioparallel.records.history import may_be_undecodable, refuse_undecodable
from aioparallel.records.record import K_co, Outgoing, Record, V_co
from aioparallel.records.user_errors import RAISED, refuse_coroutine, repr_of

__all__ = [
    "Batchings",
    "Before",
    "Handler",
    "Handlers",
    "HandlersOf",
    "Outputs",
    "Stack",
    "around",
    "around_batches",
    "check_handlers",
    "check_middleware",
    "collect",
    "coroutine_handler",
    "deserialise",
    "handler_stack",
    "in_task",
    "together",
]

Handler = Callable[[Record[Any, Any]], Awaitable[object] | AsyncIterable[object]]
"""An ``async def`` function of a record, with or without ``yield``, or another callable with the same signature."""
Outputs = Outgoing | Iterable[Outgoing] | AsyncIterable[Outgoing] | None
"""What a handler may return."""
HandlerOf = Callable[[Record[K_co, V_co]], Awaitable[Outputs]] | Callable[[Record[K_co, V_co]], AsyncIterable[Outgoing]]
"""A handler of records whose keys and values are of these types."""
HandlersOf = HandlerOf[K_co, V_co] | Mapping[str, HandlerOf[K_co, V_co]]
"""One handler for all topics, or one by topic."""
Handlers = Handler | Mapping[str, Handler]
"""The same, for records of any types."""
Before = Callable[[Record[Any, Any]], None]
"""Called with a record before its attempt. If it raises, the attempt fails."""
_Run = Callable[[Record[Any, Any]], Coroutine[Any, Any, object]]


class Stack(NamedTuple):
    """The functions that run records, with everything around them that the options request."""

    handler: Handler
    """Runs records that are in no batch."""
    batchings: Batchings | None = None
    """Which records go into batches; None: all run one by one."""


def handler_stack(
    handlers: Handlers,
    topics: set[str],
    options: Options,
    before: Sequence[Before] = (),
    after_deserialising: Sequence[Before] = (),
    middleware: Sequence[Middleware] = (),
    origin: Callable[[Record[Any, Any]], str | None] | None = None,
) -> Stack:
    """Build the functions that run attempts. A handler with nothing around it stays as it is.

    ``topics``: existing topics, each of which needs a handler. ``before``, ``after_deserialising``: called with each
    record before its attempt. ``middleware``: runs around the middleware of the options. ``origin``: returns the
    original topic of a record in a topic without a handler, such as a retry topic. Raises ConfigurationError.
    """
    check_handlers(handlers)
    if isinstance(handlers, Mapping):
        missing = sorted(topics - set(handlers))
        if missing:
            raise ConfigurationError("handler", sorted(handlers), f"has none for topic {', '.join(missing)}")
    if options.key_deserializer or options.value_deserializer:
        before = (*before, partial(deserialise, options.key_deserializer, options.value_deserializer))
    before = (*before, *after_deserialising)
    middleware = (*middleware, *options.middleware)
    handler = around(_by_topic(dict(handlers)) if isinstance(handlers, Mapping) else handlers, middleware)
    return Stack(
        _prepared(coroutine_handler(handler), before) if before else handler,
        _batchings(handlers, lambda one: together(one, before, middleware), origin),
    )


class Batchings:
    """Decides which records go into batches, and of which handler."""

    def __init__(
        self,
        by_topic: Mapping[str, Batching | None],
        every: Batching | None,
        origin: Callable[[Record[Any, Any]], str | None] | None = None,
    ) -> None:
        self._by_topic = by_topic
        self._every = every
        self._origin = origin

    @property
    def largest(self) -> int:
        """The most records in a batch."""
        batchings = [one for one in (self._every, *self._by_topic.values()) if one is not None]
        return max([one.terms.size for one in batchings], default=1)

    def of(self, record: Record[Any, Any]) -> Batching | None:
        """Return the batching of a record; None: it runs alone."""
        if self._every is not None:
            return self._every
        if record.topic in self._by_topic or self._origin is None:
            return self._by_topic.get(record.topic)
        return self._by_topic.get(self._origin(record) or "")

    def are_mixed(self, record: Record[Any, Any]) -> bool:
        """Return whether records of this one's topic may have different batchings, as in a retry topic."""
        return self._every is None and self._origin is not None and record.topic not in self._by_topic


def _batchings(
    handlers: Handlers,
    made: Callable[[BatchHandler[Any, Any]], Batching],
    origin: Callable[[Record[Any, Any]], str | None] | None,
) -> Batchings | None:
    if isinstance(handlers, BatchHandler):
        return Batchings({}, made(handlers))
    if not isinstance(handlers, Mapping):
        return None
    # One batching for each handler, so that topics with the same handler share its batches.
    kinds = {id(one): made(one) for one in handlers.values() if isinstance(one, BatchHandler)}
    return Batchings({topic: kinds.get(id(one)) for topic, one in handlers.items()}, None, origin) if kinds else None


def together(handler: BatchHandler[Any, Any], before: Sequence[Before], middleware: Sequence[Middleware]) -> Batching:
    """Build the batching of a batch handler. Its middleware gets batches as well."""
    handle = around_batches(handler, middleware)

    async def run(call: Call) -> object:
        if may_be_undecodable():
            batch = _prepared_batch(call, (refuse_undecodable, *before))
        else:
            batch = _prepared_batch(call, before) if before else Batch(call.records, call)
        return await handle(cast("Any", batch)) if batch else None

    return Batching(handler, run)


def around_batches(handler: BatchHandler[Any, Any], middleware: Sequence[Middleware]) -> Callable[[Any], Any]:
    """Return the function that runs a batch: the handler within its middleware, the first outermost."""
    handle = coroutine_handler(cast("Handler", handler.__wrapped__))
    if not middleware:
        return handle

    async def checked(given: Any) -> object:
        # With another batch, missing records would count as handled, and failures in it would be lost.
        if not isinstance(given, Batch) or not given.is_run:
            raise ConsumerStateError(
                f"middleware called call_next() with {repr_of(given)} instead of the batch that it got: pass on that "
                "batch, and fail records in it with batch.fail()"
            )
        return await handle(cast("Any", given))

    return coroutine_handler(around(checked, middleware))


def _prepared_batch(call: Call, before: Sequence[Before]) -> Batch[Any]:
    """Return the batch of a call, without the records that fail before their attempt and those behind them."""
    closed: set[tuple[object, object]] = set()
    places = []
    for place, record in enumerate(call.records):
        lane = record._source, record._lane
        if lane in closed:
            continue  # it is put back as if it had not started
        try:
            for look in before:
                look(record)
        except Exception as error:
            call.failures[place] = error
            if record._lane is not None:
                closed.add(lane)
        else:
            places.append(place)
    if not call.failures:
        return Batch(call.records, call)
    return Batch([call.records[place] for place in places], call, places)


def _prepared(run: _Run, before: Sequence[Before]) -> _Run:
    async def prepared(record: Record[Any, Any]) -> object:
        for look in before:
            look(record)
        return await run(record)

    return prepared


def around(handler: Handler, middleware: Sequence[Middleware]) -> Handler:
    """Return the handler within its middleware, the first outermost."""
    for one in reversed(middleware):
        handler = _called(one, coroutine_handler(handler))
    return handler


def check_middleware(middleware: Sequence[Middleware], *, takes: str = "the record") -> None:
    """Raises ConfigurationError for what cannot be called as middleware."""
    for one in middleware:
        check_async(one, "middleware", f"two arguments, {takes} and call_next", 2)


def check_handlers(handlers: Handlers, *, takes: str = "the record") -> None:
    """Raises ConfigurationError for what cannot be a handler."""
    if not isinstance(handlers, Mapping):
        _check_handler(handlers, "handler", takes)
        return
    for topic, handler in handlers.items():
        _check_handler(handler, f"handler for topic {topic!r}", takes)


def _check_handler(handler: object, name: str, takes: str) -> None:
    hint = (
        "; SqlStore.handler(function) makes a handler of one that takes a record and a connection"
        if _takes_two(handler)
        else ""
    )
    check_async(handler, name, f"one argument, {takes}{hint}", 1)


def _takes_two(handler: object) -> bool:
    try:
        parameters = inspect.signature(cast("Callable[..., object]", handler)).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([one for one in parameters if one.default is one.empty and one.kind in positional]) == 2


def _by_topic(handlers: dict[str, Handler]) -> Handler:
    runs = {topic: coroutine_handler(handler) for topic, handler in handlers.items()}

    def handle(record: Record[Any, Any]) -> Awaitable[object]:
        run = runs.get(record.topic) or runs.get(record.origin.topic)
        if run is None:  # a topic that was created later and matches the pattern
            raise NoHandler(record.topic, list(runs))
        return run(record)

    return handle


def _called(middleware: Middleware, call_next: CallNext) -> _Run:
    if _takes_call_next(middleware):
        # Without a coroutine around it, which would take a quarter of a microsecond for each record.
        if inspect.ismethod(middleware):
            return partial(middleware.__func__, middleware.__self__, call_next=call_next)
        return partial(cast("Any", middleware), call_next=call_next)

    async def called(record: Record[Any, Any]) -> object:
        return await middleware(record, call_next)

    return called


def _takes_call_next(middleware: Middleware) -> bool:
    """Whether it is an ``async def`` function or method whose second argument has this name."""
    if not (inspect.isfunction(middleware) or inspect.ismethod(middleware)):
        return False
    if not inspect.iscoroutinefunction(middleware):
        return False
    arguments = [*inspect.signature(middleware, follow_wrapped=False).parameters.values()]
    return (
        len(arguments) == 2
        and arguments[1].name == "call_next"
        and arguments[1].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    )


def deserialise(of_key: Deserializer | None, of_value: Deserializer | None, record: Record[Any, Any]) -> None:
    """Deserialise key and value of a record, once. Raises DeserializationError."""
    if hasattr(record, "_raw"):
        return  # an earlier attempt has done this
    raw = record.key, record.value
    key = _read("key", of_key, raw[0])
    record.value = _read("value", of_value, raw[1])
    record.key, record._raw = key, raw


def _read(part: str, deserializer: Deserializer | None, raw: bytes | None) -> object:
    if deserializer is None or raw is None:
        return raw
    try:
        found = deserializer(raw)
        if type(found) is CoroutineType:
            refuse_coroutine(found)
    except RAISED as error:
        raise DeserializationError(part, len(raw), error) from error
    return found


def coroutine_handler(handler: Handler) -> _Run:
    """Return a plain ``async def`` handler itself, else a coroutine function that checks what the handler returns."""
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
    """Return all items of an async iterator. Nothing is produced if the handler fails half way."""
    return [output async for output in outputs]


def in_task(handler: Handler) -> _Run:
    """Run each record in its own task, for code that keys state by ``current_task()``."""
    handle = coroutine_handler(handler)

    async def run(record: Record[Any, Any]) -> object:
        ended: list[tuple[object, BaseException | None]] = []
        task = asyncio.get_running_loop().create_task(_note_end(handle, record, ended), name=f"handler-{record}")
        try:
            await task
        except asyncio.CancelledError:
            # A handler that cancels its own task and returns has succeeded, but asyncio marks the task as cancelled.
            if not ended:
                raise
        value, error = ended[0] if ended else (None, None)
        if error is not None:
            raise error
        return value

    return run


async def _note_end(handle: _Run, record: Record[Any, Any], ended: list[tuple[object, BaseException | None]]) -> None:
    # asyncio would raise KeyboardInterrupt and SystemExit of a task out of the event loop, so pass them on as values.
    try:
        value = await handle(record)
    except (KeyboardInterrupt, SystemExit, NotAHandler) as error:
        ended.append((None, error))
    else:
        ended.append((value, None))
