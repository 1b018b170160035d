"""From a source of items to a flow: iterables, those that block, and async iterables, read as far as there is room."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any, TypeVar, cast

from aioparallel.engine.flow import Flow

__all__ = ["feed"]

T = TypeVar("T")

# Items that are read before the event loop turns.
_AT_ONCE = 256
# Seconds that a thread reads on before it hands over what it has.
_HAND_OVER = 0.005


async def feed(
    flow: Flow[T, Any], items: Iterable[T] | AsyncIterable[T], room: asyncio.Event, *, in_thread: bool = False
) -> None:
    """Feed all of them. ``room`` is set by the flow when there is some again.

    Ends the flow in any case, and then raises what iterating has raised.
    """
    try:
        if isinstance(items, AsyncIterable):
            await _feed_async(flow, items, room)
        elif in_thread:
            await _feed_from_thread(flow, items, room)
        else:
            await _feed_plain(flow, items, room)
    finally:
        flow.end()


async def _room(flow: Flow[T, Any], room: asyncio.Event) -> int:
    while not (free := flow.room):
        room.clear()
        await room.wait()
    return free


async def _feed_plain(flow: Flow[T, Any], items: Iterable[T], room: asyncio.Event) -> None:
    iterator = iter(items)
    more = True
    while more:
        most = min(await _room(flow, room), _AT_ONCE)
        batch: list[T] = []
        try:
            for item in itertools.islice(iterator, most):
                batch.append(item)  # noqa: PERF402 - of list() nothing would be left where the iterator raises
        finally:
            flow.feed(batch)
        more = len(batch) == most
        await asyncio.sleep(0)


async def _feed_async(flow: Flow[T, Any], items: AsyncIterable[T], room: asyncio.Event) -> None:
    iterator = aiter(items)
    read = 0
    try:
        while True:
            await _room(flow, room)
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                return
            flow.feed((item,))
            read += 1
            if read % _AT_ONCE == 0:
                await asyncio.sleep(0)  # one that never suspends would let nobody run
    finally:
        close = getattr(iterator, "aclose", None)  # of an async generator: what it holds is closed now
        if close is not None:
            await close()


async def _feed_from_thread(flow: Flow[T, Any], items: Iterable[T], room: asyncio.Event) -> None:
    reader = _Reader(items)
    try:
        while True:
            batch, error, at_end = await reader.read(await _room(flow, room))
            flow.feed(cast("list[T]", batch))
            if error is not None:
                raise error
            if at_end:
                return
    finally:
        reader.close()


_Batch = tuple[list[object], BaseException | None, bool]


class _Reader:
    """Reads an iterable in a daemon thread of its own: one that blocks for ever keeps nobody from leaving."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._wanted: queue.SimpleQueue[tuple[int, asyncio.Future[_Batch]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="aioparallel-reading", daemon=True).start()

    async def read(self, most: int) -> _Batch:
        """Up to so many items, as soon as there is one; what iterating raised after them; and whether it has ended."""
        future: asyncio.Future[_Batch] = self._loop.create_future()
        self._wanted.put((most, future))
        return await future

    def close(self) -> None:
        """The thread ends when its ``next()`` has returned."""
        self._wanted.put(None)

    def _run(self) -> None:
        iterator: Iterator[object] | None = None
        while (wanted := self._wanted.get()) is not None:
            most, future = wanted
            batch: list[object] = []
            error: BaseException | None = None
            at_end = True
            try:
                iterator = iter(self._items) if iterator is None else iterator
                until = 0.0
                for item in itertools.islice(iterator, most):
                    batch.append(item)
                    until = until or time.monotonic() + _HAND_OVER
                    if time.monotonic() >= until:
                        at_end = False
                        break
                else:
                    at_end = len(batch) < most
            except BaseException as raised:
                error = raised
            try:
                self._loop.call_soon_threadsafe(_answer, future, (batch, error, at_end))
            except RuntimeError:
                return  # the loop is closed


def _answer(future: asyncio.Future[_Batch], batch: _Batch) -> None:
    if not future.done():
        future.set_result(batch)
