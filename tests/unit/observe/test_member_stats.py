"""What ``stats()`` says about the member: its id, its generation, and what it gives away."""

from __future__ import annotations

import asyncio

from aioparallel.observe.metrics.instruments import INSTRUMENTS
from aioparallel.observe.metrics.measurements import Figures
from aioparallel.queues.priority import PriorityConsumer
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from tests.support.memory.consuming import GROUP, Seen, consumer_of, produce
from tests.support.waiting import until


async def test_what_a_member_gives_away_is_named() -> None:
    """While its handlers end, and only what moves if the rest is kept; the generation is the group's."""
    broker = InMemoryBroker()
    broker.create_topic("m", 2)
    for partition in (0, 1):
        produce(broker, [b"k"], partition, "m")
    begun, go_on = [], asyncio.Event()

    async def handle(record: Record) -> None:
        begun.append(record)
        await go_on.wait()

    async with (
        asyncio.timeout(60),
        consumer_of(broker, "m", cooperative=True, drain_timeout=30) as first,
        consumer_of(broker, "m", cooperative=True) as second,
    ):
        assert first.stats().members == ()
        running = [asyncio.create_task(first.run(handle))]
        await until(lambda: len(begun) == 2)
        (before,) = first.stats().members
        assert (before.group, first.stats().giving_away) == (GROUP, ())
        running.append(asyncio.create_task(second.run(Seen())))
        await until(lambda: first.stats().giving_away)
        (moves,) = first.stats().giving_away
        assert moves in {TopicPartition("m", 0), TopicPartition("m", 1)}
        (states,) = [one for one in INSTRUMENTS if one.name == "partitions"]
        assert states.read is not None
        shown = dict(states.read(Figures(first.stats(), first.health(), 1)))
        assert shown[("draining",)] == 1
        go_on.set()
        await until(lambda: len(second.stats().partitions) == 1)
        await until(lambda: first.stats().members != (before,))
        (now,) = first.stats().members
        assert (now.member_id, first.stats().giving_away) == (before.member_id, ())
        assert now.generation > before.generation
        assert now.generation == broker.group(GROUP).generation
        for one in (first, second):
            one.stop()
        await asyncio.gather(*running)


async def test_a_priority_consumer_is_a_member_for_each_priority() -> None:
    """The metric is the highest generation."""
    broker = InMemoryBroker()
    for topic in ("mail-0", "mail-1"):
        broker.create_topic(topic, 1)
    clients = [InMemoryClient(broker, f"g-{priority}", heartbeat_interval=0.02) for priority in range(2)]
    consumer = PriorityConsumer("mail", priorities=2, group_id="g", clients=clients, producer=InMemoryProducer(broker))
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(Seen()))
        await until(lambda: len(consumer.stats().members) == 2)
        assert [one.group for one in consumer.stats().members] == ["0", "1"]
        (found,) = [one for one in INSTRUMENTS if one.name == "member.generation"]
        assert found.read is not None
        highest = max(one.generation for one in consumer.stats().members)
        assert list(found.read(Figures(consumer.stats(), consumer.health(), 1))) == [((), highest)]
        consumer.stop()
        await running
