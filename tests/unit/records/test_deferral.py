"""record.defer(): completed, failed or rejected later; order and bounds hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aioparallel import Deferral, FailurePolicy, Outgoing, Record, RetryPolicy
from aioparallel.records.errors import ConfigurationError, ConsumerStateError, RecordStopped
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import QUICK, committed, consumer_of, produce
from tests.support.waiting import until


def broker_of(keys: list[bytes | None]) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("t")
    broker.create_topic("out")
    produce(broker, keys)
    return broker


async def test_a_deferred_record_holds_its_lane_and_its_place_in_flight() -> None:
    """Until it is completed its key waits and it counts in flight; then the next of its key starts."""
    broker = broker_of([b"a", b"a", b"b", b"c"])
    deferred: dict[int, Deferral] = {}

    async def handle(record: Record) -> None:
        deferred[record.offset] = record.defer(timeout=10)

    consumer = consumer_of(broker, until="end", max_concurrency=2)
    async with consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: len(deferred) == 2)
        assert sorted(deferred) == [0, 2]
        assert consumer.stats().in_flight == 2
        assert deferred[0].complete()
        assert not deferred[0].fail(ValueError("too late"))
        await until(lambda: len(deferred) == 3)
        await consumer.commit_now()
        assert committed(broker) == 1
        completed = {0}
        while len(completed) < 4:
            await until(lambda: deferred.keys() - completed)
            for offset in deferred.keys() - completed:
                completed.add(offset)
                deferred[offset].complete()
        await running
    assert committed(broker) == 4


@pytest.mark.parametrize(
    ("end", "type_", "attempts"),
    [
        (lambda deferral: deferral.fail(KeyError("x")), "KeyError", 2),
        (lambda deferral: deferral.reject("never"), "aioparallel.errors.Reject", 1),
        (lambda deferral: None, "aioparallel.errors.DeferralTimeout", 2),
    ],
)
async def test_it_may_fail_be_rejected_or_run_out_of_time(
    end: Callable[[Deferral], object], type_: str, attempts: int
) -> None:
    """Each follows the failure policy."""
    broker = broker_of([b"a"])
    failures: list[tuple[str, int]] = []

    async def put(record: Record, error: Exception) -> None:
        assert record.last_failure is not None
        failures.append((record.last_failure.type, record.attempt))

    async def handle(record: Record) -> None:
        deferral = record.defer(timeout=0.05)
        asyncio.get_running_loop().call_soon(end, deferral)

    policy = FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=2), dead_letter=put)
    consumer = consumer_of(broker, until="end", failures=policy)
    async with consumer:
        await consumer.run(handle)
    assert failures == [(type_, attempts)]


async def test_it_may_be_completed_from_another_thread_with_outputs() -> None:
    """What it is completed with is produced as if the handler had returned it."""
    broker = broker_of([b"a", b"b"])

    async def handle(record: Record) -> None:
        deferral = record.defer(timeout=10)
        threading.Thread(target=deferral.complete, args=(Outgoing("out", record.value),)).start()

    consumer = consumer_of(broker, until="end")
    async with consumer:
        await consumer.run(handle)
    assert sorted(record.value or b"" for record in broker.records("out")) == [b"0", b"1"]


async def test_a_handler_that_raises_after_defer_has_failed() -> None:
    """The handle of that attempt is dead; the next attempt may defer again."""
    broker = broker_of([b"a"])
    handles: list[Deferral] = []

    async def handle(record: Record) -> None:
        handles.append(record.defer(timeout=10))
        if record.attempt == 1:
            raise ValueError
        asyncio.get_running_loop().call_later(0.01, handles[1].complete)

    consumer = consumer_of(broker, until="end", failures=FailurePolicy(retry=QUICK))
    async with consumer:
        await consumer.run(handle)
        assert consumer.stats().succeeded == 1
    assert not handles[0].complete()


async def test_a_stray_cancellation_of_a_deferral_leaves_nothing_to_the_next_start() -> None:
    """A cancellation that hits a worker while it waits for a deferral starts the record once more: what that start
    returns is its outcome, and the deferral of before has no say."""
    broker = broker_of([b"a"])
    starts = 0

    async def handle(record: Record) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            task = asyncio.current_task()
            assert task is not None
            record.defer(timeout=60)
            asyncio.get_running_loop().call_later(0.01, task.cancel)

    consumer = consumer_of(broker, until="end")
    async with consumer:
        await consumer.run(handle)
    stats = consumer.stats()
    assert (starts, stats.succeeded, stats.failed_attempts) == (2, 1, 0)


async def test_a_drain_cancels_what_is_deferred_too_long() -> None:
    """At the drain deadline the wait ends; the record is not committed."""
    broker = broker_of([b"a"])
    handles: list[Deferral] = []

    async def handle(record: Record) -> None:
        handles.append(record.defer(timeout=60))

    consumer = consumer_of(broker, drain_timeout=0.1)
    async with asyncio.timeout(10), consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: handles)
        consumer.stop()
        await running
    assert committed(broker) == 0
    assert not handles[0].complete()


@pytest.mark.parametrize("seconds", [0, -1, True, 1e9])
async def test_a_wrong_timeout_is_refused(seconds: float) -> None:
    """More than 0 seconds, and not for ever."""
    with pytest.raises(ConfigurationError, match="defer timeout"):
        Record("t", 0, 0).defer(seconds)


async def test_defer_once_an_attempt() -> None:
    """A second call would leave the first handle without meaning."""
    record = Record("t", 0, 0)
    record.defer(1)
    with pytest.raises(ConsumerStateError, match="once in an attempt"):
        record.defer(1)


async def one_output(record: Record) -> object:
    record.defer(timeout=10).complete()
    return Outgoing("out", b"lost?")


async def several_outputs(record: Record) -> object:
    record.defer(timeout=10).complete()
    return [Outgoing("out", b"lost?")]


async def yields_outputs(record: Record) -> AsyncIterator[Outgoing]:
    record.defer(timeout=10).complete()
    yield Outgoing("out", b"lost?")


async def returns_iterator(record: Record) -> object:
    return yields_outputs(record)


@pytest.mark.parametrize("handler", [one_output, several_outputs, yields_outputs, returns_iterator])
async def test_what_a_handler_returns_beside_a_deferral_is_not_dropped_in_silence(handler: Any) -> None:
    """Two places that could say what leaves: the attempt fails at once, and the message tells where outputs belong."""
    broker = broker_of([b"a"])
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1))
    async with consumer_of(broker, until="end", failures=failures) as consumer:
        with pytest.raises(RecordStopped, match=r"deferred, so its outputs belong to complete\(outputs\)"):
            await consumer.run(handler)
    assert broker.records("out") == []


async def test_a_generator_that_yields_nothing_may_defer() -> None:
    """There is nothing to be dropped; neither is there with results()."""
    broker = broker_of([b"a"])

    async def handle(record: Record) -> AsyncIterator[Outgoing]:
        record.defer(timeout=10).complete(Outgoing("out", b"later"))
        if record.offset:
            yield Outgoing("out", b"never")

    async with consumer_of(broker, until="end") as consumer:
        await consumer.run(handle)
    assert [record.value for record in broker.records("out")] == [b"later"]


@pytest.mark.parametrize("returned", [None, "lost?"])
async def test_results_come_from_the_handler_or_from_its_deferral(returned: str | None) -> None:
    """With results() too a value beside a deferral is refused, and None is not one."""
    broker = broker_of([b"a"])

    async def handle(record: Record) -> str | None:
        record.defer(timeout=10).complete("later")
        return returned

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="skip")
    async with consumer_of(broker, until="end", failures=failures) as consumer:
        found = [result.value async for result in consumer.results(handle)]
    assert found == (["later"] if returned is None else [])
