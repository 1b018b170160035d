"""Results of handlers as a stream, for ``async for``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from aioparallel.delivery.waiters import Waiters
from aioparallel.engine.sinks import Abandoned, DeliveryListener, Offered
from aioparallel.handlers.stack import Handler, coroutine_handler
from aioparallel.records.record import Record

__all__ = ["Result", "ResultStream"]

T = TypeVar("T")


class Result(NamedTuple, Generic[T]):
    """What a handler returned for a record."""

    record: Record[Any, Any]
    value: T


class _Boxed(NamedTuple):
    """A result, so that None is one as well."""

    value: object


class ResultStream(Generic[T]):
    """Holds results until they are read. An :class:`~aioparallel.engine.sinks.OutputSink`.

    A record is complete when the reader asks for the next result, because it has processed this one. Until then the
    record is *producing*, and its lane waits. ``bound``: with so many unread results, ended handlers wait.
    """

    is_exact = False

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._results: deque[tuple[Result[T], DeliveryListener]] = deque()
        self._with_reader: tuple[Result[T], DeliveryListener] | None = None
        self._arrived = asyncio.Event()
        self._waiters = Waiters()
        self._closed = False
        self._ended = False

    # -- the engine's side ------------------------------------------------------------------------------

    def boxed(self, handler: Handler) -> Handler:
        """Wrap the handler so that any value that it returns is a result."""
        handle = coroutine_handler(handler)

        async def boxed(record: Record[Any, Any]) -> object:
            value = await handle(record)
            # The result of a deferred record is the value with which it is completed.
            return value if record._history is not None and record._history.deferral is not None else _Boxed(value)

        return boxed

    def offer(self, record: Record[Any, Any], value: object, listener: DeliveryListener) -> Offered | None:
        """Return None: every result goes through :meth:`deliver`."""
        return None

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """Return the value as a result. The value of a completed deferral is not boxed yet."""
        return value if type(value) is _Boxed else _Boxed(value)

    def set_bound(self, bound: int) -> None:
        """Change how many results may be unread."""
        self._bound = bound
        self._waiters.wake_all()

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity for one more result, else what to await before asking again."""
        if len(self._results) < self._bound or self._closed:
            return None
        return self._waiters.enter()

    def deliver(
        self,
        record: Record[Any, Any],
        collected: object,
        listener: DeliveryListener,
        together: Sequence[Record[Any, Any]] = (),
    ) -> None:
        """Add a result for the reader."""
        if self._closed:
            asyncio.get_running_loop().call_soon(listener.undelivered, record, Abandoned())
            return
        self._results.append((Result(record, cast("T", cast("_Boxed", collected).value)), listener))
        self._arrived.set()

    # -- the reader's side ------------------------------------------------------------------------------

    async def next(self) -> Result[T] | None:
        """Complete the record of the previous result, and wait for the next result. None: the stream has ended."""
        if self._with_reader is not None:
            (result, listener), self._with_reader = self._with_reader, None
            listener.delivered((result.record,))
        while not self._results:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        self._with_reader = self._results.popleft()
        if self._results:
            self._waiters.wake(1)
        else:
            self._waiters.wake_all()
        return self._with_reader[0]

    def end(self) -> None:
        """End the stream after the results that are already there."""
        self._ended = True
        self._arrived.set()

    def close(self) -> None:
        """Abandon all unread results. The result that was read last does not complete either, because its reader may
        have failed."""
        self._closed = True
        unread = list(self._results)
        self._results.clear()
        if self._with_reader is not None:
            unread.append(self._with_reader)
            self._with_reader = None
        for result, listener in unread:
            listener.undelivered(result.record, Abandoned())
        self._waiters.wake_all()
