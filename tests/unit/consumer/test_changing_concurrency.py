"""``consumer.max_concurrency`` is set while it runs, in virtual time."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

from aioparallel import Batch, ConfigurationError, FailurePolicy, ParallelConsumer, Record, batches
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.queues.priority import PriorityConsumer
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from tests.support.inside import run_of
from tests.support.memory.consuming import QUICK, committed, consumer_of, produce
from tests.support.waiting import until


class Running:
    """A handler that counts how many of its calls run at once."""

    def __init__(self, delay: float = 1.0) -> None:
        self.now = self.most = self.ended = 0
        self._delay = delay

    async def __call__(self, record: Record) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self._delay)
        finally:
            self.now -= 1
        self.ended += 1


def queue() -> ParallelConsumer[Any, Any]:
    broker = InMemoryBroker()
    for topic in ("t", "t-markers", "t__undelivered"):
        broker.create_topic(topic, 1)
    produce(broker, [None] * 300)
    client, producer = InMemoryClient(broker, "g"), InMemoryProducer(broker)
    return KmqConsumer("t", group_id="g", client=client, producer=producer, max_concurrency=10)


def of_priorities() -> ParallelConsumer[Any, Any]:
    broker = InMemoryBroker()
    for topic in ("t-0", "t-1"):
        broker.create_topic(topic, 1)
        produce(broker, [None] * 150, topic=topic)
    clients = [InMemoryClient(broker, f"g-{priority}") for priority in range(2)]
    producer = InMemoryProducer(broker)
    return PriorityConsumer("t", priorities=2, group_id="g", clients=clients, producer=producer, max_concurrency=10)


def plain() -> ParallelConsumer[Any, Any]:
    broker = InMemoryBroker()
    broker.create_topic("t", 3)
    for partition in range(3):
        produce(broker, [b"%d" % number for number in range(100)], partition)
    return consumer_of(broker, max_concurrency=10)


@pytest.mark.parametrize("make", [plain, queue, of_priorities])
async def test_it_grows_at_once_and_shrinks_as_handlers_end(make: Any) -> None:
    """No handler is cancelled, and no slot is lost or won."""
    handle = Running()
    consumer = make()
    async with asyncio.timeout(600), consumer:
        run = asyncio.create_task(consumer.run(handle))
        await until(lambda: handle.now == 10)
        consumer.max_concurrency = 25
        await asyncio.sleep(0.5)
        assert (handle.now, handle.ended) == (25, 0)
        consumer.max_concurrency = 3
        assert (consumer.max_concurrency, consumer.stats().max_concurrency) == (3, 3)
        assert consumer.options.max_concurrency == 10
        await asyncio.sleep(0.2)
        assert handle.now == 25
        await asyncio.sleep(2)
        assert handle.now == 3
        consumer.max_concurrency = 60
        handle.most = 0
        await until(lambda: handle.ended == 300)
        assert handle.most == 60
        consumer.stop()
        await run
    assert consumer.stats().failed_attempts == 0


async def test_before_the_run(broker: InMemoryBroker) -> None:
    """The number given last counts from the beginning."""
    handle = Running()
    produce(broker, [None] * 20)
    consumer = consumer_of(broker, until="end")
    consumer.max_concurrency = 4
    assert consumer.max_concurrency == 4
    async with asyncio.timeout(60), consumer:
        assert consumer.stats().max_concurrency == 4
        await consumer.run(handle)
    assert handle.most == 4


@pytest.mark.parametrize("seed", range(20))
async def test_any_sequence_of_changes(seed: int, broker: InMemoryBroker) -> None:
    """It changes at random, from handlers that suspend and from ones that do not: the bound holds for each start, all
    records run, and a run to the end ends."""
    rng = random.Random(seed)
    running = above = 0
    bound = 5
    wrong = list[tuple[int, int]]()

    async def handle(record: Record) -> None:
        nonlocal running, bound, above
        running += 1
        # Handlers that ran when the bound was lowered may be above it, but none is added.
        if running > max(bound, above):
            wrong.append((running, bound))
        try:
            if rng.random() < 0.7:
                await asyncio.sleep(rng.choice((0, 0.01, 0.3)))
            if rng.random() < 0.3:
                bound = rng.choice((1, 1, 2, 5, 30))
                above = running
                consumer.max_concurrency = bound
            if rng.random() < 0.1:
                raise ValueError
        finally:
            running -= 1
            above = min(above, max(running, bound))

    consumer = consumer_of(broker, until="end", max_concurrency=5, failures=FailurePolicy(retry=QUICK))
    produce(broker, [rng.choice((b"a", b"b", None, b"%d" % number)) for number in range(400)])
    async with asyncio.timeout(600), consumer:
        await consumer.run(handle)
    assert not wrong
    assert committed(broker) == 400
    assert consumer.stats().succeeded == 400


async def test_batches(broker: InMemoryBroker) -> None:
    """It counts calls."""
    running = Running()

    async def handle(records: Batch[Record]) -> None:
        await running(records[0])

    produce(broker, [None] * 400)
    consumer = consumer_of(broker, max_concurrency=2)
    async with asyncio.timeout(600), consumer:
        run = asyncio.create_task(consumer.run(batches(handle, size=5)))
        await until(lambda: running.now == 2)
        consumer.max_concurrency = 8
        await asyncio.sleep(0.1)
        assert running.now == 8
        consumer.max_concurrency = 1
        await asyncio.sleep(3)
        assert running.now == 1
        consumer.stop()
        await run


async def test_results(broker: InMemoryBroker) -> None:
    """As many results may be unread."""
    produce(broker, [None] * 50)
    consumer = consumer_of(broker, max_concurrency=2, until="end")

    async def handle(record: Record) -> int:
        return record.offset

    async with asyncio.timeout(60), consumer:
        seen = list[int]()
        async for _, value in consumer.results(handle):
            if not seen:
                await asyncio.sleep(1)
                assert consumer.stats().producing <= 3
                consumer.max_concurrency = 20
                await asyncio.sleep(1)
                assert consumer.stats().producing >= 20
            seen.append(value)
    assert sorted(seen) == list(range(50))


async def test_parked_records_follow(broker: InMemoryBroker) -> None:
    """Their bound is four times as high if that is above 10,000, and the partitions' parts follow."""
    consumer = consumer_of(broker)
    async with asyncio.timeout(60), consumer:
        run = asyncio.create_task(consumer.run(Running()))
        await until(lambda: consumer.health().ready)
        parking = run_of(consumer)._processor.scheduler._parking
        assert parking._bound == 9_900
        consumer.max_concurrency = 5_000
        assert parking._bound == 15_000
        consumer.stop()
        await run


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "8", None])
async def test_wrong_numbers(wrong: Any, broker: InMemoryBroker) -> None:
    """The message is that of the option, and nothing changes."""
    consumer = consumer_of(broker, max_concurrency=7)
    with pytest.raises(ConfigurationError) as found:
        consumer.max_concurrency = wrong
    with pytest.raises(ConfigurationError, match=re.escape(str(found.value))):
        consumer_of(broker, max_concurrency=wrong)
    assert consumer.max_concurrency == 7


async def test_more_than_half_of_max_parked(broker: InMemoryBroker) -> None:
    """Options that must fit together still must."""
    consumer = consumer_of(broker, max_concurrency=7, max_parked=20)
    consumer.max_concurrency = 10
    with pytest.raises(ConfigurationError, match=r"max_parked=20: must be at least twice max_concurrency \(11\)"):
        consumer.max_concurrency = 11
    assert consumer.max_concurrency == 10


async def test_from_another_thread(broker: InMemoryBroker) -> None:
    """It acts on the event loop, and wakes it."""
    handle = Running()
    produce(broker, [None] * 20)
    consumer = consumer_of(broker, max_concurrency=2)
    async with asyncio.timeout(60), consumer:
        run = asyncio.create_task(consumer.run(handle))
        await until(lambda: handle.now == 2)
        await asyncio.to_thread(setattr, consumer, "max_concurrency", 9)
        await until(lambda: handle.now == 9)
        assert not handle.ended
        consumer.stop()
        await run
