"""Feeds a flow from an iterable, a blocking iterable or an async iterable. Reads only while the flow has room."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
from collections.abc import AsyncIterable, Iterable
from typing import Any, TypeVar, cast

from aioparallel.engine.flow.flow import Flow
from aioparallel.engine.flow.sizes import size_of

__all__ = ["feed"]

T = TypeVar("T")

# The most items that are read in one turn of the event loop.
_AT_ONCE = 256


async def feed(
    flow: Flow[T, Any], items: Iterable[T] | AsyncIterable[T], room: asyncio.Event, *, in_thread: bool = False
) -> None:
    """Feed all items. The flow sets ``room`` when it has room again. ``in_thread``: read in a thread, because the
    iterable may block.

    Ends the flow in any case. Raises what iterating raises.
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
                    batch.append(item)  # list() would lose the items if the iterator raises
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
    """Close a generator at once, in the thread that read it. Other iterators belong to the caller."""
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
            if task is not None and task.cancelling():  # the source has swallowed the cancellation
                raise asyncio.CancelledError
            flow.feed((item,))
            read += 1
            if read % _AT_ONCE == 0:
                await asyncio.sleep(0)  # a source that never suspends would block the loop
    finally:
        if inspect.isasyncgen(iterator):  # other iterators belong to the caller
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
    """Reads an iterable in its own daemon thread. An iterable that blocks for ever does not keep the process alive."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()
        self._changed = threading.Condition()
        # Under its lock:
        self._most = 0  # items that may be read
        self._left: int | None = None  # bytes that may still be read; None: no limit
        self._read: list[object] = []
        self._size = 0  # bytes of these items, if there is a limit
        self._is_notified = False  # whether the loop knows that there are items
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="aioparallel-reading", daemon=True).start()

    async def read(self, most: int, left: int | None) -> list[object]:
        """Return up to ``most`` items as soon as there is one; an empty list at the end. ``left``: bytes after which
        reading stops; the item that exceeds them is included. Raises what iterating raised, after all items before
        it."""
        with self._changed:
            self._most = most - len(self._read)
            self._left = None if left is None else left - self._size
            self._changed.notify()
        while True:
            with self._changed:
                read, self._read, self._size = self._read, [], 0
                self._is_notified = False
                ended = self._ended
            if read or ended:
                break
            self._some.clear()
            await self._some.wait()
        if not read and self._error is not None:
            raise self._error
        return read

    def close(self) -> None:
        """Let the thread end when its current ``next()`` has returned."""
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
        self._notify()

    def _may_read(self) -> bool:
        """Wait until one more item may be read. False: the reader is closed."""
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
            is_notified, self._is_notified = self._is_notified, True
        if not is_notified:
            self._notify()

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._some.set)
