"""handler_timeout: one handler is cancelled, nothing else notices."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

import pytest

from aioparallel import FailurePolicy, Record, RetryPolicy
from aioparallel.config.options import Options
from aioparallel.engine.watch.cancellation import CancelReason, Worker
from aioparallel.engine.watch.deadlines import Watch
from aioparallel.testing.memory import InMemoryBroker
from tests.support.engine.process import process
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until

ONCE = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="skip")


def broker_of(keys: list[bytes | None]) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("t")
    produce(broker, keys)
    return broker


@pytest.mark.parametrize("isolation", ["context", "task"])
async def test_a_handler_that_hangs_is_cancelled_and_its_record_fails(isolation: Literal["context", "task"]) -> None:
    """HandlerTimeout after its seconds, its own clean-up done; the next record in the same worker is not hit."""
    broker = broker_of([b"a", b"b", b"c"])
    errors: list[str] = []
    cleaned: list[int] = []

    async def handle(record: Record) -> None:
        if record.key == b"b" and record.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(record.offset)
        if record.last_failure:
            errors.append(record.last_failure.type)
        await asyncio.sleep(0.02)

    now = asyncio.get_running_loop().time
    began = now()
    consumer = consumer_of(broker, until="end", handler_timeout=0.1, max_concurrency=1, isolation=isolation)
    async with consumer:
        await consumer.run(handle)
        stats = consumer.stats()
    assert (stats.succeeded, stats.failed_attempts) == (3, 1)
    assert errors == ["aioparallel.errors.HandlerTimeout"]
    assert cleaned == [1]
    assert now() - began < 0.5


async def test_each_of_many_gets_its_own_deadline() -> None:
    """Handlers that start at different times are cancelled each at its own; those that end in time are not."""
    broker = broker_of([None] * 40)
    lasted: list[float] = []
    now = asyncio.get_running_loop().time

    async def handle(record: Record) -> None:
        began = now()
        try:
            await asyncio.sleep(0.001 * record.offset if record.offset % 2 else 60)
        except asyncio.CancelledError:
            lasted.append(now() - began)
            raise

    consumer = consumer_of(broker, until="end", handler_timeout=0.15, max_concurrency=7, failures=ONCE)
    async with consumer:
        await consumer.run(handle)
        assert (consumer.stats().succeeded, consumer.stats().skipped) == (20, 20)
    assert len(lasted) == 20
    assert 0.149 <= min(lasted) <= max(lasted) < 0.2


async def test_a_handler_that_returns_after_its_deadline_has_succeeded() -> None:
    """It took notice, and finished."""
    broker = broker_of([b"a", b"a", b"b"])

    async def handle(record: Record) -> None:
        if record.offset == 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        await asyncio.sleep(0.01)

    consumer = consumer_of(broker, until="end", handler_timeout=0.1, max_concurrency=2, failures=ONCE)
    async with consumer:
        await consumer.run(handle)
        assert consumer.stats().succeeded == 3


async def test_a_handler_that_ignores_cancellation_is_named_and_blocks_no_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log and in health(), with its offset; other keys go on; closing keeps its deadline."""
    broker = broker_of([b"a", b"b", b"c"])
    let_go = asyncio.Event()
    now = asyncio.get_running_loop().time

    async def handle(record: Record) -> None:
        while record.offset == 1 and not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    consumer = consumer_of(broker, handler_timeout=0.05, drain_timeout=0.2)
    async with asyncio.timeout(20):
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handle))
            await until(lambda: consumer._engine and consumer.health().problems)
            (problem,) = consumer.health().problems
            assert problem.kind == "handler_stuck"
            assert "t-0 offset 1" in problem.message
            assert consumer.stats().succeeded == 2
            began = now()
            consumer.stop()
            await running
        assert now() - began < 1.5  # the drain, and a second of grace
    assert "handler of t-0 offset 1 still runs although it was cancelled" in caplog.text
    assert committed(broker) == 1
    let_go.set()
    await asyncio.sleep(0)


async def test_waiting_for_room_or_a_deferral_is_not_the_handlers_time() -> None:
    """Only the handler itself has the deadline."""
    broker = broker_of([b"a"])

    async def handle(record: Record) -> None:
        deferral = record.defer(timeout=5)
        asyncio.get_running_loop().call_later(0.3, deferral.complete)

    consumer = consumer_of(broker, until="end", handler_timeout=0.05, failures=ONCE)
    async with consumer:
        await consumer.run(handle)
        assert consumer.stats().succeeded == 1


async def test_a_topic_that_hangs_leaves_the_others_their_slots() -> None:
    """Of five topics one hangs for ever: the others do their work while its handlers wait for their deadline."""
    done: list[float] = []
    loop = asyncio.get_running_loop()

    async def handle(record: Record) -> None:
        if record.topic == "t0":
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)
        done.append(loop.time())

    many = [Record(f"t{n % 5}", 0, n // 5, b"%d" % n) for n in range(3_000)]
    began = loop.time()
    running = asyncio.ensure_future(
        process(many, handle, Options(max_concurrency=50, handler_timeout=30, drain_timeout=0))
    )
    async with asyncio.timeout(20):
        while len(done) < 2_400:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    # Forty slots for them: 2,400 records of 10 ms take 0.6 s. With the slots in turns only, all of them would hang.
    assert done[-1] - began < 1


class Struck(Worker):
    """Notes that it was struck, and goes on."""

    __slots__ = ("struck",)

    def __init__(self) -> None:
        super().__init__()
        self.struck = False
        self.record = Record("t", 0, 0)

    def cancel(self, reason: CancelReason, now: float) -> None:
        self.struck = True


@pytest.mark.parametrize("others", [0, 1])
async def test_a_watch_that_is_closed_strikes_nobody(others: int) -> None:
    """Nor whom what it has waited for comes back to afterwards, whose time would begin anew."""
    watch, running, late, waiting = Watch(1.0), Struck(), Struck(), [Struck() for _ in range(others)]
    watch.enter(running)
    await asyncio.sleep(1.1)
    assert running.struck
    for worker in waiting:
        watch.enter(worker)
    watch.close()
    watch.restart(late)
    await asyncio.sleep(5)
    assert not any(worker.struck for worker in (late, *waiting))
