"""Two drains of one source: a handler that was cancelled for the first has its grace in the second as well."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel import Record
from aioparallel.config.handling import Handling
from aioparallel.config.policies import RetryBudget, RetryPolicy
from aioparallel.engine.run.processor import Processor
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.group.rebalancer import CANCEL_GRACE
from aioparallel.handlers.stack import Stack
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import committed, consumer_of, produce


async def drained(cleanup: float, first: float, second: float, *, grace: float = 2.0) -> tuple[float, float]:
    """When two drains of a source with one handler have returned. They begin at 0 and cancel after ``first`` and
    ``second`` seconds. ``cleanup``: seconds that the handler needs to end after that."""
    started = asyncio.Event()

    async def handle(record: Record) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(cleanup)

    loop = asyncio.get_running_loop()
    processor = Processor(Stack(handle), Handling(), RetryBudget(RetryPolicy(), "stop"), Signals())
    source = Source("s")
    processor.admit(source, [Record("t", 0, 0, b"k", b"v")])
    await started.wait()
    began = loop.time()

    async def drain(seconds: float) -> float:
        await processor.drain([source], seconds, grace)
        return loop.time() - began

    returned = await asyncio.gather(drain(first), drain(second))
    await processor.close(grace)
    return returned[0], returned[1]


@pytest.mark.parametrize("second", [0.0, 0.2, 0.3, 1.0])
async def test_both_wait_for_a_handler_that_ends_within_its_grace(second: float) -> None:
    """The second one returned at once where the first had cancelled the handler already."""
    ended = min(0.2, second) + 0.5
    assert await drained(0.5, 0.2, second) == pytest.approx((ended, ended), abs=0.01)


async def test_the_grace_begins_with_the_cancellation() -> None:
    """A handler that takes longer is not waited for twice: both return when its grace is over."""
    assert await drained(60, 0.2, 1.0) == pytest.approx((2.2, 2.2), abs=0.01)


async def test_a_drain_after_the_grace_returns_at_once() -> None:
    assert await drained(60, 0.2, 5.0) == pytest.approx((2.2, 5.0), abs=0.01)


async def test_a_hurried_stop_during_the_grace(broker: InMemoryBroker) -> None:
    """The drain is broken off, and the settle that follows waits for the handler that the drain has cancelled: what it
    completes is committed."""
    produce(broker, [b"a"])
    started = asyncio.Event()
    needs = 0.8 * CANCEL_GRACE

    async def handle(record: Record) -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(needs)

    consumer = consumer_of(broker, drain_timeout=1.0)
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(handle))
        await started.wait()
        consumer.stop()
        await asyncio.sleep(1.0 + needs / 2)  # the drain has cancelled the handler
        consumer.stop(drain=False)
        await running
        assert consumer.stats().succeeded == 1
    assert committed(broker) == 1
