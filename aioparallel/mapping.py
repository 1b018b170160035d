"""parallel_map: runs an async function on many items at once, with order by key, retries and back-pressure."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from time import perf_counter
from types import AsyncGeneratorType, TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from aioparallel.config.callables import check_arguments, is_async
from aioparallel.config.handling import Handling, Middleware, Resource, check_choice, check_time
from aioparallel.config.policies import RetryPolicy
from aioparallel.config.unknown_options import refuses_others
from aioparallel.engine.flow.feeding import feed
from aioparallel.engine.flow.flow import Flow, FlowStats, Outcome, raisable
from aioparallel.engine.flow.work import Label, OnError, Work
from aioparallel.event_loop.left_behind import leave_behind
from aioparallel.event_loop.waiting import to_the_end
from aioparallel.handlers.blocking.main_guard import refuse_in_import_of_main
from aioparallel.handlers.resources import Resources
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.records.user_errors import repr_of

__all__ = ["ParallelMap", "parallel_map"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Seconds that a reader may take ready outcomes before the event loop runs other tasks.
_TURN = 0.005
# Most outcomes to take from the flow at once: all count as unread until the last of them is read.
_AT_ONCE = 256
# Seconds that an async source of items has to close if it is left early.
_SOURCE_TIMEOUT = 10.0
# Seconds for each resource to open.
_OPEN_TIMEOUT = 30.0


@refuses_others
def parallel_map(
    handler: Callable[[T], Awaitable[R]],
    items: Iterable[T] | AsyncIterable[T],
    *,
    key: Callable[[T], Hashable] | None = None,
    max_concurrency: int = 100,
    max_buffered: int = 10_000,
    max_buffered_bytes: int | None = None,
    timeout: float | None = None,
    retry: RetryPolicy | None = None,
    on_error: OnError = "raise",
    in_order: bool = False,
    resources: Mapping[str, Resource] | None = None,
    middleware: Sequence[Middleware] = (),
    label: Label | None = None,
    read_in_thread: bool = False,
) -> ParallelMap[T, R]:
    """Run the async function ``handler`` on each item, many at once, and yield the outcomes.

    ::

        async for outcome in parallel_map(fetch, urls, max_concurrency=200):
            print(outcome.item, outcome.result())

    ``items``: any iterable or async iterable. Read ahead as far as ``max_buffered`` and ``max_concurrency`` together
    allow, including outcomes that were not read yet.
    ``key``: a fast, synchronous function of the item. Items with equal keys run one after the other in order; a key of
    None means no order. Without the function, items run in any order.
    ``max_concurrency``: most handlers running at once.
    ``max_buffered``: most items read and not started, which limits how far it sees past a slow key.
    ``max_buffered_bytes``: approximate limit of memory for items read and results not read yet; use it for large ones.
    At the limit no item is read. If results alone reach it, no item is started either, except with ``in_order`` the one
    that the others wait for. The last item read and the results of running handlers may exceed it. None: items are
    counted, not measured.
    ``timeout``: seconds for each attempt, which is then cancelled and fails with
    :class:`~aioparallel.HandlerTimeout`.
    ``retry``: when a failed item is tried again; None: one attempt. Other items with its key wait meanwhile.
    ``on_error``: what an item's final failure does: ``"raise"`` cancels the others and raises its error, ``"emit"``
    yields an outcome with the ``error``, ``"skip"`` logs a line and leaves the item out.
    ``in_order``: yield outcomes in the order of the items, not of their completion.
    ``resources``: functions by name that return async context managers, opened before the first item and closed at the
    end; the handler gets them by ``resource("name")``.
    ``middleware``: async functions of an item and ``call_next`` around each attempt, the first outermost.
    ``label``: a synchronous function of an item and its index that names the item in messages; default "item 17".
    ``read_in_thread``: read ``items`` in a thread of its own; for a plain iterable whose ``next()`` blocks.

    Raises ConfigurationError at once for wrong arguments. Iterating raises errors of opening a resource, and errors of
    iterating ``items`` once all items read before have ended.
    """
    _check_items(items, read_in_thread)
    if timeout is not None:
        check_time("timeout", timeout)
    _check_plain("key", key, "the item", 1)
    _check_plain("label", label, "the item and its index", 2)
    handling = Handling(
        order_by=key,
        max_concurrency=max_concurrency,
        max_buffered=max_buffered,
        handler_timeout=timeout,
        middleware=middleware,
        resources={} if resources is None else resources,
    )
    work = Work(
        handler,
        handling,
        retry=retry,
        on_error=on_error,
        in_order=in_order,
        label=label,
        max_buffered_bytes=max_buffered_bytes,
    )
    return ParallelMap(work, items, read_in_thread=read_in_thread)


def _check_items(items: object, read_in_thread: object) -> None:
    if isinstance(items, str | bytes):
        raise ConfigurationError("items", items, "is one text, and iterates over its characters: put it into a list")
    if not isinstance(items, Iterable | AsyncIterable):
        hint = "; call a generator function first: f()" if callable(items) else ""
        raise ConfigurationError("items", items, f"must be iterable or async iterable{hint}")
    check_choice("read_in_thread", read_in_thread, (True, False))
    if read_in_thread and not isinstance(items, Iterable):
        raise ConfigurationError("read_in_thread", read_in_thread, "is for plain iterables; this one is async")


def _check_plain(name: str, function: object, wanted: str, arguments: int) -> None:
    if function is None:
        return
    if not callable(function) or is_async(function):
        raise ConfigurationError(name, function, f"must be a plain function of {wanted}")
    check_arguments(function, name, wanted, arguments)


class ParallelMap(Generic[T, R]):
    """The result of :func:`parallel_map`: outcomes to iterate once with ``async for``.

    If iteration ends early (``break``, an error in the loop's body, a cancellation), handlers are cancelled and
    resources closed in the next turns of the event loop. With ``async with parallel_map(...) as outcomes:`` this is
    done when the block is left. Within the block a ``break`` ends nothing, and another ``async for`` continues.
    """

    def __init__(self, work: Work[T, R], items: Iterable[T] | AsyncIterable[T], *, read_in_thread: bool) -> None:
        self._name = getattr(work.handler, "__qualname__", None) or repr_of(work.handler)
        self._running = _Running[T, R]()
        # The generator does not refer to this object, and outside of `async with` only the iteration refers to the
        # generator: it is closed as soon as the iteration is dropped.
        stream = cast("AsyncGeneratorType[Outcome[T, R], None]", _outcomes(work, items, read_in_thread, self._running))
        self._stream: AsyncGeneratorType[Outcome[T, R], None] | None = stream
        self._given = weakref.ref(stream)
        self._is_entered = False

    def __aiter__(self) -> AsyncGenerator[Outcome[T, R], None]:
        """Raises ConsumerStateError if it was iterated before, or closed."""
        stream = self._stream
        if stream is None or stream.ag_frame is None:
            raise ConsumerStateError(f"{self!r}: its outcomes come once; call parallel_map() again")
        if not self._is_entered:
            self._stream = None
        return stream

    async def __aenter__(self) -> Self:
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End it: cancel handlers and close resources. A running iteration ends."""
        stream = self._given()
        if stream is None:
            if self._running.flow is not None:  # left early: the event loop is closing the generator
                await self._running.over.wait()
        elif stream.ag_running:
            await self._running.end()
        else:
            await stream.aclose()

    def stats(self) -> FlowStats:
        """Counts of items. Raises ConsumerStateError before the iteration has begun."""
        if self._running.flow is None:
            raise ConsumerStateError(f"{self!r}: nothing runs yet, so there are no statistics; iterate it first")
        return self._running.flow.stats()

    def __repr__(self) -> str:
        stream = self._given()
        if stream is None or stream.ag_frame is None:
            state = "over"
        else:
            state = 'to be read with "async for"' if self._running.flow is None else "running"
        return f"<parallel_map of {self._name}, {state}>"


class _Running(Generic[T, R]):
    """State shared with the generator, and how to end it from outside."""

    def __init__(self) -> None:
        self.flow: Flow[T, R] | None = None
        self.ready = asyncio.Event()
        """Set when there may be outcomes to take, or the end was requested."""
        self.end_requested = False
        self.over = asyncio.Event()

    async def end(self) -> None:
        """Returns when the generator has ended."""
        self.end_requested = True
        self.ready.set()
        await self.over.wait()


async def _outcomes(
    work: Work[T, R], items: Iterable[T] | AsyncIterable[T], read_in_thread: bool, running: _Running[T, R]
) -> AsyncGenerator[Outcome[T, R], None]:
    refuse_in_import_of_main()
    ready, room, read = running.ready, asyncio.Event(), asyncio.Event()
    resources = Resources(work.handling.resources)
    flow: Flow[T, R] | None = None
    feeding: asyncio.Task[None] | None = None

    def make() -> Flow[T, R]:
        resources.reach()  # in the context that the handlers copy
        return Flow(work, on_ready=ready.set, on_room=room.set)

    try:
        await resources.open(_OPEN_TIMEOUT)
        flow = running.flow = contextvars.copy_context().run(make)
        feeding = asyncio.get_running_loop().create_task(
            _feed(flow, items, room, read, read_in_thread), name="aioparallel-feeding"
        )
        at_once = max(1, min(_AT_ONCE, flow.bound // 4))
        turn = perf_counter() + _TURN
        while not running.end_requested:
            taken = flow.take(at_once)
            if not taken:
                if flow.finished:
                    break
                ready.clear()
                await ready.wait()
            for outcome in taken:
                yield outcome
                if perf_counter() > turn:  # reading ready outcomes never suspends, so other tasks would not run
                    await asyncio.sleep(0)
                    turn = perf_counter() + _TURN
        if flow.failure is not None:
            raise raisable(flow.failure)
        if not running.end_requested:
            read.set()
            await feeding  # raises errors of the source
    finally:
        if flow is not None:
            flow.failure = None  # breaks a cycle: its traceback refers to this frame, and the frame to the flow
        read.set()  # so that a source that ignores its cancellation can still end
        await to_the_end(_end(flow, feeding, resources, running.over))


async def _feed(
    flow: Flow[T, Any],
    items: Iterable[T] | AsyncIterable[T],
    room: asyncio.Event,
    read: asyncio.Event,
    read_in_thread: bool,
) -> None:
    """Feed all items, and wait until all outcomes are read. A loop that shuts down cancels all tasks, handlers too:
    pausing the flow then keeps their items from starting anew while other tasks still close."""
    try:
        await feed(flow, items, room, in_thread=read_in_thread)
        await read.wait()
    except asyncio.CancelledError:
        flow.pause()
        raise


async def _end(
    flow: Flow[Any, Any] | None, feeding: asyncio.Task[None] | None, resources: Resources, over: asyncio.Event
) -> None:
    try:
        if flow is not None and feeding is not None:
            await _end_running(flow, feeding)
    finally:
        try:
            await resources.close()
        finally:
            over.set()


async def _end_running(flow: Flow[Any, Any], feeding: asyncio.Task[None]) -> None:
    had_ended = feeding.done()
    if not feeding.cancelling():  # the loop's shutdown has cancelled it: a second one would interrupt its cleanup
        feeding.cancel()
    try:
        await flow.close()
    finally:
        await asyncio.wait((feeding,), timeout=_SOURCE_TIMEOUT)
        if not feeding.done():
            logger.error(
                "the source of items did not close within %g s and ignores its cancellation; it is left behind",
                _SOURCE_TIMEOUT,
                extra={"action": "source_abandoned"},
            )
            leave_behind((feeding,))
        elif not feeding.cancelled() and (error := feeding.exception()) is not None and not had_ended:
            logger.warning(
                "the source of items failed while it was closed", exc_info=error, extra={"action": "source_failed"}
            )
