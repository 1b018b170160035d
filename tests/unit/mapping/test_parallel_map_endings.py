"""parallel_map: however it ends, nothing is left, and nothing is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aioparallel import ConsumerStateError, mapping, parallel_map
from tests.support.engine.items import double, forever, read, tasks


@pytest.mark.parametrize("closes", [True, False])
async def test_leaving_early_leaves_nothing(closes: bool) -> None:
    """Handlers are cancelled, the source is closed."""
    events: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                yield number
        finally:
            await asyncio.sleep(0.02)
            events.append("source closed")

    async def handle(number: int) -> int:
        try:
            await asyncio.sleep(0 if number == 0 else 3_600)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return number

    if closes:
        async with parallel_map(handle, source(), max_concurrency=10, max_buffered=10) as outcomes:
            async for _ in outcomes:
                break
    else:
        async for _ in parallel_map(handle, source(), max_concurrency=10, max_buffered=10):
            break
        async with asyncio.timeout(10):
            while tasks() > 1:
                await asyncio.sleep(0.001)
    assert tasks() == 1
    assert events.count("source closed") == 1
    assert events.count("cancelled") == 10


async def test_handlers_have_the_time_to_clean_up() -> None:
    """Delivery waits for those that it has cancelled."""
    events: list[str] = []

    async def handle(number: int) -> None:
        if number:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                events.append("cleaned up")

    async with parallel_map(handle, range(5)) as outcomes:
        async for _ in outcomes:
            break
        async with asyncio.timeout(20):
            while outcomes.stats().in_flight < 4:
                await asyncio.sleep(0)
    assert events == ["cleaned up"] * 4


async def test_a_source_that_fails_while_it_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """That is in the log; one that has failed before is raised, and not there."""

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                yield number
        finally:
            raise ConnectionError("not closed")

    async with parallel_map(double, source(), max_concurrency=1, max_buffered=1) as outcomes:
        async for _ in outcomes:
            break
    assert [one.getMessage() for one in caplog.records] == ["the source of items failed while it was closed"]
    assert "ConnectionError: not closed" in caplog.text
    caplog.clear()
    with pytest.raises(ConnectionError):
        await read(parallel_map(double, source()), [])
    assert not caplog.records


async def test_a_source_that_ignores_its_cancellation(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left behind, with a line in the log; all else is closed."""
    monkeypatch.setattr(mapping, "_SOURCE_TIMEOUT", 0.05)
    events: list[str] = []
    goes_on = asyncio.Event()

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[None]:
        yield
        events.append("closed")

    async def source() -> AsyncIterator[int]:
        yield 1
        while not goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await goes_on.wait()

    async with asyncio.timeout(20):
        async with parallel_map(double, source(), resources={"client": client}) as outcomes:
            async for _ in outcomes:
                break
        assert events == ["closed"]
        assert "the source of items did not close within 0.05 s" in caplog.text
        goes_on.set()
        while tasks() > 1:
            await asyncio.sleep(0.001)


async def test_a_source_that_goes_on_after_its_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    """Its next item ends it: nothing is run, and nobody waits for it any longer."""
    events: list[object] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            while True:
                yield 2
        finally:
            events.append("closed")

    async def handle(number: int) -> None:
        events.append(number)

    async with parallel_map(handle, source()) as outcomes:
        async for _ in outcomes:
            break
    assert events == [1, "closed"]
    assert tasks() == 1
    assert not caplog.records


async def test_statistics_before_it_runs() -> None:
    """There are none."""
    outcomes = parallel_map(double, [1])
    with pytest.raises(ConsumerStateError, match="iterate it first"):
        outcomes.stats()
    async with outcomes:
        pass


async def test_a_cancelled_reader(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing goes on behind its back."""

    async def read_closing() -> None:
        async with parallel_map(forever, range(100)) as outcomes:
            await read(outcomes, [])

    reading = asyncio.ensure_future(read_closing())
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert tasks() == 1
    assert not [one for one in caplog.records if one.levelno > logging.WARNING]


async def test_keyboard_interrupt_of_a_handler() -> None:
    """It is raised at the reader."""

    async def handle(number: int) -> None:
        raise SystemExit(number)

    with pytest.raises(SystemExit):
        [o async for o in parallel_map(handle, [3])]


async def test_break_with_a_variable_ends_it() -> None:
    """Only ``async with`` holds it open; and its outcomes come once."""
    outcomes = parallel_map(forever, range(100), max_concurrency=10, timeout=0.001, on_error="emit")
    async for _ in outcomes:
        break
    async with asyncio.timeout(10):
        while tasks() > 1:
            await asyncio.sleep(0.001)
    with pytest.raises(ConsumerStateError, match="come once; call parallel_map"):
        aiter(outcomes)
    assert outcomes.stats().parked == outcomes.stats().in_flight == outcomes.stats().buffered == 0
    assert repr(outcomes) == "<parallel_map of forever, over>"
    async with parallel_map(double, range(10)) as held:
        async for _ in held:
            break
        assert len([outcome async for outcome in held]) == 9
    with pytest.raises(ConsumerStateError):
        aiter(held)


async def test_closing_while_another_task_iterates() -> None:
    """The other one comes to the end."""
    outcomes = parallel_map(forever, range(100), max_concurrency=10)
    assert repr(outcomes) == '<parallel_map of forever, to be read with "async for">'
    given: list[int] = []
    reading = asyncio.ensure_future(read(outcomes, given))
    async with asyncio.timeout(20):
        while repr(outcomes) != "<parallel_map of forever, running>":
            await asyncio.sleep(0.001)
        while outcomes.stats().in_flight < 10:
            await asyncio.sleep(0.001)
    await outcomes.aclose()
    assert outcomes.stats().in_flight == 0
    await reading
    assert tasks() == 1


async def test_a_cancellation_while_it_closes_is_not_lost() -> None:
    """All is closed, in order and to the end, and then the cancellation goes on."""
    events: list[str] = []
    closing = asyncio.Event()

    def resource_named(name: str) -> Any:
        @contextlib.asynccontextmanager
        async def slow() -> AsyncIterator[str]:
            yield name
            await asyncio.sleep(0.05)
            events.append(name)

        return slow

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                yield number
        finally:
            closing.set()
            await asyncio.sleep(0.05)
            events.append("source")

    async def leave() -> None:
        resources = {"a": resource_named("a"), "b": resource_named("b")}
        async with parallel_map(double, source(), max_buffered=1, max_concurrency=1, resources=resources) as outcomes:
            async for _ in outcomes:
                break
        raise AssertionError("the cancellation is lost")

    leaving = asyncio.ensure_future(leave())
    await closing.wait()
    for _ in range(10):
        leaving.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert events == ["source", "b", "a"]
    assert tasks() == 1


@pytest.mark.parametrize("count", [5, 100_000])
def test_a_loop_that_shuts_down_lets_all_of_it_close(count: int) -> None:
    """All tasks are cancelled, once: the source and the resources close, and no handler starts anew meanwhile."""
    events: list[str] = []
    running = 0
    closing = False

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
        finally:
            if count > 5:  # else it has come to its end by itself, and the cancellation would be its own
                await asyncio.sleep(0.01)
            events.append("source")

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[None]:
        nonlocal closing
        yield
        closing = True
        await asyncio.sleep(0.05)  # longer than it takes to replace a worker
        events.append("client")

    async def handle(number: int) -> int:
        nonlocal running
        running += 1
        if closing:
            events.append("anew")
        try:
            await asyncio.sleep(0 if number == 0 else 0.02)
        finally:
            running -= 1
        return number

    async def main() -> None:
        async for _ in parallel_map(handle, source(), resources={"client": client}, max_buffered=10, max_concurrency=3):
            return

    asyncio.run(main())
    gc.collect()
    assert sorted(events) == ["client", "source"]
    assert running == 0


async def test_generators_are_closed_where_they_were_read() -> None:
    """A cursor wants that; what is no generator is the caller's."""
    closed: list[int] = []

    def source() -> Iterator[int]:
        try:
            yield from range(1_000)
        finally:
            closed.append(threading.get_ident())

    for in_thread in (False, True):
        generator = source()
        options: dict[str, Any] = {"max_buffered": 1, "max_concurrency": 1, "read_in_thread": in_thread}
        async with parallel_map(double, generator, **options) as outcomes:
            async for _ in outcomes:
                break
        async with asyncio.timeout(10):
            while len(closed) < 1 + in_thread:
                await asyncio.sleep(0.001)
    assert closed[0] == threading.get_ident() != closed[1]


async def test_nothing_of_the_items_is_kept_by_an_error() -> None:
    """Whoever keeps it keeps its frames, and these the flow; not what was read ahead."""

    class Item:
        pass

    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def items() -> Iterator[Item]:
        for _ in range(500):
            item = Item()
            alive.add(item)
            yield item

    async def fail(item: Item) -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    gc.disable()
    try:
        with pytest.raises(ValueError) as raised:  # noqa: PT011
            await read(parallel_map(fail, items(), max_concurrency=5), [])
        await asyncio.sleep(0.01)
        assert len(alive) < 20
        del raised
    finally:
        gc.enable()


async def test_closed_after_a_break_it_is_over() -> None:
    """The loop has begun to end it then; who closes it waits for that."""
    ended = 0

    async def handle(number: int) -> int:
        nonlocal ended
        try:
            await asyncio.sleep(0 if number == 0 else 60)
        finally:
            await asyncio.sleep(0.01)
            ended += 1
        return number

    outcomes = parallel_map(handle, range(10), max_concurrency=10)
    async for _ in outcomes:
        break
    await outcomes.aclose()
    assert ended == 10
    await outcomes.aclose()
