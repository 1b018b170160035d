"""A handler that holds the event loop is named, and the loop turns after it. On real loops and clocks: what blocks, and
what watches, are threads."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from aioparallel import LoopThread, RetryPolicy, Work, parallel_map
from aioparallel.engine import hold_log, loop_watch
from aioparallel.engine.hold_log import HoldLog
from aioparallel.engine.holds import LATE, OVERDUE, TICK, Hold, Judge, Line, Look, Recent
from aioparallel.engine.loop_watch import LoopWatch
from aioparallel.handling import Handling
from aioparallel.records import Record
from tests.support.engine.threads import read
from tests.support.waiting import SLACK, until

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
    monkeypatch.setattr(hold_log, "_PAUSE", 0.0)
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
    assert f"in_threads({handle.__name__})" in text
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
    assert {line.__dict__.get("offset") for line in lines(caplog)} == {None}
    assert "no handler" in lines(caplog)[0].getMessage()
    assert "# noqa: ASYNC251 - the other line" in lines(caplog)[0].getMessage()


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
        is_busy = True

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


# -- judging, with times passed in ----------------------------------------------------------------------


def look(record: Record | None, handler: str = "handle") -> Look:
    return Look(record, handler if record else "", (Line("file.py", 1, handler),))


A, B = Record("t", 0, 1), Record("t", 0, 2)


def judge_of(*looks: tuple[float, Record | None], late: float = 0.0, starved: float = 0.0) -> list[Hold]:
    """What is found when these are seen at these times after the question, and the answer comes with the last one;
    each look so late, and the loop's thread without a processor for that part of the time."""
    judge = Judge()
    judge.asked(0.0)
    for at, record in looks:
        assert judge.overdue(at)
        if late > LATE:
            judge.late()
        judge.looked(look(record), at, starved * at)
    return judge.answered(looks[-1][0])


def test_two_looks_that_see_the_same_record_are_a_hold() -> None:
    """It is told from the question on; one look is none."""
    assert [(hold.look.record, round(hold.seconds, 3)) for hold in judge_of((0.05, A), (0.1, A), (0.3, A))] == [
        (A, 0.3)
    ]
    assert judge_of((0.05, A)) == []
    assert not Judge().overdue(OVERDUE / 2)


def test_records_that_take_turns_are_none() -> None:
    """Quick ones in a turn of the loop that lasts: a busy machine."""
    assert judge_of((0.05, A), (0.1, B), (0.15, A), (0.2, B)) == []


def test_one_after_the_other_has_its_own_time() -> None:
    """Two holds in one turn of the loop: none of them gets the time of the other."""
    found = judge_of((0.05, A), (0.1, A), (0.15, B), (0.2, B), (0.25, B))
    assert [(hold.look.record, round(hold.seconds, 3)) for hold in found] == [(A, 0.1), (B, 0.1)]


def test_who_looks_too_late_blames_nobody() -> None:
    """The process was stopped, or a garbage collection kept the interpreter to itself."""
    assert judge_of((0.05, A), (2.0, A), (5.0, A), late=LATE * 2) == []
    judge = Judge()
    judge.asked(0.0)
    judge.looked(look(A), 0.05, 0.0)
    judge.late()
    judge.looked(look(A), 9.0, 0.0)
    judge.looked(look(A), 9.0 + TICK, 0.0)
    (hold,) = judge.answered(9.06)
    assert hold.seconds < 0.1  # what was before is not counted


def test_a_thread_without_a_processor_blames_nobody() -> None:
    """It stands at the same line because nobody lets it run."""
    assert judge_of((0.05, A), (0.1, A), (0.4, A), starved=0.95) == []
    assert len(judge_of((0.05, A), (0.1, A), (0.4, A), starved=0.5)) == 1


def test_what_is_no_handler_is_told_after_a_second() -> None:
    """Short ones are nobody's business."""
    assert judge_of((0.05, None), (0.5, None), (0.9, None)) == []
    assert [hold.look.record for hold in judge_of((0.05, None), (0.5, None), (1.1, None))] == [None]


def test_a_loop_about_to_turn_is_not_held() -> None:
    """Two looks at one record with a rest between them are not one after the other."""
    judge = Judge()
    judge.asked(0.0)
    for at, seen in ((0.05, look(A)), (0.1, None), (0.15, look(A))):
        judge.looked(seen, at, 0.0)
    assert judge.answered(0.2) == []


def held(record: Record, since: float, seconds: float, handler: str = "handle") -> Hold:
    return Hold(look(record, handler), since, since + seconds)


def test_a_line_in_ten_seconds(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """For each handler, with the number left out; one that was told while it went on is not told again."""
    monkeypatch.setattr(hold_log, "_PAUSE", 10.0)
    log = HoldLog()
    for at in range(12):
        log.ended(held(A, at, 0.3), at + 0.3)
    log.ended(held(B, 5, 0.3, "another"), 5.3)
    log.goes_on(held(A, 30, 1.0), 31.0)
    log.goes_on(held(A, 30, 1.5), 31.5)
    log.ended(held(A, 30, 12.0), 42.0)
    told = [line.getMessage().split(":")[1] for line in lines(caplog)]
    assert told == [
        " its handler handle held the event loop for 0.3 s",
        " its handler handle held the event loop for 0.3 s (9 more lines about it left out)",
        " its handler another held the event loop for 0.3 s",
        " its handler handle holds the event loop, for 1 s now, and goes on (1 more lines about it left out)",
    ]


def test_holds_are_remembered_for_a_minute() -> None:
    """The longest of each handler, the longest first, and how many there were."""
    recent = Recent()
    recent.ended([held(A, 0.0, 0.3), held(A, 1.0, 0.5), held(B, 2.0, 2.0, "another")])
    assert [(worst.hold.seconds, worst.times) for worst in recent.worst(5.0)] == [(2.0, 1), (0.5, 2)]
    assert [worst.times for worst in recent.worst(61.0)] == [1, 1]
    assert recent.worst(70.0) == []
    recent.goes_on(held(B, 60.0, 9.0))
    assert [worst.hold.seconds for worst in recent.worst(70.0)] == [9.0]
