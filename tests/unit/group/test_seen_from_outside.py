"""What health and statistics say of records that hold things up, and of runs that have ended."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from aioparallel import FailurePolicy, Outgoing, Producing, Record, RetryPolicy
from aioparallel.observe.health import Health, Problem, ProblemKind
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.memory.consuming import consumer_of, produce
from tests.support.waiting import until


@pytest.fixture
def broker() -> InMemoryBroker:
    made = InMemoryBroker()
    made.create_topic("t", 2)
    produce(made, [b"a", b"b", b"c"], 0)
    return made


async def test_who_is_in_flight_for_longest_is_named(broker: InMemoryBroker) -> None:
    """Where it is, since when, and in health after `stuck_after` where there is no deadline."""
    over = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.offset == 1:
            await over.wait()

    async with asyncio.timeout(30), consumer_of(broker, stuck_after=2.0) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine and (found := consumer.stats().oldest_in_flight) and found.seconds > 0.1)
        found = consumer.stats().oldest_in_flight
        assert found is not None
        assert (found.partition, found.offset, found.attempt) == (("t", 0), 1, 1)
        first = consumer.stats().partitions[0]
        assert first.oldest is not None
        assert consumer.stats().partitions[1].oldest is None
        assert consumer.health().healthy
        await until(lambda: consumer.health().problems)
        (problem,) = consumer.health().problems
        assert problem.kind == "long_handler"
        assert "t-0 offset 1: its handler has been running for 2 s" in problem.message
        assert consumer.health().ready
        over.set()
        await until(lambda: consumer.stats().succeeded == 3)
        assert consumer.stats().oldest_in_flight is None
        assert consumer.stats().partitions[0].oldest is None
        consumer.stop()
        await running


async def test_who_waits_for_room_for_its_outputs_is_as_old_as_its_start(broker: InMemoryBroker) -> None:
    """Its handler has returned at once, without an await; that is no long handler."""
    broker.create_topic("out", 1)
    broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", bytes(1_000))

    async with asyncio.timeout(30), consumer_of(broker, producing=Producing(max_unacknowledged_bytes=1)) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine and consumer.stats().in_flight)
        found = consumer.stats().oldest_in_flight
        assert found is not None
        assert found.seconds < 30
        assert consumer.health().healthy
        broker.faults.heal()
        await until(lambda: consumer.stats().succeeded == 3)
        consumer.stop()
        await running


async def test_the_longest_lane_is_named(broker: InMemoryBroker) -> None:
    """Where one has more than one record: its key, its length, and the offset of its first record. And each partition
    tells how many of the records it has read are not complete."""
    over = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.key in (b"b", b"long"):
            await over.wait()

    produce(broker, [b"b", b"long", b"long", b"long"], 0)
    async with asyncio.timeout(30), consumer_of(broker) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine and consumer.stats().in_flight == 2 and consumer.stats().succeeded == 2)
        found = consumer.stats().longest_lane
        assert found is not None
        assert (found.partition, found.key, found.length, found.head_offset) == (("t", 0), b"long", 3, 4)
        assert [partition.incompletes for partition in consumer.stats().partitions] == [5, 0]
        over.set()
        await until(lambda: consumer.stats().succeeded == 7)
        assert consumer.stats().longest_lane is None
        assert [partition.incompletes for partition in consumer.stats().partitions] == [0, 0]
        consumer.stop()
        await running


async def test_who_fails_again_and_again_is_named(broker: InMemoryBroker) -> None:
    """After ten failures, with what it fails with; others of the partition go on."""

    async def handle(record: Record) -> None:
        if record.offset == 1:
            raise ValueError("no such customer")

    policy = FailurePolicy(retry=RetryPolicy(first_delay=0.01, multiplier=1))
    async with asyncio.timeout(30), consumer_of(broker, failures=policy) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine and consumer.health().problems)
        (problem,) = consumer.health().problems
        assert problem.kind == "retrying"
        assert "t-0 offset 1 has failed 10 times" in problem.message
        assert "ValueError: no such customer; its key waits" in problem.message
        found = consumer.stats().longest_retrying
        assert found is not None
        assert (found.partition, found.offset) == (("t", 0), 1)
        assert found.failures >= 10
        assert consumer.health().ready
        assert not consumer.health().healthy
        consumer.stop()
        await running


@pytest.mark.parametrize("of", ["options", "handler"])
async def test_a_run_that_nobody_awaits_says_why_it_has_ended(
    broker: InMemoryBroker, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line at ERROR, with the cause; it is not live any more, and not ready."""

    async def handle(record: Record) -> None:
        raise ValueError("no such customer")

    handlers: Any = handle if of == "handler" else {"another topic": handle}
    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="stop")
    async with asyncio.timeout(30), consumer_of(broker, failures=policy) as consumer:
        running = asyncio.create_task(consumer.run(handlers))
        await until(running.done)
        errors = [line for line in caplog.records if line.levelno == logging.ERROR]
        (line,) = [one for one in errors if one.__dict__.get("action") == "run_failed"]
        assert ("no such customer" if of == "handler" else "has none for topic t") in line.getMessage()
        if of == "handler":
            health = consumer.health()
            assert (health.live, health.ready, health.running) == (False, False, False)
        assert running.exception() is not None


async def test_a_stop_is_no_failure(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is a cancellation; before it has joined it is not ready, and live."""

    async def handle(record: Record) -> None:
        await asyncio.sleep(0)

    for cancelled in (True, False):
        async with asyncio.timeout(30), consumer_of(broker) as consumer:
            assert not consumer.health().ready
            assert consumer.health().live
            running = asyncio.create_task(consumer.run(handle))
            await until(lambda consumer=consumer: consumer.health().ready)  # type: ignore[misc]
            if cancelled:
                running.cancel()
            else:
                consumer.stop()
            await asyncio.wait({running})
            assert not consumer.health().ready
            assert consumer.health().live
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


@pytest.mark.parametrize("kind", list(ProblemKind))
def test_what_keeps_it_from_its_work(kind: ProblemKind) -> None:
    """A failed run alone makes it not live; who cannot read, commit or produce is not ready."""
    health = Health(running=True, problems=(Problem(kind, "what"),), joined=True)
    assert health.live is (kind is not ProblemKind.FAILED)
    keeps = {"failed", "fenced", "broker_unreachable", "no_leader", "commit_refused", "producer_unreachable"}
    keeps |= {"in_doubt", "transactions_aborted", "offsets_unstable", "database_away", "broker_silent"}
    assert health.ready is (kind.value not in keeps)
    assert not health.healthy
