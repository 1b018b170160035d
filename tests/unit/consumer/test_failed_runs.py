"""What ends a run with an error: a group that cannot start, tasks that are cancelled, handlers that raise."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel import Batch, batches
from aioparallel.config.policies import FailurePolicy, RetryPolicy
from aioparallel.records.errors import (
    BrokerUnreachable,
    ConsumerStateError,
    NoCommittedOffset,
    NotAuthorized,
    RecordStopped,
    TopicNotFound,
)
from aioparallel.records.record import Record
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.memory.consuming import GROUP, Seen, committed, consumer_of, produce
from tests.support.waiting import until


async def test_error_reset_ends_the_run(broker: InMemoryBroker) -> None:
    """auto_offset_reset="error" without a committed offset raises, naming partition and group."""
    async with asyncio.timeout(10), consumer_of(broker, auto_offset_reset="error") as consumer:
        with pytest.raises(NoCommittedOffset, match=f"t-0: group '{GROUP}'"):
            await consumer.run(Seen())


async def test_missing_topic_is_one_clear_error_and_creates_nothing(broker: InMemoryBroker) -> None:
    """Opening names the topics that do not exist."""
    consumer = consumer_of(broker, ["t", "nope"])
    with pytest.raises(TopicNotFound, match="nope"):
        await consumer.__aenter__()
    assert not broker.partitions_of(["nope"])


async def test_unreachable_broker_is_one_clear_error(broker: InMemoryBroker) -> None:
    """Opening fails within connect_timeout."""
    broker.faults.always(Request.CONNECT, Fault(is_request_lost=True))
    with pytest.raises(BrokerUnreachable):
        await consumer_of(broker, connect_timeout=0.2).__aenter__()


async def test_refused_group_is_one_clear_error(broker: InMemoryBroker) -> None:
    """A group that may not be joined ends the run."""
    broker.deny_group(GROUP)
    async with asyncio.timeout(10), consumer_of(broker) as consumer:
        with pytest.raises(NotAuthorized, match=GROUP):
            await consumer.run(Seen())


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("suspends", [False, True])
async def test_keyboard_interrupt_in_a_handler_ends_the_run(
    broker: InMemoryBroker, together: bool, suspends: bool
) -> None:
    """KeyboardInterrupt comes out of run(); the record is not committed, nor is any of a batch."""
    produce(broker, [b"a", b"b"])

    async def handle(record: Record) -> None:
        if suspends:
            await asyncio.sleep(0.01)
        if record.offset == 1:
            raise KeyboardInterrupt

    async def handle_batch(batch: Batch[Record]) -> None:
        for record in batch:
            await handle(record)

    caught: BaseException | None = None
    async with asyncio.timeout(10), consumer_of(broker) as consumer:
        try:
            await consumer.run(batches(handle_batch, size=2, linger=0.01) if together else handle)
        except KeyboardInterrupt as error:
            caught = error
    assert isinstance(caught, KeyboardInterrupt)
    assert committed(broker) == (0 if together else 1)


@pytest.mark.parametrize("suspends", [False, True])
async def test_generator_exit_of_a_batch_handler_ends_the_run(broker: InMemoryBroker, suspends: bool) -> None:
    """As that of a handler does; all of the batch goes back."""
    produce(broker, [b"a", b"b"])

    async def handle(batch: Batch[Record]) -> None:
        if suspends:
            await asyncio.sleep(0)
        raise GeneratorExit

    async with asyncio.timeout(10), consumer_of(broker) as consumer:
        running = asyncio.create_task(consumer.run(batches(handle, size=2, linger=0.01)))
        await asyncio.wait({running})
        assert isinstance(running.exception(), GeneratorExit)
    assert committed(broker) == 0


async def test_a_retry_function_that_raises_ends_the_run(broker: InMemoryBroker) -> None:
    """With its error, which says whose fate it was to decide; nothing of that record is committed."""
    produce(broker, [b"a"])

    async def handle(record: Record) -> None:
        raise ValueError("no such customer")

    def retry(record: Record, error: Exception, attempts: int) -> float:
        raise ZeroDivisionError

    async with asyncio.timeout(10), consumer_of(broker, failures=FailurePolicy(retry=retry)) as consumer:
        with pytest.raises(ZeroDivisionError) as caught:
            await consumer.run(handle)
    assert "while deciding what becomes of" in caught.value.__notes__[0]
    assert "no such customer" in caught.value.__notes__[0]
    assert committed(broker) == 0


@pytest.mark.parametrize("together", [False, True])
async def test_a_retry_function_that_exits_ends_the_run_at_once(broker: InMemoryBroker, together: bool) -> None:
    """No drain waits for the record, whose handler has ended."""
    produce(broker, [b"a", b"b"])

    def retry(record: Record, error: Exception, attempts: int) -> float:
        raise GeneratorExit("of a generator that it closes")

    async def fails(record: Record | Batch[Record]) -> None:
        raise ValueError("no")

    time = asyncio.get_running_loop().time
    began = time()
    with pytest.raises(GeneratorExit):
        async with consumer_of(broker, failures=FailurePolicy(retry=retry)) as consumer:
            await consumer.run(batches(fails, size=2) if together else fails)
    assert time() - began < 10
    assert consumer.stats().in_flight == 0
    assert committed(broker) == 0


@pytest.mark.parametrize("name", ["fetcher", "committer", "opener"])
async def test_a_task_that_is_cancelled_from_outside_ends_the_run(broker: InMemoryBroker, name: str) -> None:
    """Otherwise it would be a consumer that reads, or commits, nothing more, and says that all is well."""
    if name == "opener":
        broker.faults.always(Request.OFFSET_FETCH, Fault(is_request_lost=True))
    produce(broker, [b"a"] * 10)
    async with consumer_of(broker) as consumer:
        running = asyncio.create_task(consumer.run(Seen()))
        await until(lambda: found(name))
        found(name)[0].cancel()
        with pytest.raises(ConsumerStateError, match=f"aioparallel-{name} was cancelled"):
            async with asyncio.timeout(5):
                await running


@pytest.mark.parametrize("together", [False, True])
async def test_what_a_worker_runs_that_is_cancelled_from_outside_runs_again(
    broker: InMemoryBroker, together: bool
) -> None:
    """In another one: somebody has cancelled all tasks of the loop, say. A batch as a whole."""
    produce(broker, [b"a", b"b"])
    calls: list[int] = []

    async def handle(records: Record | Batch[Record]) -> None:
        calls.append(len(records) if isinstance(records, Batch) else 1)
        if len(calls) <= (1 if together else 2):
            await asyncio.sleep(60)

    async with asyncio.timeout(10), consumer_of(broker, until="end") as consumer:
        handler = batches(handle, size=2, linger=0.01) if together else handle
        running = asyncio.create_task(consumer.run(handler))
        await until(lambda: sum(calls) == 2)
        for worker in found("worker"):
            worker.cancel()
        await running
    assert calls == ([2, 2] if together else [1] * 4)
    assert committed(broker) == 2


def found(name: str) -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == f"aioparallel-{name}"]


async def test_what_fails_after_the_end_of_a_run_is_told_once(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """When a record stops the run, those in flight beside it fail as well: one line at ERROR tells of all of them."""
    broker.create_topic("many")
    produce(broker, [b"%d" % n for n in range(50)], topic="many")

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    once = FailurePolicy(retry=RetryPolicy(max_attempts=1))
    async with consumer_of(broker, "many", max_concurrency=50, failures=once) as consumer:
        with pytest.raises(RecordStopped):
            await consumer.run(handle)
    late = [one for one in caplog.records if getattr(one, "action", "") == "late_failure" and one.levelname == "ERROR"]
    assert len(late) == 1
