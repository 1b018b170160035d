"""From a source of items to a flow: iterables, those that block, and async iterables, read as far as there is room."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
from collections.abc import AsyncIterable, Iterable
from typing import Any, TypeVar, cast

from aioparallel.engine.flow import Flow
from aioparallel.engine.sizes import size_of

__all__ = ["feed"]

T = TypeVar("T")

# Items that are read before the event loop turns.
_AT_ONCE = 256


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
    try:
        while more:
            most = min(await _room(flow, room), _AT_ONCE)
            batch: list[T] = []
            left = flow.bytes_left
            try:
                for item in itertools.islice(iterator, most):
                    batch.append(item)  # of list() nothing would be left where the iterator raises
                    if left is not None and (left := left - size_of(item)) <= 0:
                        most = len(batch)
                        break
            finally:
                flow.feed(batch)
            more = len(batch) == most
            await asyncio.sleep(0)
    finally:
        _close(iterator)


def _close(iterator: object) -> None:
    """A generator that is left early is closed where it was read, now. Anything else is the caller's."""
    if inspect.isgenerator(iterator):
        iterator.close()


async def _feed_async(flow: Flow[T, Any], items: AsyncIterable[T], room: asyncio.Event) -> None:
    iterator, task = aiter(items), asyncio.current_task()
    read = 0
    try:
        while True:
            await _room(flow, room)
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                return
            if task is not None and task.cancelling():  # and the source has gone on as if it were not
                raise asyncio.CancelledError
            flow.feed((item,))
            read += 1
            if read % _AT_ONCE == 0:
                await asyncio.sleep(0)  # one that never suspends would let nobody run
    finally:
        if inspect.isasyncgen(iterator):  # anything else is the caller's
            await iterator.aclose()


async def _feed_from_thread(flow: Flow[T, Any], items: Iterable[T], room: asyncio.Event) -> None:
    reader, at_once = _Reader(items), 1
    try:
        while batch := await reader.read(min(await _room(flow, room), at_once), flow.bytes_left):
            at_once = min(2 * at_once, _AT_ONCE)
            flow.feed(cast("list[T]", batch))
    finally:
        reader.close()


class _Reader:
    """Reads an iterable in a daemon thread of its own: one that blocks for ever keeps nobody from leaving."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()
        self._changed = threading.Condition()
        # Under its lock:
        self._most = 0  # items that may be read
        self._left: int | None = None  # bytes until none may be read; None: they are not bounded
        self._read: list[object] = []
        self._size = 0  # bytes of these, where they are bounded
        self._is_told = False  # that there is something
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="aioparallel-reading", daemon=True).start()

    async def read(self, most: int, left: int | None) -> list[object]:
        """Up to so many items, as soon as there is one; none at the end. With ``left``, no more than make so many
        bytes, and the last of them. Raises what iterating has raised, after the items before it."""
        with self._changed:
            self._most = most - len(self._read)
            self._left = None if left is None else left - self._size
            self._changed.notify()
        while True:
            with self._changed:
                read, self._read, self._size = self._read, [], 0
                self._is_told = False
                ended = self._ended
            if read or ended:
                break
            self._some.clear()
            await self._some.wait()
        if not read and self._error is not None:
            raise self._error
        return read

    def close(self) -> None:
        """The thread ends when its ``next()`` has returned."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            iterator = iter(self._items)
            while self._may_read():
                try:
                    item = next(iterator)
                except StopIteration:
                    break
                self._give(item)
            _close(iterator)
        except BaseException as raised:
            error = raised
        with self._changed:
            self._ended, self._error = True, error
        self._tell()

    def _may_read(self) -> bool:
        """Waits until it may; False: nobody wants more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._most > 0 and (self._left is None or self._left > 0)))
            return not self._closed

    def _give(self, item: object) -> None:
        with self._changed:
            self._most -= 1
            if self._left is not None:
                size = size_of(item)
                self._left -= size
                self._size += size
            self._read.append(item)
            is_told, self._is_told = self._is_told, True
        if not is_told:
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._some.set)
