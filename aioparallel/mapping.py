"""parallel_map: an async function over any items, many at once, in order of key, with retries and back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from aioparallel.engine.flow import Flow, FlowStats, Label, OnError, Outcome
from aioparallel.errors import ConfigurationError, ConsumerStateError
from aioparallel.feeding import feed
from aioparallel.handlers import check_handlers, check_middleware
from aioparallel.handling import Handling, Middleware, Ordering, Resource, check_choice, check_time
from aioparallel.policies import RetryPolicy, is_async
from aioparallel.resources import Resources

__all__ = ["ParallelMap", "parallel_map"]

T = TypeVar("T")
R = TypeVar("R")

# Outcomes taken from the flow at once, at most: they count as unread until the last of them is read.
_AT_ONCE = 256
# Seconds for each resource to open.
_OPEN_TIMEOUT = 30.0


def parallel_map(
    handler: Callable[[T], Awaitable[R]],
    items: Iterable[T] | AsyncIterable[T],
    *,
    key: Callable[[T], Hashable] | None = None,
    max_concurrency: int = 100,
    max_buffered: int = 10_000,
    timeout: float | None = None,
    retry: RetryPolicy | None = None,
    on_error: OnError = "raise",
    in_order: bool = False,
    resources: Mapping[str, Resource] | None = None,
    middleware: Sequence[Middleware] = (),
    label: Label | None = None,
    read_in_thread: bool = False,
) -> ParallelMap[T, R]:
    """Run the async function ``handler`` on each item, many at once, and give the outcomes.

    ::

        async for outcome in parallel_map(fetch, urls, max_concurrency=200):
            print(outcome.item, outcome.result())

    ``items``: a list, a generator, an async generator, ...; it is read as far ahead as ``max_buffered`` and
    ``max_concurrency`` together allow, outcomes that nobody has read included.
    ``key``: a quick, plain function of the item. Items of equal keys run one after the other, in their order; None from
    it is no order. Without it any item may run at any time.
    ``max_concurrency``: handlers running at once, at most.
    ``max_buffered``: items read and not started, at most: how far it sees past a slow key.
    ``timeout``: seconds for each attempt; then it is cancelled and has failed with
    :class:`~aioparallel.errors.HandlerTimeout`.
    ``retry``: when a failed item is tried again; None: a single attempt. The others of its key wait meanwhile.
    ``on_error``: an item that has failed for good ends it all with its own error (``"raise"``: what else runs is
    cancelled), is an outcome with an ``error`` (``"emit"``), or is left out, with a line in the log (``"skip"``).
    ``in_order``: give outcomes in the order of the items, not as they end.
    ``resources``: functions by name that make async context managers, opened before the first item and closed at the
    end; the handler reaches them with ``resource("name")``.
    ``middleware``: async functions of an item and ``call_next``, around each attempt, the first outermost.
    ``label``: a plain function of an item and its index that names it in messages; without it "item 17".
    ``read_in_thread``: read ``items``, a plain iterable whose ``next()`` blocks, in a thread of its own.

    Raises ConfigurationError at once for what is wrong with any of them. Iterating raises what opening a resource, or
    iterating ``items``, raises; the latter when all that was read before has ended.
    """
    check_handlers(cast("Any", handler), takes="the item")
    check_middleware(middleware, takes="the item")
    if timeout is not None:
        check_time("timeout", timeout)
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ConfigurationError("retry", retry, "must be None, for a single attempt, or a RetryPolicy")
    if key is not None and not _is_plain(key):
        raise ConfigurationError("key", key, "must be a plain function of the item")
    if label is not None and not _is_plain(label):
        raise ConfigurationError("label", label, "must be a plain function of the item and its index")
    if not isinstance(items, Iterable | AsyncIterable):
        raise ConfigurationError("items", items, "must be iterable, or async iterable")
    if read_in_thread and not isinstance(items, Iterable):
        raise ConfigurationError("read_in_thread", read_in_thread, "is for plain iterables; this one is asynchronous")
    check_choice("on_error", on_error, ("raise", "emit", "skip"))
    handling = Handling(
        ordering=Ordering.KEY if key is not None else Ordering.UNORDERED,
        order_by=key,
        max_concurrency=max_concurrency,
        max_buffered=max_buffered,
        handler_timeout=timeout,
        middleware=middleware,
        resources=resources or {},
    )
    return ParallelMap(_Plan(handler, items, handling, retry, on_error, in_order, label, read_in_thread))


def _is_plain(function: object) -> bool:
    return callable(function) and not is_async(function)


@dataclass(frozen=True, slots=True)
class _Plan(Generic[T, R]):
    handler: Callable[[T], Awaitable[R]]
    items: Iterable[T] | AsyncIterable[T]
    handling: Handling
    retry: RetryPolicy | None
    on_error: OnError
    in_order: bool
    label: Label | None
    read_in_thread: bool


class ParallelMap(Generic[T, R]):
    """What :func:`parallel_map` gives: outcomes to be iterated once, with ``async for``.

    Left early (``break``, an error in the loop's body, a cancellation) it cancels what runs and closes what it opened,
    soon; as ``async with parallel_map(...) as outcomes:`` it has done so when the block is left.
    """

    def __init__(self, plan: _Plan[T, R]) -> None:
        self._running = _Running[T, R]()
        # No part of it knows this object, so that the generator is closed as soon as nobody iterates.
        self._outcomes = _outcomes(plan, self._running)

    def __aiter__(self) -> AsyncGenerator[Outcome[T, R], None]:
        return self._outcomes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End it: cancel what runs, close what was opened."""
        await self._outcomes.aclose()

    def stats(self) -> FlowStats:
        """Counts of items. Raises ConsumerStateError before the first outcome was asked for."""
        if self._running.flow is None:
            raise ConsumerStateError("nothing runs yet, so there are no statistics: iterate it first")
        return self._running.flow.stats()


class _Running(Generic[T, R]):
    """What runs, once it does."""

    def __init__(self) -> None:
        self.flow: Flow[T, R] | None = None


async def _outcomes(plan: _Plan[T, R], running: _Running[T, R]) -> AsyncGenerator[Outcome[T, R], None]:
    handling = plan.handling
    at_once = max(1, min(_AT_ONCE, (handling.max_buffered + handling.max_concurrency) // 4))
    resources = Resources(handling.resources)
    try:
        await resources.open(_OPEN_TIMEOUT)
        ready, room = asyncio.Event(), asyncio.Event()

        def make() -> Flow[T, R]:
            resources.reach()  # in a context of its own, which handlers copy
            return Flow(
                plan.handler,
                handling,
                retry=plan.retry,
                on_error=plan.on_error,
                in_order=plan.in_order,
                on_ready=ready.set,
                on_room=room.set,
                label=plan.label,
            )

        flow = running.flow = contextvars.copy_context().run(make)
        feeding = asyncio.get_running_loop().create_task(
            feed(flow, plan.items, room, in_thread=plan.read_in_thread), name="aioparallel-feeding"
        )
        try:
            while True:
                taken = flow.take(at_once)
                if not taken:
                    if flow.finished:
                        break
                    ready.clear()
                    await ready.wait()
                for outcome in taken:
                    yield outcome
            if flow.failure is not None:
                raise flow.failure
            await feeding  # raises what reading has raised
        finally:
            feeding.cancel()
            await flow.close()
            with contextlib.suppress(BaseException):
                await feeding
    finally:
        await resources.close()
