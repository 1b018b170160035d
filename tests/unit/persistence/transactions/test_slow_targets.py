"""Targets that take less in the time of a transaction than waits for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

import aioparallel.persistence.transactions.size as size_module
from aioparallel import Outgoing, ParallelConsumer, Producing, Record, Transactions
from aioparallel.observe.health import ProblemKind
from aioparallel.observe.stats import TransactionStats
from aioparallel.persistence.transactions.size import TransactionSize
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import (
    ErrorCode,
    Fault,
    InMemoryBroker,
    InMemoryTransactionalProducer,
    Request,
)
from tests.support.transactions import consuming
from tests.support.transactions.consuming import broker_of, copy
from tests.support.virtual_time import VirtualLoop

PARTITIONS = 4
KEYS = 20
SIZE = 10_000


def play(course: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """In virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(course())


def consumer_of(broker: InMemoryBroker, **options: Any) -> ParallelConsumer[Any, Any]:
    """One that is patient with its brokers."""
    patient = InMemoryTransactionalProducer(broker, "g", request_timeout=10.0)
    return consuming.consumer_of(broker, **{"producer": patient, **options})


def filled(records: int, size: int = SIZE) -> InMemoryBroker:
    """With so many to be read, of so many bytes."""
    broker = broker_of(PARTITIONS)
    for number in range(records):
        broker.append("in", b"%d/" % number + b"x" * size, key=b"%d" % (number % KEYS), partition=number % PARTITIONS)
    return broker


async def until(condition: Callable[[], object], seconds: float) -> None:
    """Look ten times a second: more would take longer than all that happens."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.1)


async def figures_of(
    consumer: ParallelConsumer[Any, Any], broker: InMemoryBroker, count: int, seconds: float, handle: Any = copy
) -> TransactionStats:
    """Of a run in which so many outputs arrive within these seconds."""
    async with consumer:
        run = asyncio.create_task(consumer.run(handle))
        await until(lambda: len(broker.records("out")) == count, seconds)
        figures = consumer.stats().transactions
        consumer.stop()
        await run
    assert figures is not None
    return figures


def numbers(broker: InMemoryBroker) -> list[int]:
    """What a committed reader sees."""
    return [int((record.value or b"").split(b"/")[0]) for record in broker.records("out")]


def test_a_slow_target_gets_less_in_one_transaction() -> None:
    """What would not be done in time is not tried as large again: all of it arrives, at the target's own rate."""

    async def course() -> None:
        count, each = 600, 0.1  # 100 KB a second: the first transaction would take ten of eight seconds
        broker = filled(count)
        broker.faults.always(Request.PRODUCE, Fault(request_delay=each))
        async with consumer_of(broker) as consumer:
            run = asyncio.create_task(consumer.run(copy))
            loop = asyncio.get_running_loop()
            began = loop.time()
            await until(lambda: len(broker.records("out")) == count, 10 * count * each)
            seconds = loop.time() - began
            figures = consumer.stats().transactions
            assert figures is not None
            assert figures.aborted <= 2
            assert figures.seconds is not None
            assert figures.seconds < 4
            assert seconds < 1.3 * count * each
            consumer.stop()
            await run
        assert Counter(numbers(broker)) == Counter(range(count))
        for key in range(KEYS):
            found = [number for number in numbers(broker) if number % KEYS == key]
            assert found == sorted(found)

    play(course)


def test_what_is_larger_than_the_room_goes_alone() -> None:
    """Each partition has its turn, whatever its outputs are as large as."""

    async def course() -> None:
        broker = filled(40, 200_000)
        broker.faults.always(Request.PRODUCE, Fault(request_delay=1.5))
        async with consumer_of(broker) as consumer:
            run = asyncio.create_task(consumer.run(copy))
            shares: list[Counter[int]] = []

            def all_have_begun() -> bool:
                shares.append(Counter(number % PARTITIONS for number in numbers(broker)))
                return len(shares[-1]) == PARTITIONS

            await until(all_have_begun, 300)
            assert max(shares[-1].values()) <= 3
            await until(lambda: len(broker.records("out")) == 40, 600)
            consumer.stop()
            await run
        assert sorted(numbers(broker)) == list(range(40))

    play(course)


def test_slow_outputs_are_told_before_anything_is_aborted() -> None:
    """``health()`` names what a transaction waits for while it waits."""

    async def course() -> None:
        broker = filled(1)
        broker.faults.always(Request.PRODUCE, Fault(request_delay=60.0))
        async with consumer_of(broker) as consumer:
            run = asyncio.create_task(consumer.run(copy))
            kind = ProblemKind.OUTPUTS_WAIT
            await until(lambda: any(one.kind is kind for one in consumer.health().problems), 7)
            (told,) = [one.message for one in consumer.health().problems if one.kind is kind]
            assert "out-0" in told
            figures = consumer.stats().transactions
            assert figures is not None
            assert figures.aborted == 0
            broker.faults.heal()
            await until(lambda: len(broker.records("out")) == 1, 60)
            consumer.stop()
            await run

    play(course)


def test_the_pace_follows_what_brokers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """It settles at a quarter of the time, from both sides, and never at nothing."""
    monkeypatch.setattr(size_module, "_FIRST", 10**6)
    monkeypatch.setattr(size_module, "_LEAST", 1_000)
    for rate in (5_000, 10**5, 10**6, 10**9):
        for first in (0.0, 0.01, 1.0, 6.0):
            pace = TransactionSize(32 * 10**6, 8.0)
            for _ in range(30):
                size = pace.bytes
                if first + size / rate < 8:
                    pace.in_time(size, first, first + size / rate, is_part=True)
                else:
                    pace.late(size, int((8 - first) * rate))
            assert pace.bytes == pytest.approx(min(32 * 10**6, (8 - first) / 4 * rate), rel=0.01)
    pace.late(32 * 10**6, 0)
    for _ in range(10):
        pace.late(pace.bytes, 0)
    assert pace.bytes == 1_000
    pace.in_time(10, 0.001, 0.001, is_part=False)  # says nothing of large ones
    assert pace.bytes == 1_000


def test_partitions_without_outputs_take_no_room() -> None:
    """One of many has a backlog: all the room is its own, and a fast target gets large transactions."""

    async def course() -> None:
        count = 20_000
        broker = broker_of(100, outs=4)
        for number in range(count):
            broker.append("in", b"%d/" % number + b"x" * 1_000, key=b"%d" % number, partition=0)
        figures = await figures_of(consumer_of(broker, max_concurrency=1_000), broker, count, 60)
        assert figures.committed < 100

    play(course)


def test_outputs_larger_than_the_share_of_their_partition_fill_a_transaction() -> None:
    """As many partitions have their turn in it as there is room for."""

    async def course() -> None:
        broker = broker_of(50, outs=4)
        for number in range(500):
            broker.append("in", b"%d/" % number + b"x" * 300_000, key=b"%d" % number, partition=number % 50)
        figures = await figures_of(consumer_of(broker), broker, 500, 60)
        assert figures.committed < 50

    play(course)


def test_far_brokers_get_no_smaller_transactions_for_that() -> None:
    """The way there takes as long for any size."""

    async def course() -> None:
        broker = broker_of(24, outs=24)
        for number in range(20_000):
            broker.append("in", b"%d/" % number + b"x" * 1_000, key=b"%d" % number, partition=number % 24)
        broker.faults.always(Request.PRODUCE, Fault(request_delay=0.3))

        async def there(record: Record) -> Outgoing:
            return Outgoing("out", record.value, partition=record.partition)

        consumer = consumer_of(broker, commits=Transactions(transaction_timeout=1.0))
        figures = await figures_of(consumer, broker, 20_000, 100, there)
        assert figures.aborted < 5

    play(course)


def test_commit_now_ends_while_more_comes_than_the_target_takes() -> None:
    """It waits for what was complete when it was called, and for nothing that has come since."""

    async def course() -> None:
        broker = filled(3_000)
        broker.faults.always(Request.PRODUCE, Fault(request_delay=0.03))
        options = {
            "commit_timeout": 50.0,
            "drain_timeout": 1.0,
            "producing": Producing(max_unacknowledged_bytes=2_000_000),
        }
        async with consumer_of(broker, **options) as consumer:
            run = asyncio.create_task(consumer.run(copy))
            await until(lambda: len(broker.records("out")) > 100, 60)
            succeeded = consumer.stats().succeeded
            await consumer.commit_now()
            assert len(broker.records("out")) >= succeeded
            assert consumer.stats().succeeded > succeeded
            consumer.stop(drain=False)
            await run

    play(course)


def test_the_end_waits_for_as_long_as_outputs_leave() -> None:
    """With ``until="end"`` nobody is in a hurry: the last commit may take many times ``commit_timeout``."""

    async def course() -> None:
        broker = filled(300)
        broker.faults.always(Request.PRODUCE, Fault(request_delay=0.1))
        async with consumer_of(broker, until="end", commit_timeout=3.0) as consumer:
            await consumer.run(copy)
        assert sorted(numbers(broker)) == list(range(300))
        assert sum(one.offset for one in broker.group("g").offsets.values()) == 300

    play(course)


def test_who_may_not_commit_starts_nothing_more() -> None:
    """Offsets of three partitions are refused, again and again: what waits of them is bounded, the fourth goes on."""

    async def course() -> None:
        broker = filled(0)
        bound, made = 100_000, 0
        is_denied = True

        class Denied(InMemoryTransactionalProducer):
            async def commit_offsets(self, *given: Any) -> Mapping[TopicPartition, int]:
                found = await super().commit_offsets(*given)
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return {one: code if is_denied and one.partition else was for one, was in found.items()}

        options = {"producer": Denied(broker, "g"), "producing": Producing(max_unacknowledged_bytes=bound)}
        async with consumer_of(broker, **options) as consumer:
            run = asyncio.create_task(consumer.run(copy))
            for _ in range(60):
                for _ in range(20):
                    broker.append("in", b"%d/" % made + b"x" * 1_000, key=b"%d" % made, partition=made % PARTITIONS)
                    made += 1
                await asyncio.sleep(2)
                figures = consumer.stats().transactions
                assert figures is not None
                assert figures.waiting_bytes < 3 * bound
            assert len(broker.records("out")) > 0.9 * made / PARTITIONS
            is_denied = False
            await until(lambda: len(broker.records("out")) == made, 60)
            consumer.stop()
            await run

    play(course)
