"""Targets that take less in the time of a transaction than waits for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import aioparallel.transactions.pace as pace_module
from aioparallel import Outgoing, ParallelConsumer, Record, Transactions
from aioparallel.observe.health import ProblemKind
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryClient, InMemoryTransactionalProducer, Request
from aioparallel.transactions.pace import Pace
from tests.support.virtual_time import VirtualLoop

PARTITIONS = 4
KEYS = 20
SIZE = 10_000


def play(course: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """In virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(course())


def consumer_of(broker: InMemoryBroker, **options: Any) -> ParallelConsumer[Any, Any]:
    """Of group "g"."""
    return ParallelConsumer(
        "in",
        group_id="g",
        client=InMemoryClient(broker, "g", isolation_level="read_committed"),
        producer=InMemoryTransactionalProducer(broker, "g", request_timeout=10.0),
        commits=Transactions(),
        **options,
    )


def filled(records: int, size: int = SIZE) -> InMemoryBroker:
    """With so many to be read, of so many bytes."""
    broker = InMemoryBroker()
    broker.create_topic("in", PARTITIONS)
    broker.create_topic("out")
    for number in range(records):
        broker.append("in", b"%d/" % number + b"x" * size, key=b"%d" % (number % KEYS), partition=number % PARTITIONS)
    return broker


async def copy(record: Record) -> Outgoing:
    """To be written."""
    return Outgoing("out", record.value, record.key)


async def until(condition: Callable[[], object], seconds: float) -> None:
    """Look ten times a second: more would take longer than all that happens."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.1)


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
            assert figures.longest is not None
            assert figures.longest < 4
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
    monkeypatch.setattr(pace_module, "_FIRST", 10**6)
    monkeypatch.setattr(pace_module, "_LEAST", 1_000)
    for rate in (5_000, 10**5, 10**6, 10**9):
        pace = Pace(32 * 10**6, 8.0)
        for _ in range(30):
            size = pace.bytes
            if size / rate < 8:
                pace.in_time(size, size / rate)
            else:
                pace.late(size, 8 * rate)
        assert pace.bytes == pytest.approx(min(32 * 10**6, 2 * rate), rel=0.01)
    pace.late(32 * 10**6, 0)
    for _ in range(10):
        pace.late(pace.bytes, 0)
    assert pace.bytes == 1_000
    pace.in_time(10, 0.001)  # says nothing of large ones
    assert pace.bytes == 1_000
