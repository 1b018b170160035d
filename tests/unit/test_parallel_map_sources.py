"""parallel_map: sources and readers, the fast and the slow, and those that block."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aioparallel import parallel_map

from .maps import double, read, tasks


async def test_a_reader_that_stops_holds_up_the_source() -> None:
    """It is read as far as the bounds say, and no further."""
    read = 0

    def source() -> Iterator[int]:
        nonlocal read
        for number in range(100_000):
            read += 1
            yield number

    async with parallel_map(double, source(), max_concurrency=10, max_buffered=50) as outcomes:
        async for outcome in outcomes:
            if outcome.index == 20:
                break
        for _ in range(200):
            await asyncio.sleep(0)
        stats = outcomes.stats()
        assert read <= 21 + 60
        assert stats.fed == read


async def test_what_the_source_raises_comes_last() -> None:
    """After the outcomes of all that it gave before."""

    def source() -> Iterator[int]:
        yield from range(5)
        raise ConnectionError("the file is gone")

    async def later() -> AsyncIterator[int]:
        for number in source():
            yield number

    for items in (source(), later()):
        given: list[int] = []
        with pytest.raises(ConnectionError, match="the file is gone"):
            await read(parallel_map(double, items), given)
        assert sorted(given) == list(range(5))


async def test_a_source_that_blocks_is_read_in_a_thread() -> None:
    """The event loop goes on; a source that never comes back keeps nobody."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    def source() -> Iterator[int]:
        for number in range(10):
            time.sleep(0.02)
            yield number
        raise ConnectionError

    ticking = asyncio.ensure_future(tick())
    given: list[int] = []
    with pytest.raises(ConnectionError):
        await read(parallel_map(double, source(), read_in_thread=True), given)
    ticking.cancel()
    assert sorted(given) == list(range(10))
    assert ticks >= 5

    goes_on = threading.Event()

    def blocks() -> Iterator[int]:
        yield 1
        goes_on.wait()

    async with parallel_map(double, blocks(), read_in_thread=True) as outcomes:
        async for _ in outcomes:
            break
    assert tasks() <= 2  # the ticking one may still end
    goes_on.set()


async def test_left_out_items_count_until_their_turn() -> None:
    """In input order, behind a slow item: the source is not read without bound."""
    slow = asyncio.Event()
    numbers = 0

    def source() -> Iterator[int]:
        nonlocal numbers
        for number in range(10_000):
            numbers += 1
            yield number

    async def handle(number: int) -> int:
        if number == 0:
            await slow.wait()
        else:
            raise ValueError
        return number

    options: dict[str, Any] = {"on_error": "skip", "in_order": True, "max_buffered": 15, "max_concurrency": 5}
    given: list[int] = []
    reading = asyncio.ensure_future(read(parallel_map(handle, source(), **options), given))
    for _ in range(500):
        await asyncio.sleep(0)
    assert numbers <= 20
    slow.set()
    await reading
    assert given == [0]
    assert numbers == 10_000


async def test_a_reader_that_never_waits_lets_others_run() -> None:
    """The event loop turns every few milliseconds, though outcomes are ready all the time and the body blocks."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(turn())
    async with parallel_map(double, range(0, 200, 2)) as outcomes:
        async for outcome in outcomes:
            if outcome.index == 0:
                for _ in range(20):
                    await asyncio.sleep(0)  # until all are ready
                turns = 0
            time.sleep(0.001)  # noqa: ASYNC251 - as a body does that writes to a file
    other.cancel()
    assert turns > 5


async def test_large_backlogs_are_read_in_little_time() -> None:
    """Taking some of those that are ready does not touch the rest."""
    slow = asyncio.Event()

    async def handle(number: int) -> int:
        if number == 0:
            await slow.wait()
        return number

    async with parallel_map(handle, range(200_000), in_order=True, max_buffered=300_000) as outcomes:
        given: list[int] = []
        reading = asyncio.ensure_future(read(outcomes, given))
        async with asyncio.timeout(60):
            while outcomes._running.flow is None or outcomes.stats().unread < 199_999:
                await asyncio.sleep(0.05)
        began = time.process_time()
        slow.set()
        await reading
        assert time.process_time() - began < 2.0
    assert given == list(range(200_000))
