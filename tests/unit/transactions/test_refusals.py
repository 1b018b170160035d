"""Outputs that only the broker refuses, of records that a function is to put away."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from aioparallel import (
    FailurePolicy,
    NotCommitted,
    Outgoing,
    ParallelConsumer,
    Record,
    RecordStopped,
    Reject,
    Transactions,
)
from aioparallel.batches import Batch, batches
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryTransactionalProducer
from tests.support.virtual_time import VirtualLoop


def test_nothing_is_committed_until_each_refused_record_is_put_away() -> None:
    """Of several refused together, the first that is put away lets none of the others be committed."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_one_is_put_away_late())


async def _one_is_put_away_late() -> None:
    broker = InMemoryBroker()
    broker.create_topic("in", 1)
    broker.create_topic("tight", 1)
    broker.make_compacted("tight")  # takes nothing without a key
    for number in range(4):
        broker.append("in", b"%d" % number, key=b"%d" % number)
    later = asyncio.Event()
    put_away: set[bytes | None] = set()

    async def put(record: Record[Any, Any], _error: Exception) -> None:
        if record.value == b"1":
            await later.wait()
        put_away.add(record.value)

    async def handle(_batch: Batch[Record[Any, Any]]) -> list[Outgoing]:
        return [Outgoing("tight", b"of all")]

    consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
        "in",
        group_id="g",
        client=InMemoryClient(broker, "g", isolation_level="read_committed"),
        producer=InMemoryTransactionalProducer(broker, "g"),
        commits=Transactions(interval=0.05),
        failures=FailurePolicy(dead_letter=put),
    )
    async with consumer:
        run = asyncio.create_task(consumer.run(batches(handle, size=4, linger=0.1)))
        await asyncio.sleep(5)
        assert put_away == {b"0", b"2", b"3"}
        assert not broker.group("g").offsets, "record 1 is nowhere yet"
        later.set()
        await asyncio.sleep(5)
        assert {committed.offset for committed in broker.group("g").offsets.values()} == {4}
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run


async def test_a_letter_that_is_refused_says_what_its_topic_must_take() -> None:
    """It ends the run, and the message asks for no dead-letter topic: that is the one which refuses."""
    broker = InMemoryBroker()
    broker.create_topic("in", 1)
    broker.create_topic("dead", 1)
    broker.make_compacted("dead")  # takes nothing without a key
    broker.append("in", b"1")
    consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
        "in",
        group_id="g",
        client=InMemoryClient(broker, "g", isolation_level="read_committed"),
        producer=InMemoryTransactionalProducer(broker, "g"),
        commits=Transactions(interval=0.05),
        failures=FailurePolicy(dead_letter="dead"),
    )

    async def handle(_record: Record[Any, Any]) -> None:
        raise Reject("no")

    with pytest.raises(RecordStopped, match="that topic must take whatever the source holds") as stopped:
        async with consumer:
            await consumer.run(handle)
    assert "a topic" not in str(stopped.value)
    assert not broker.group("g").offsets


async def test_the_end_waits_for_a_record_that_is_being_put_away() -> None:
    """What the brokers have refused is with a dead-letter function: the last commit waits for that, within its
    deadline; and says so where that is not enough."""
    for seconds in (1.0, 600.0):
        broker = InMemoryBroker()
        broker.create_topic("in", 1)
        broker.create_topic("tight", 1)
        broker.make_compacted("tight")  # takes nothing without a key
        broker.append("in", b"1")

        async def put(_record: Record[Any, Any], _error: Exception, seconds: float = seconds) -> None:
            await asyncio.sleep(seconds)

        async def handle(record: Record[Any, Any]) -> Outgoing:
            return Outgoing("tight", record.value)

        consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
            "in",
            group_id="g",
            client=InMemoryClient(broker, "g", isolation_level="read_committed"),
            producer=InMemoryTransactionalProducer(broker, "g"),
            commits=Transactions(interval=0.05),
            failures=FailurePolicy(dead_letter=put),
            until="end",
        )
        ending = contextlib.nullcontext() if seconds < 600 else pytest.raises(NotCommitted, match="not put away yet")
        with ending:
            async with asyncio.timeout(60), consumer:
                await consumer.run(handle)
        assert [committed.offset for committed in broker.group("g").offsets.values()] == [1] * (seconds < 600)
