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
    Producing,
    Record,
    RecordStopped,
    Reject,
    Transactions,
)
from aioparallel.handlers.batches import Batch, batches
from aioparallel.testing.memory import InMemoryBroker
from tests.support.transactions.consuming import broker_of, consumer_of
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import until


def test_nothing_is_committed_until_each_refused_record_is_put_away() -> None:
    """Of several refused together, the first that is put away lets none of the others be committed."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_one_is_put_away_late())


async def _one_is_put_away_late() -> None:
    broker = broker_of()
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

    consumer = consumer_of(
        broker,
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
    consumer = consumer_of(
        broker,
        commits=Transactions(interval=0.05),
        failures=FailurePolicy(dead_letter="dead"),
    )

    async def handle(_record: Record[Any, Any]) -> None:
        raise Reject("no")

    with pytest.raises(RecordStopped, match="that topic must accept every record of the source") as stopped:
        async with consumer:
            await consumer.run(handle)
    assert "a topic" not in str(stopped.value)
    assert not broker.group("g").offsets


async def test_the_end_waits_for_a_record_that_is_being_put_away() -> None:
    """What the brokers have refused is with a dead-letter function: the last commit waits for that, within its
    deadline; and says so where that is not enough."""
    for seconds in (1.0, 600.0):
        broker = broker_of()
        broker.append("in", b"1")

        async def put(_record: Record[Any, Any], _error: Exception, seconds: float = seconds) -> None:
            await asyncio.sleep(seconds)

        async def handle(record: Record[Any, Any]) -> Outgoing:
            return Outgoing("tight", record.value)

        consumer = consumer_of(
            broker,
            commits=Transactions(interval=0.05),
            failures=FailurePolicy(dead_letter=put),
            until="end",
        )
        ending = contextlib.nullcontext() if seconds < 600 else pytest.raises(NotCommitted, match="not dead-lettered")
        with ending:
            async with asyncio.timeout(60), consumer:
                await consumer.run(handle)
        assert [committed.offset for committed in broker.group("g").offsets.values()] == [1] * (seconds < 600)


@pytest.mark.parametrize("every", [4, 20])
async def test_all_that_is_refused_costs_one_abort(every: int) -> None:
    """However many there are in a transaction: what the brokers take of it is sent twice, not once for each."""
    broker = broker_of()
    for number in range(1_000):
        broker.append("in", b"%d" % number, key=b"%d" % (number % 30))

    async def handle(record: Record[Any, Any]) -> Outgoing:
        refused = int(record.value) % every == 0
        return Outgoing("tight", record.value) if refused else Outgoing("out", record.value, record.key)

    consumer = consumer_of(
        broker,
        commits=Transactions(interval=0.5),
        failures=FailurePolicy(dead_letter="dead"),
    )
    async with asyncio.timeout(60), consumer:
        run = asyncio.create_task(consumer.run(handle))
        await until(lambda: len(broker.records("dead")) == 1_000 // every)
        await until(lambda: len(broker.records("out")) == 1_000 - 1_000 // every)
        figures = consumer.stats().transactions
        assert figures is not None
        assert figures.refused == 1_000 // every
        assert figures.aborted <= 3
        consumer.stop()
        await run


def test_who_waits_for_a_dead_letter_function_holds_up_no_other_partition() -> None:
    """Nothing more starts of the partition whose refused record is not put away; what waits of it takes no room."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_put_away_after_a_while())


async def _put_away_after_a_while() -> None:
    broker = broker_of(2)
    bound, count = 50_000, 500
    is_up = asyncio.Event()

    async def put(_record: Record[Any, Any], _error: Exception) -> None:
        if not is_up.is_set():
            raise OSError("the ticket system is down")

    async def handle(record: Record[Any, Any]) -> Outgoing:
        if record.value == b"bad":
            return Outgoing("tight", b"x")
        return Outgoing("out", record.value + b"x" * 1_000, record.key)

    consumer = consumer_of(
        broker,
        producing=Producing(max_unacknowledged_bytes=bound),
        failures=FailurePolicy(dead_letter=put),
        max_concurrency=10,
    )
    async with asyncio.timeout(600), consumer:
        run = asyncio.create_task(consumer.run(handle))
        broker.append("in", b"bad", key=b"k", partition=0)
        await until(lambda: any(one.kind == "dead_letter_failed" for one in consumer.health().problems))
        for number in range(count):
            for partition in (0, 1):
                broker.append("in", b"%d" % number, key=b"%d" % number, partition=partition)
        await until(lambda: len(broker.records("out")) == count, 60)
        figures = consumer.stats().transactions
        assert figures is not None
        assert figures.waiting_bytes < 4 * bound
        is_up.set()
        await until(lambda: len(broker.records("out")) == 2 * count, 60)
        consumer.stop()
        await run


@pytest.mark.parametrize("give_up", ["dead_letter", "skip"])
async def test_letters_of_a_key_keep_its_order_and_are_counted(give_up: str) -> None:
    """What only the broker refuses is put away in its place, though records behind it have ended before; and it is no
    success in ``stats()``."""
    broker = broker_of()
    for number in range(120):
        broker.append("in", b"%d" % number, key=b"%d" % (number % 3))

    async def handle(record: Record[Any, Any]) -> Outgoing:
        match int(record.value) // 3 % 4:
            case 0:
                return Outgoing("tight", record.value)
            case 1:
                raise Reject("no")
            case _:
                return Outgoing("out", record.value, record.key)

    failures = FailurePolicy(dead_letter="dead") if give_up == "dead_letter" else FailurePolicy(give_up="skip")
    consumer = consumer_of(
        broker,
        failures=failures,
    )
    async with asyncio.timeout(60), consumer:
        run = asyncio.create_task(consumer.run(handle))
        await until(lambda: sum(one.offset for one in broker.group("g").offsets.values()) == 120)
        stats = consumer.stats()
        put_away = stats.dead_lettered if give_up == "dead_letter" else stats.skipped
        assert (stats.succeeded, put_away) == (60, 60)
        consumer.stop()
        await run
    letters = [int(record.value or b"") for record in broker.records("dead")]
    assert len(letters) == (60 if give_up == "dead_letter" else 0)
    for key in range(3):
        of_key = [number for number in letters if number % 3 == key]
        assert of_key == sorted(of_key)
