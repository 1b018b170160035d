"""How workers end, and what one start must not leave to the next."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from aioparallel.config.handling import Ordering
from aioparallel.config.options import Options
from aioparallel.config.policies import FailurePolicy, RetryPolicy
from aioparallel.engine.run.processor import Processor
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.handlers.stack import Stack
from aioparallel.records.errors import RecordStopped
from aioparallel.records.record import Record
from tests.support.engine.process import process
from tests.support.engine.taking import take
from tests.support.virtual_time import VirtualLoop

ONCE = FailurePolicy(retry=RetryPolicy(max_attempts=1))


def records(count: int) -> list[Record]:
    return [Record("t", 0, offset) for offset in range(count)]


def run_virtually(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Run it in virtual time; the seconds it took there."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        began = runner.get_loop().time()
        runner.run(work())
        return runner.get_loop().time() - began


def test_a_swallowed_deadline_is_gone_with_its_record() -> None:
    """A handler that swallows its time-out and takes the cancellation back leaves nothing on its worker: the next
    records have their deadlines, and nobody is called stuck."""
    timed_out: list[int] = []

    async def handle(record: Record) -> None:
        if record.attempt > 1:
            timed_out.append(record.offset)
            return
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if record.offset:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()

    async def main() -> None:
        options = Options(
            ordering=Ordering.UNORDERED,
            max_concurrency=1,
            handler_timeout=1.0,
            failures=FailurePolicy(retry=RetryPolicy(first_delay=0.1)),
        )
        async with asyncio.timeout(60):
            await process(records(3), handle, options)

    run_virtually(main)
    assert timed_out == [1, 2]


def test_a_run_that_stops_for_a_record_waits_for_nobody() -> None:
    """Workers that idle where a slice has ended are not waited for: the failure is raised at once, not after
    ``drain_timeout``, and no task is left."""

    async def handle(record: Record) -> None:
        time.sleep(0.001)  # noqa: ASYNC251 - a slice is over with each of them
        if record.offset % 2:
            await asyncio.sleep(0)
        if record.offset == 150:
            raise ValueError

    async def main() -> None:
        options = Options(ordering=Ordering.UNORDERED, max_concurrency=10, failures=ONCE, drain_timeout=20)
        with pytest.raises(RecordStopped):
            await process(records(200), handle, options)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    assert run_virtually(main) < 1.0


def test_a_worker_cancelled_when_all_is_done_still_tells() -> None:
    """A worker whose task is cancelled while it lets the loop turn, when what was ready is dropped: that nothing is
    left to do is told all the same."""

    async def handle(record: Record) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        loop.call_soon(task.cancel)
        loop.call_soon(dropping.pop())
        time.sleep(0.001)  # noqa: ASYNC251 - the slice is over

    dropping: list[Callable[[], object]] = []

    async def main() -> None:
        signals = Signals()
        idle = asyncio.Event()
        signals.idle = idle.set
        processor = Processor(Stack(handle), Options(max_concurrency=1), FailurePolicy().retry_budget, signals)
        source = Source("s")
        dropping.append(lambda: processor.scheduler.drop(source))
        processor.admit(source, records(2))
        async with asyncio.timeout(60):
            await idle.wait()
        assert processor.scheduler.unfinished == 0
        await processor.close(1.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(main)


@pytest.mark.parametrize("suspends", [False, True])
def test_generator_exit_of_a_handler_leaves_nothing_in_flight(suspends: bool) -> None:
    """A handler that raises GeneratorExit ends the run with it, before and after it has suspended, and its record is
    not in flight any more."""

    async def handle(record: Record) -> None:
        if suspends:
            await asyncio.sleep(0)
        raise GeneratorExit

    async def main() -> None:
        signals = Signals()
        ended: list[BaseException] = []
        signals.fatal = ended.append
        processor = Processor(Stack(handle), Options(max_concurrency=1), FailurePolicy().retry_budget, signals)
        source = Source("s")
        processor.admit(source, records(1))
        async with asyncio.timeout(60):
            while not ended:
                await asyncio.sleep(0)
        assert isinstance(ended[0], GeneratorExit)
        assert (processor.scheduler.begun, processor.scheduler.unfinished) == (0, 1)
        processor.scheduler.pause()
        await processor.close(1.0)

    run_virtually(main)


@pytest.mark.parametrize("begun", ["in_flight", "producing", "parked"])
def test_dropping_takes_time_by_what_the_source_has(begun: str) -> None:
    """Five hundred sources with 190 records each that have begun, or are parked, are dropped in one step: what one has
    is looked at, never what all have."""
    scheduler = Scheduler()
    sources = [Source(number) for number in range(500)]
    for number, source in enumerate(sources):
        scheduler.admit(source, [Record("t", number, offset, b"%d" % offset) for offset in range(190)])
    while (record := take(scheduler)) is not None:
        if begun == "producing":
            scheduler.produce(record)
        elif begun == "parked":
            scheduler.park(record)
    assert scheduler.unfinished == 95_000
    gc.disable()  # what is left of other tests is not the matter here
    try:
        took = time.process_time()
        for source in sources:
            scheduler.drop(source)
        took = time.process_time() - took
    finally:
        gc.enable()
    print(f"{begun}: {took * 1e3:.1f} ms")
    assert scheduler.unfinished == (0 if begun == "parked" else 95_000)
    assert took < 0.5


def test_nothing_starts_after_a_close_between_two_slices() -> None:
    """A worker that lets the event loop turn while it is closed starts nothing more: nobody would cancel that, and the
    close would wait its whole time-out for it."""
    started: list[int] = []

    def source() -> Iterator[Record]:
        yield from records(100)
        raise ValueError("the end")

    async def handle(record: Record) -> None:
        started.append(record.offset)
        if record.offset < 30:
            time.sleep(0.0001)  # noqa: ASYNC251 - the slice is used up
        else:
            await asyncio.sleep(60)

    async def work() -> None:
        with pytest.raises(ValueError, match="the end"):
            await process(source(), handle, Options(drain_timeout=20))

    assert run_virtually(work) < 1
    assert started[-1] < 30


def _swallowing(record: Record) -> Coroutine[Any, Any, None]:
    """Swallows its time-out, and takes the cancellation back."""

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()

    return wait()


def test_an_iterator_has_the_deadline_anew_also_behind_a_swallowed_one() -> None:
    """What its handler did about the first deadline does not leave it without one."""
    attempts: list[int] = []

    async def hang() -> AsyncIterator[None]:
        await asyncio.sleep(3600)
        yield

    async def handle(record: Record) -> AsyncIterator[None] | None:
        attempts.append(record.attempt)
        if record.attempt > 1:
            return None
        await _swallowing(record)
        return hang()

    quick = FailurePolicy(retry=RetryPolicy(first_delay=0.1, jitter=0))

    async def work() -> None:
        await process(records(1), handle, Options(handler_timeout=2, failures=quick))

    assert run_virtually(work) < 5
    assert attempts == [1, 2]


def test_who_swallows_a_deadline_and_defers_is_not_stuck(caplog: pytest.LogCaptureFixture) -> None:
    """The handler has ended; that its record is deferred for longer is nothing to complain of."""

    async def handle(record: Record) -> None:
        deferral = record.defer(30)
        await _swallowing(record)
        asyncio.get_running_loop().call_later(10, deferral.complete)

    async def work() -> None:
        await process(records(1), handle, Options(handler_timeout=2))

    assert 11 < run_virtually(work) < 13
    assert not caplog.records
