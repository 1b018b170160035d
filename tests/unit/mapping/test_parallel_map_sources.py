"""parallel_map: sources and readers, the fast and the slow, and those that block."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aioparallel import Handling, parallel_map
from aioparallel.engine.flow.flow import Flow
from aioparallel.engine.flow.work import Work
from tests.support.engine.items import double, read, tasks


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


@pytest.mark.parametrize("kind", ["plain", "in a thread", "async"])
async def test_no_source_is_read_further_ahead_than_the_bounds_say(kind: str) -> None:
    """All the time, of whatever kind it is."""
    read = given = most_ahead = 0

    def source() -> Iterator[int]:
        nonlocal read, most_ahead
        for number in range(500):
            read += 1
            most_ahead = max(most_ahead, read - given)
            yield number

    async def later() -> AsyncIterator[int]:
        for number in source():
            yield number

    options: dict[str, Any] = {"max_concurrency": 3, "max_buffered": 7, "read_in_thread": kind == "in a thread"}
    async for _ in parallel_map(double, later() if kind == "async" else source(), **options):
        given += 1
        await asyncio.sleep(0)
    assert given == 500
    assert most_ahead <= 10


async def test_the_source_goes_on_while_a_backlog_is_read() -> None:
    """What is read of it makes room, not only the end of it."""
    numbers = 0
    slow = asyncio.Event()

    def source() -> Iterator[int]:
        nonlocal numbers
        for number in range(1_000):
            numbers += 1
            yield number

    async def handle(number: int) -> None:
        if number == 0:
            await slow.wait()

    options: dict[str, Any] = {"max_concurrency": 10, "max_buffered": 30, "in_order": True}
    async with parallel_map(handle, source(), **options) as outcomes:
        reading = aiter(outcomes)
        first = asyncio.ensure_future(anext(reading))
        async with asyncio.timeout(20):
            while repr(outcomes).endswith('"async for">') or outcomes.stats().unread < 39:
                await asyncio.sleep(0)
        slow.set()
        await first
        for _ in range(30):
            await anext(reading)
            await asyncio.sleep(0)
        assert numbers >= 60


async def test_nothing_more_is_read_after_a_failure() -> None:
    """However much room there is."""
    numbers = at_failure = 0

    def source() -> Iterator[int]:
        nonlocal numbers
        for number in range(5_000):
            numbers += 1
            yield number

    async def fail(number: int) -> None:
        nonlocal at_failure
        at_failure = numbers
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        await read(parallel_map(fail, source(), max_concurrency=1), [])
    assert numbers == at_failure


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_source_that_never_waits_lets_others_run(kind: str) -> None:
    """The event loop turns again and again while there is room for all of it."""
    turns = seen = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def source() -> Iterator[int]:
        nonlocal seen
        began = turns
        yield from range(5_000)
        seen = turns - began

    async def later() -> AsyncIterator[int]:
        for number in source():
            yield number

    other = asyncio.ensure_future(turn())
    await read(parallel_map(double, source() if kind == "plain" else later()), [])
    other.cancel()
    assert seen > 5


async def test_iterators_that_are_no_generators_are_the_callers() -> None:
    """They are not closed: whoever made them may go on."""

    class Numbers:
        closed = False

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            return 1

        def close(self) -> None:
            self.closed = True

    class Later(Numbers):
        def __aiter__(self) -> AsyncIterator[int]:
            return self

        async def __anext__(self) -> int:
            return 1

        async def aclose(self) -> None:
            self.closed = True

    for numbers in (Numbers(), Later()):
        async with parallel_map(double, numbers, max_concurrency=1, max_buffered=1) as outcomes:
            async for _ in outcomes:
                break
        assert not numbers.closed


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


async def test_the_thread_of_a_source_ends() -> None:
    """With the map, though there was no room to read on; and without having read on."""
    numbers = 0

    def source() -> Iterator[int]:
        nonlocal numbers
        for number in range(100):
            numbers += 1
            yield number

    before = {*threading.enumerate()}
    async with parallel_map(double, source(), read_in_thread=True, max_concurrency=2, max_buffered=2) as outcomes:
        async for _ in outcomes:
            break
        (reading,) = [one for one in {*threading.enumerate()} - before if one.name == "aioparallel-reading"]
        async with asyncio.timeout(20):
            while numbers < 4:
                await asyncio.sleep(0)
    reading.join(20)
    assert not reading.is_alive()
    assert numbers == 4


def test_a_source_that_exits_in_its_thread() -> None:
    """So does the program, as where it is read on the event loop."""

    def source() -> Iterator[int]:
        yield 1
        raise SystemExit(3)

    async def main() -> None:
        async with asyncio.timeout(20):
            await read(parallel_map(double, source(), read_in_thread=True), [])

    with pytest.raises(SystemExit):
        asyncio.run(main())


def test_a_source_that_comes_back_when_the_loop_is_closed() -> None:
    """Nobody waits for it any more: its thread ends, without a traceback."""
    goes_on = threading.Event()
    threads: list[threading.Thread] = []

    def source() -> Iterator[int]:
        threads.append(threading.current_thread())
        yield 1
        goes_on.wait()

    async def main() -> None:
        async with parallel_map(double, source(), read_in_thread=True) as outcomes:
            async for _ in outcomes:
                break

    failed: list[object] = []
    hook, threading.excepthook = threading.excepthook, failed.append
    try:
        asyncio.run(main())
        goes_on.set()
        threads[0].join(20)
    finally:
        threading.excepthook = hook
    assert not threads[0].is_alive()
    assert not failed


STUCK = """
import asyncio, threading
from aioparallel import parallel_map

async def same(number):
    return number

def source():
    yield 1
    threading.Event().wait()

async def main():
    async with parallel_map(same, source(), read_in_thread=True) as outcomes:
        async for outcome in outcomes:
            break
    print(outcome.result())

asyncio.run(main())
"""


def test_the_interpreter_ends_though_a_source_never_comes_back() -> None:
    """The thread that reads it is left behind."""
    ran = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr


async def test_a_flow_refuses_what_it_has_no_room_for() -> None:
    """And what comes after its end; once it has failed it takes no notice."""

    async def fail(number: int) -> None:
        raise ValueError

    work = Work(fail, Handling(max_concurrency=1, max_buffered=2))
    flow: Flow[int, None] = Flow(work, on_ready=lambda: None, on_room=lambda: None)
    with pytest.raises(ValueError, match="4 items for a room of 3"):
        flow.feed([1, 2, 3, 4])
    flow.feed([1, 2])
    assert flow.room == 1
    async with asyncio.timeout(20):
        while flow.failure is None:
            await asyncio.sleep(0)
    assert flow.room == 0
    flow.feed([3])
    assert flow.stats().fed == 2
    flow.end()
    with pytest.raises(ValueError, match=r"end\(\) was called"):
        flow.feed([])
    await flow.close()


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
            seen = turns  # those of its end do not count
    other.cancel()
    assert seen > 5


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
