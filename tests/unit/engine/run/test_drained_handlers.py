"""What a stop or a rebalance cancels is no failure of its record, whatever the handler makes of the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import pytest

from aioparallel import FailurePolicy, Outgoing, Record, RetryPolicy
from aioparallel.handlers.batches import Batch, batches
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until

AT_ONCE = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead")


class OfItsOwn(Exception):
    """What a handler makes of a CancelledError."""


class Running:
    """Counts what has begun to wait."""

    def __init__(self) -> None:
        self.count = 0

    async def forever(self) -> None:
        """Wait until it is cancelled."""
        self.count += 1
        await asyncio.Event().wait()


def another_error(running: Running) -> Any:
    async def handle(record: Record) -> None:
        try:
            await running.forever()
        except BaseException as error:
            raise OfItsOwn from error

    return handle


def a_group(running: Running) -> Any:
    async def handle(record: Record) -> None:
        try:
            await running.forever()
        except BaseException as error:
            raise BaseExceptionGroup("several", [error, OfItsOwn()]) from None

    return handle


def a_generator(running: Running) -> Any:
    async def handle(record: Record) -> AsyncIterator[Outgoing]:
        yield Outgoing("out", b"first")
        try:
            await running.forever()
        except BaseException as error:
            raise OfItsOwn from error

    return handle


def invalid_output(running: Running) -> Any:
    async def handle(record: Record) -> Any:
        try:
            await running.forever()
        finally:
            raise OfItsOwn

    return handle


def a_batch(running: Running) -> Any:
    async def handle(batch: Batch[Record]) -> None:
        try:
            await running.forever()
        except BaseException as error:
            raise OfItsOwn from error

    return batches(handle, size=3, linger=0.01, by="partition")


def records_of_a_batch(running: Running) -> Any:
    async def handle(batch: Batch[Record]) -> None:
        try:
            await running.forever()
        except BaseException:
            for record in batch:
                batch.fail(record, OfItsOwn())

    return batches(handle, size=3, linger=0.01, by="partition")


def records_of_a_batch_with_outputs(running: Running) -> Any:
    async def handle(batch: Batch[Record]) -> dict[Record, Outgoing]:
        first, *others = batch
        try:
            await running.forever()
        except BaseException:
            for record in others:
                batch.fail(record, OfItsOwn())
        return {first: Outgoing("out", b"done")}

    return batches(handle, size=3, linger=0.01, by="partition")


HANDLERS: list[Callable[[Running], Callable[[Any], Awaitable[object]]]] = [
    another_error,
    a_group,
    a_generator,
    invalid_output,
    a_batch,
    records_of_a_batch,
    records_of_a_batch_with_outputs,
]


def broker_of(count: int) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("t", 2)
    broker.create_topic("dead")
    broker.create_topic("out")
    for partition in range(2):
        produce(broker, [b"%d" % n for n in range(count)], partition)
    return broker


@pytest.mark.parametrize("isolation", ["context", "task"])
@pytest.mark.parametrize("made", HANDLERS)
async def test_at_a_stop(made: Callable[[Running], Any], isolation: Literal["context", "task"]) -> None:
    """None is dead-lettered; all that was not completed is handled by the next member, at its first attempt."""
    broker, running = broker_of(3), Running()
    consumer = consumer_of(broker, failures=AT_ONCE, drain_timeout=0.1, isolation=isolation)
    async with asyncio.timeout(60), consumer:
        task = asyncio.create_task(consumer.run(made(running)))
        await until(lambda: running.count >= (2 if "batch" in made.__name__ else 6))
        consumer.stop()
        await task
        assert consumer.stats().failed_attempts == 0
    assert broker.records("dead") == []
    attempts: list[int] = []

    async def note(record: Record) -> None:
        attempts.append(record.attempt)

    async with asyncio.timeout(60), consumer_of(broker, until="end") as consumer:
        await consumer.run(note)
    assert set(attempts) == {1}
    done = len({record.value for record in broker.records("out")}) if made is records_of_a_batch_with_outputs else 0
    assert len(attempts) == 6 - 2 * done
    assert committed(broker) == 3


async def test_at_a_rebalance() -> None:
    """A member that joins gets a partition whose handlers make errors of their cancellation; they are its, and nothing
    is dead-lettered."""
    broker, running = broker_of(3), Running()
    consumer = consumer_of(broker, failures=AT_ONCE, drain_timeout=0.1)
    seen: list[int] = []

    async def note(record: Record) -> None:
        seen.append(record.offset)

    async with asyncio.timeout(60), consumer:
        task = asyncio.create_task(consumer.run(another_error(running)))
        await until(lambda: running.count == 6)
        async with consumer_of(broker, failures=AT_ONCE, drain_timeout=0.1) as other:
            second = asyncio.create_task(other.run(note))
            await until(lambda: sorted(seen) == [0, 1, 2])
            assert consumer.stats().failed_attempts == 0
            other.stop()
            await second
        consumer.stop()
        await task
    assert broker.records("dead") == []


async def test_a_deadline_is_a_failure_all_the_same() -> None:
    """``handler_timeout`` cancels, too."""
    broker, running = broker_of(1), Running()
    async with consumer_of(broker, failures=AT_ONCE, handler_timeout=0.05, until="end") as consumer:
        await consumer.run(another_error(running))
    assert len(broker.records("dead")) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_ends_a_process_is_told_in_a_drain(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """It is not taken for what the handler made of its cancellation."""
    broker, running = broker_of(1), Running()

    async def handle(record: Record) -> None:
        try:
            await running.forever()
        finally:
            raise kind

    consumer = consumer_of(broker, drain_timeout=0.1)
    async with asyncio.timeout(60), consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: running.count == 2)
        consumer.stop()
        await asyncio.wait([task])
    assert kind.__name__ in caplog.text
