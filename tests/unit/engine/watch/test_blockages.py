"""A handler that holds the event loop is named, and the loop turns after it. On real loops and clocks: what blocks, and
what watches, are threads."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
import uvloop

from aioparallel import LoopThread, RetryPolicy, Work, parallel_map
from aioparallel.config.handling import Handling
from aioparallel.engine.watch import blockage_log, loop_watch
from aioparallel.engine.watch.blockages import PING_INTERVAL, BlockageDetector
from aioparallel.engine.watch.loop_watch import LoopWatch
from aioparallel.engine.watch.ping import Ping
from tests.support.engine.threads import read
from tests.support.waiting import DEADLINE, SLACK, until

BLOCKED = 0.3
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine in a loop of this kind."""

    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main)

    return run


@pytest.fixture(autouse=True)
def _each_hold_has_its_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr(blockage_log, "_PAUSE", 0.0)
    with caplog.at_level(logging.WARNING):
        yield


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "action", "") == "loop_held"]


def blocks() -> None:
    time.sleep(BLOCKED)  # the line


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "aioparallel-loop-watch"]


async def run_until_named(
    handle: Callable[[int], Awaitable[None]], caplog: pytest.LogCaptureFixture, retry: RetryPolicy | None = None
) -> None:
    """Items without end, until there is a line, and what is in work after that."""

    async def items() -> AsyncIterator[int]:
        number = 0
        while not lines(caplog):
            yield number
            number += 1

    async with asyncio.timeout(60):
        outcomes = parallel_map(handle, items(), max_concurrency=10, max_buffered=100, retry=retry, label=place)
        async for _ in outcomes:
            pass
    assert not watchers()


def place(item: int, index: int) -> str:
    return f"number {item}"


# -- handlers that block --------------------------------------------------------------------------------


async def first_step(item: int) -> None:
    if item % 50 == 20:
        blocks()


async def after_an_await(item: int) -> None:
    await asyncio.sleep(0)
    await first_step(item)


async def collected_late(item: int) -> None:
    await asyncio.gather(asyncio.sleep(0.001), asyncio.sleep(0))
    await first_step(item)


@pytest.mark.parametrize("handle", [first_step, after_an_await, collected_late])
def test_who_blocks_is_named(
    run: Run, handle: Callable[[int], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """Among quick ones, in its first step or after it: its own item, its name, how long, and the line it stood at."""
    run(run_until_named(handle, caplog))
    line = lines(caplog)[0]
    text = line.getMessage()
    number = int(text.removeprefix("number ").split(":")[0])
    assert number % 50 == 20
    assert line.__dict__["offset"] == number
    assert line.__dict__["handler"] == handle.__name__
    assert 0.05 < line.__dict__["seconds"] < BLOCKED + SLACK
    assert "# the line" in text
    assert "into a plain function for in_threads()" in text
    assert "/aioparallel/engine/" not in text


def test_a_retry_that_blocks_is_named(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The books of a retry are kept otherwise: it is found all the same."""
    tried: set[int] = set()

    async def handle(item: int) -> None:
        if item % 50 == 20:
            if item in tried:
                blocks()
            else:
                tried.add(item)
                raise ValueError("not yet")

    run(run_until_named(handle, caplog, RetryPolicy(first_delay=0.001, multiplier=1, max_attempts=2)))
    assert lines(caplog)[0].__dict__["offset"] % 50 == 20


def test_the_loop_turns_between_two_that_block(run: Run) -> None:
    """Sixteen in a row, as one turn would take them: another task waits for one of them, not for all."""

    async def handle(item: int) -> None:
        blocks()

    run(longest_gap_is_short(handle, 16))


def test_the_loop_turns_between_two_that_block_after_an_await(run: Run) -> None:
    """All of them could go on in the same turn of the loop: they wait for the next one."""
    ready = asyncio.Event()

    async def handle(item: int) -> None:
        if item == 15:
            ready.set()
        await ready.wait()
        blocks()

    run(longest_gap_is_short(handle, 16))


async def longest_gap_is_short(handle: Callable[[int], Awaitable[None]], items: int) -> None:
    gaps: list[float] = []
    ticker = asyncio.create_task(note_gaps(gaps))
    async with asyncio.timeout(120):
        async for _ in parallel_map(handle, range(items), max_concurrency=items):
            pass
    ticker.cancel()
    # With turns of 16 it is 16 times as long as one.
    assert max(gaps) < 4 * BLOCKED, sorted(gaps)[-5:]
    assert sum(gap > BLOCKED / 2 for gap in gaps) > items / 2


async def note_gaps(gaps: list[float]) -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(0)
        now = time.monotonic()
        gaps.append(now - last)
        last = now


def test_quick_ones_get_long_turns_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a hold a turn is one record, and a while later it is what it was."""
    monkeypatch.setattr(loop_watch, "_WARY", 0.2)

    async def main() -> None:
        watch = LoopWatch.of(asyncio.get_running_loop())
        whole = len(watch.quota)
        shortest = whole

        async def handle(item: int) -> None:
            nonlocal shortest
            if shortest == whole:
                blocks()
            shortest = min(shortest, len(watch.quota) or whole)
            await asyncio.sleep(0.001)

        async def items() -> AsyncIterator[int]:
            item = 0
            while shortest > 1 or len(watch.quota) < whole:
                yield (item := item + 1)

        async with asyncio.timeout(60):
            async for _ in parallel_map(handle, items(), max_concurrency=1, max_buffered=2):
                pass

    run(main())


# -- others ---------------------------------------------------------------------------------------------


def test_another_task_is_not_a_handler(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """What blocks beside handlers in work is told after a second, with its line, and blames no record."""

    async def handle(item: int) -> None:
        await told.wait()

    async def other() -> None:
        while not lines(caplog):
            time.sleep(2)  # noqa: ASYNC251 - the other line
            await asyncio.sleep(0.1)
        told.set()

    async def main() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(other())
            async for _ in parallel_map(handle, range(5)):
                pass

    told = asyncio.Event()
    run(main())
    assert "asyncio/" not in lines(caplog)[0].getMessage(), "whoever runs the loop is nobody's business"
    assert {line.__dict__.get("offset") for line in lines(caplog)} == {None}
    assert "outside of handlers" in lines(caplog)[0].getMessage()
    assert "# noqa: ASYNC251 - the other line" in lines(caplog)[0].getMessage()


def test_a_callback_in_c_is_told(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The loop calls it by itself, so there is no line of Python to show; the loop looks as if it were at rest."""

    async def handle(item: int) -> None:
        while not lines(caplog):
            await asyncio.sleep(0.05)

    async def main() -> None:
        async with asyncio.timeout(60):
            asyncio.get_running_loop().call_later(0.3, time.sleep, 1.5)
            async for _ in parallel_map(handle, range(2)):
                pass

    run(main())
    assert "outside of handlers" in lines(caplog)[0].getMessage()
    assert "offset" not in lines(caplog)[0].__dict__


def test_a_member_that_comes_when_all_were_forgotten_is_watched(run: Run) -> None:
    """The watch ends with the last one that somebody still holds, and the next one has its own."""

    class Member:
        """Anything."""

    async def main() -> None:
        watch = LoopWatch.of(asyncio.get_running_loop())
        watch.join(Member())
        await until(lambda: not watchers())
        member = Member()
        watch.join(member)
        assert len(watchers()) == 1
        watch.leave(member)
        assert not watchers()

    run(main())


def test_holds_after_idleness_are_told_in_full(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record now and then, whose handler blocks: each time it is told, and how long it was. A hold of which the
    watching thread looked late, for it had no processor, is told from that look on: it says nothing here."""
    late: list[BlockageDetector] = []
    looked_late = BlockageDetector.late

    def note(detector: BlockageDetector) -> None:
        late.append(detector)
        looked_late(detector)

    monkeypatch.setattr(BlockageDetector, "late", note)
    told: list[float] = []
    is_handled = asyncio.Event()

    async def handle(item: int) -> None:
        time.sleep(0.6)  # noqa: ASYNC251 - the line
        is_handled.set()

    def seconds_of(item: int) -> list[float]:
        return [line.__dict__["seconds"] for line in lines(caplog) if line.__dict__["offset"] == item]

    async def items() -> AsyncIterator[int]:
        item = 0
        while len(told) < 3:
            late.clear()
            is_handled.clear()
            await asyncio.sleep(0.53)
            yield item
            await is_handled.wait()
            if not late:
                await until(partial(seconds_of, item), what=f"the hold of item {item} to be told")
                told.extend(seconds_of(item))
            item += 1

    async def main() -> None:
        async with asyncio.timeout(DEADLINE):
            async for _ in parallel_map(handle, items(), max_concurrency=5):
                pass

    run(main())
    assert len(told) == 3
    assert min(told) > 0.6 - PING_INTERVAL


# -- the watch ------------------------------------------------------------------------------------------


def test_a_clock_that_stands_still_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may freeze the time: no timer fires, so no pulse comes by itself; handlers go on all the same."""
    now = time.monotonic()
    loop = asyncio.new_event_loop()

    async def handle(item: int) -> int:
        return await asyncio.to_thread(sum, range(200_000))

    async def main() -> int:
        count = 0
        async for _ in parallel_map(handle, range(200), max_concurrency=4):
            count += 1
            monkeypatch.setattr(loop, "time", lambda: now)
        return count

    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(loop.run_until_complete(main())), daemon=True)
    thread.start()
    thread.join(30)
    assert ended == [200]
    loop.close()


def test_a_ping_that_raises_is_not_the_last(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come in the middle of one, and be caught: handlers and pings go on."""
    pings = 0
    send = Ping.ping

    def failing(ping: Ping) -> None:
        nonlocal pings
        pings += 1
        if pings == 3:
            raise ValueError("in the middle")
        send(ping)

    monkeypatch.setattr(Ping, "ping", failing)

    async def handle(item: int) -> None:
        await asyncio.sleep(0.001)

    async def items() -> AsyncIterator[int]:
        item = 0
        while pings < 8:
            yield (item := item + 1)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with asyncio.timeout(60):
            async for _ in parallel_map(handle, items(), max_concurrency=4, max_buffered=10):
                pass

    run(main())


def test_nothing_is_left_of_it(run: Run) -> None:
    """The thread is there while records run, one for all that run in a loop, and ends with the last of them."""

    async def main() -> None:
        assert not watchers()
        async with parallel_map(one, range(10)) as first, parallel_map(one, range(10)) as second:
            async for _ in first:
                break
            async for _ in second:
                break
            assert len(watchers()) == 1
            await first.aclose()
            assert len(watchers()) == 1
        assert not watchers()

    async def one(item: int) -> None:
        await asyncio.sleep(0.001)

    run(main())


def test_a_closed_loop_and_forgotten_members_end_it() -> None:
    """Whoever does not close leaves no thread for ever."""

    class Member:
        """Anything."""

    async def join(member: Member) -> None:
        LoopWatch.of(asyncio.get_running_loop()).join(member)

    member = Member()
    asyncio.run(join(member))  # which closes its loop
    asyncio.run(until(lambda: not watchers()))

    async def forget() -> None:
        await join(Member())
        await until(lambda: not watchers())

    asyncio.run(forget())


def test_a_loop_thread_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    """So are flows of programs that are not asynchronous."""
    thread = LoopThread()
    try:
        flow = thread.flow(Work(first_step, Handling(max_concurrency=10), label=place))
        flow.feed(list(range(20, 520, 50)))
        flow.end()
        assert len(read(flow)) == 10
    finally:
        thread.close()
    assert lines(caplog)[0].__dict__["handler"] == "first_step"
    assert not watchers()
