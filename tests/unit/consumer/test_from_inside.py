"""What a handler may do to its own consumer, in its first step, while others of the same turn have ended uncounted."""

from __future__ import annotations

import asyncio

from aioparallel.observe.stats import Stats
from aioparallel.records.record import Record
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until


async def test_statistics_add_up_inside_a_handler(broker: InMemoryBroker) -> None:
    """Each handler sees itself in flight, those before it ended, and nothing twice."""
    produce(broker, [b"%d" % (n % 7) for n in range(100)])
    seen: list[Stats] = []

    async def handle(record: Record) -> None:
        seen.append(consumer.stats())

    async with asyncio.timeout(10), consumer_of(broker, until="end") as consumer:
        await consumer.run(handle)
    assert [stats.in_flight for stats in seen] == [1] * 100
    assert [stats.succeeded for stats in seen] == list(range(100))
    assert all(stats.admitted == stats.buffered + stats.in_flight + stats.ended for stats in seen)
    assert committed(broker) == 100


async def test_a_handler_may_pause(broker: InMemoryBroker) -> None:
    """Nothing starts after the handler that has paused; resume goes on, in order, each record once."""
    produce(broker, [b"a", b"b"] * 50)
    seen: list[int] = []

    async def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 10:
            consumer.pause()

    async with asyncio.timeout(10), consumer_of(broker, until="end") as consumer:
        run = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker) == len(seen) > 0)
        assert seen[-1] == 10
        assert consumer.stats().succeeded == len(seen)
        consumer.resume()
        await run
    assert sorted(seen) == list(range(100))
    assert committed(broker) == 100


async def test_a_handler_may_stop_the_run(broker: InMemoryBroker) -> None:
    """Its own record counts as ended, what has not begun is left for the next run."""
    produce(broker, [b"a"] * 50)
    seen: list[int] = []

    async def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 20:
            consumer.stop()

    async with asyncio.timeout(10), consumer_of(broker) as consumer:
        await consumer.run(handle)
    assert seen == list(range(21))
    assert committed(broker) == 21
