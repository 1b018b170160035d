"""Workers: isolation of context and cancellation, whatever a handler does."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Literal

import pytest

from aioparallel.config.handling import Ordering
from aioparallel.config.options import Options
from aioparallel.config.policies import FailurePolicy, RetryPolicy
from aioparallel.records.errors import ConsumerStateError
from aioparallel.records.record import Record
from tests.support.engine.process import process

Isolation = Literal["context", "task"]
QUICK = RetryPolicy(first_delay=0.01, multiplier=1, jitter=0)
variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


@pytest.fixture(params=["context", "task"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    return "task" if request.param == "task" else "context"


def records(count: int, *, keys: int | None = None) -> Iterable[Record]:
    for i in range(count):
        yield Record("t", 0, i, None if keys is None else str(i % keys).encode())


async def run_all(
    handler: Callable[[Record], Awaitable[object]], count: int, isolation: Isolation = "context", concurrency: int = 1
) -> list[int]:
    """Run records through the handler; the offsets in the order in which they succeeded."""
    done: list[int] = []

    async def counted(record: Record) -> None:
        await handler(record)
        done.append(record.offset)

    options = Options(
        ordering=Ordering.UNORDERED,
        max_concurrency=concurrency,
        failures=FailurePolicy(retry=QUICK),
        isolation=isolation,
        drain_timeout=1,
    )
    async with asyncio.timeout(10):
        await process(records(count), counted, options)
    return done


@pytest.mark.parametrize("suspend", [False, True])
async def test_context_variables_do_not_leak(isolation: Isolation, suspend: bool) -> None:
    """What a handler sets is gone for the next record, and stays for itself across its awaits."""
    seen: list[tuple[int, int]] = []

    async def handle(record: Record) -> None:
        before = variable.get()
        variable.set(record.offset + 1)
        if suspend:
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        seen.append((before, variable.get()))

    await run_all(handle, 5, isolation)
    assert seen == [(0, i + 1) for i in range(5)]


async def test_timeouts_task_groups_and_generators_work_inside(isolation: Isolation) -> None:
    """asyncio.timeout, wait_for, TaskGroup and async generators see one task and one context."""

    async def numbers() -> AsyncIterator[int]:
        for i in range(3):
            await asyncio.sleep(0)
            yield i

    async def handle(record: Record) -> None:
        variable.set(record.offset)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(5), 0.001)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, i)) for i in range(3)]
        assert [task.result() for task in tasks] == [0, 1, 2]
        assert [i async for i in numbers()] == [0, 1, 2]
        assert variable.get() == record.offset

    assert sorted(await run_all(handle, 6, isolation, concurrency=3)) == list(range(6))


async def raises_cancelled(record: Record) -> None:
    raise asyncio.CancelledError


async def cancels_itself_and_returns(record: Record) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancels_itself_and_waits(record: Record) -> None:
    await cancels_itself_and_returns(record)
    await asyncio.sleep(5)


async def cancels_itself_after_waiting(record: Record) -> None:
    await asyncio.sleep(0)
    await cancels_itself_and_returns(record)


async def leaves_a_timeout_behind(record: Record) -> None:
    await asyncio.timeout(0).__aenter__()


async def leaves_a_fired_timeout_behind(record: Record) -> None:
    await asyncio.timeout(0).__aenter__()
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        return


async def awaits_a_cancelled_future(record: Record) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


BAD = [
    raises_cancelled,
    cancels_itself_and_returns,
    cancels_itself_and_waits,
    cancels_itself_after_waiting,
    leaves_a_timeout_behind,
    leaves_a_fired_timeout_behind,
    awaits_a_cancelled_future,
]


@pytest.mark.parametrize("bad", BAD, ids=lambda f: f.__name__)
@pytest.mark.parametrize("suspend", [False, True])
async def test_a_cancelling_handler_hurts_nobody_else(
    bad: Callable[[Record], Awaitable[None]], isolation: Isolation, suspend: bool
) -> None:
    """With one worker: whatever record 1 does to its task, it and every other record succeed, each in its own run.

    The others run once to their end. Record 1 misbehaves at its first attempt only.
    """
    ended: list[int] = []

    async def handle(record: Record) -> None:
        if record.offset == 1 and record.attempt == 1 and calls.count(1) < 3:
            calls.append(1)
            await bad(record)
            return
        if suspend:
            await asyncio.sleep(0.002)
        ended.append(record.offset)

    calls: list[int] = []
    done = await run_all(handle, 6, isolation)
    assert sorted(done) == list(range(6))
    assert sorted(set(ended) | {1}) == list(range(6))
    assert len(ended) == len(set(ended))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("suspend", [False, True])
async def test_keyboard_interrupt_and_system_exit_end_the_run(
    error: type[BaseException], isolation: Isolation, suspend: bool
) -> None:
    """They come out of the run itself, not through the event loop, and nothing starts after them."""
    started: list[int] = []

    async def handle(record: Record) -> None:
        started.append(record.offset)
        if suspend:
            await asyncio.sleep(0)
        if record.offset == 2:
            raise error

    caught: BaseException | None = None
    try:
        await run_all(handle, 50, isolation)
    except BaseException as found:  # pytest.raises would let KeyboardInterrupt end the session on a miss
        caught = found
    assert type(caught) is error
    assert started == [0, 1, 2]


async def test_failed_records_are_retried_in_their_lane() -> None:
    """A record that fails twice holds its lane until it succeeds; attempts count up; other lanes go on."""
    log: list[tuple[int, int]] = []

    async def handle(record: Record) -> None:
        log.append((record.offset, record.attempt))
        if record.offset == 0 and record.attempt < 3:
            raise ValueError("not yet")

    await process(records(6, keys=2), handle, Options(max_concurrency=4, failures=FailurePolicy(retry=QUICK)))
    lane = [entry for entry in log if entry[0] % 2 == 0]
    assert lane == [(0, 1), (0, 2), (0, 3), (2, 1), (4, 1)]
    assert [entry for entry in log if entry[0] % 2] == [(1, 1), (3, 1), (5, 1)]
    assert log.index((5, 1)) < log.index((0, 3))


async def test_concurrency_is_reached_and_never_passed() -> None:
    """In flight gets to max_concurrency and no higher (I4)."""
    running, peak = 0, 0

    async def handle(record: Record) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.002)
        running -= 1

    await run_all(handle, 400, concurrency=50)
    assert peak == 50


async def test_buffer_bound_holds() -> None:
    """A slow handler keeps at most max_buffered records read from the source beside those in flight."""
    pulled, ended, ahead = 0, 0, 0

    def source() -> Iterable[Record]:
        nonlocal pulled
        for record in records(300):
            pulled += 1
            yield record

    async def handle(record: Record) -> None:
        nonlocal ended, ahead
        ahead = max(ahead, pulled - ended)
        await asyncio.sleep(0)
        ended += 1

    await process(source(), handle, Options(ordering=Ordering.UNORDERED, max_concurrency=3, max_buffered=20))
    assert ended == 300
    assert ahead <= 23


async def test_handlers_that_never_suspend_let_the_loop_turn() -> None:
    """The event loop gets its turn every few records even if no handler ever suspends."""
    turns, longest = 0, 0
    since_turn = 0

    async def handle(record: Record) -> None:
        nonlocal since_turn, longest
        since_turn += 1
        longest = max(longest, since_turn)
        until = time.perf_counter() + 0.0002
        while time.perf_counter() < until:
            pass

    async def turning() -> None:
        nonlocal turns, since_turn
        while True:
            turns += 1
            since_turn = 0
            await asyncio.sleep(0)

    task = asyncio.create_task(turning())
    await process(records(1_000), handle, Options(ordering=Ordering.UNORDERED, max_concurrency=10))
    task.cancel()
    assert longest <= 2 * 16 + 10  # a turn of each of two workers, and one record for each other that is awake
    assert turns > 50


async def test_closing_waits_for_no_worker_that_lets_the_loop_turn() -> None:
    """The last records used the slice up: when the worker goes on the pool is closed, and it must not wait for work."""

    async def handle(record: Record) -> None:
        until = time.perf_counter() + 0.0002
        while time.perf_counter() < until:
            pass

    now = asyncio.get_running_loop().time
    began = now()
    for count in (*range(99, 109), *range(191, 201)):
        options = Options(ordering=Ordering.UNORDERED, max_concurrency=10, drain_timeout=30)
        await process(records(count), handle, options)
    assert now() - began < 1


async def test_a_plain_function_is_refused() -> None:
    """A handler that returns no awaitable ends the run with a message that says what to write."""

    def handle(record: Record) -> None:
        pass

    with pytest.raises(ConsumerStateError, match="async def"):
        await process(records(1), handle)  # type: ignore[arg-type]


async def test_any_awaitable_will_do() -> None:
    """A function returning a future, or an object with an async __call__, is a handler."""

    class Callee:
        calls = 0

        async def __call__(self, record: Record) -> None:
            Callee.calls += 1

    def future(record: Record) -> Awaitable[None]:
        return asyncio.ensure_future(asyncio.sleep(0))

    await process(records(2), Callee())
    await process(records(2), future)
    assert Callee.calls == 2
