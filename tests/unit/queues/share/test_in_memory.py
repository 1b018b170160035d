"""Share consumers on the in-memory broker, which is as strict as Kafka."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from aioparallel import ConfigurationError, Outgoing, Record, Reject, RetryPolicy, TopicPartition
from aioparallel.queues.share import ShareConsumer
from aioparallel.testing.memory import InMemoryBroker, InMemoryProducer, InMemoryShareClient, ShareGroupOptions
from tests.simulation.clocks import one_source_of_chance
from tests.support.virtual_time import VirtualLoop
from tests.unit.queues.share.conftest import Handler, running, until

RECORDS = 100
COURSES = 6
PACE = 1e-6


def world(**options: Any) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("t", 2)
    broker.create_topic("out", 1)
    broker.create_topic("dead", 1)
    broker.configure_share_group("g", ShareGroupOptions(auto_offset_reset="earliest", **options))
    return broker


def consumer_of(broker: InMemoryBroker, **options: Any) -> ShareConsumer[Any, Any]:
    return ShareConsumer(
        "t",
        group_id="g",
        client=InMemoryShareClient(broker, "g"),
        producer=InMemoryProducer(broker, delivery_timeout=1),
        **options,
    )


async def test_a_group_that_gives_records_up_before_they_are_dead_lettered() -> None:
    """Refused at the start: they would be lost."""
    broker = world(delivery_count_limit=3)
    with pytest.raises(ConfigurationError, match="max_deliveries=5: must be at most 3, the group's"):
        async with consumer_of(broker, dead_letter="dead", max_deliveries=5):
            pass
    for options in ({"dead_letter": "dead", "max_deliveries": 3}, {"dead_letter": "dead"}, {}):
        async with consumer_of(broker, **options):
            pass


async def test_each_outcome() -> None:
    """Success, failure, rejection, output, a handler that is longer than its lock."""
    broker = world()
    for number, value in enumerate([b"plain", b"failing", b"rejected", b"output", b"long"] * 4):
        broker.append("t", b"%s %d" % (value, number), partition=number % 2)

    async def handle(record: Record) -> Outgoing | None:
        assert record.value is not None
        match record.value.split(b" ")[0]:
            case b"failing" if record.delivery_count < 3:
                raise ValueError
            case b"rejected":
                raise Reject("no")
            case b"output":
                return Outgoing("out", record.value)
            case b"long":
                await asyncio.sleep(100)
        return None

    async with consumer_of(broker, dead_letter="dead", until="end") as consumer:
        await consumer.run(handle)
        stats = consumer.stats()
    assert stats.share is not None
    assert (stats.share.accepted, stats.share.released, stats.share.late, stats.share.lost) == (20, 8, 0, 0)
    assert stats.share.renewed >= 4 * 6
    assert (len(broker.records("out")), len(broker.records("dead"))) == (4, 4)


async def test_without_renewals() -> None:
    """The handler is cancelled in time."""
    broker = world(is_renew_enabled=False)
    broker.append("t", b"a")
    handler = Handler(lambda record: asyncio.sleep(100) if record.delivery_count == 1 else None)
    async with running(consumer_of(broker), handler) as consumer:
        await until(lambda: consumer.stats().share.accepted == 1)
        assert (consumer.stats().share.lost, consumer.stats().share.late) == (1, 0)
    assert handler.counts == [1, 2]


async def test_a_pause_uses_up_no_delivery() -> None:
    """Of a partition, and of everything."""
    broker = world()
    handler = Handler()
    async with running(consumer_of(broker), handler) as consumer:
        consumer.pause(TopicPartition("t", 0))
        broker.append("t", b"a", partition=0)
        broker.append("t", b"b", partition=1)
        await until(lambda: handler.seen[b"b"])
        consumer.pause()
        broker.append("t", b"c", partition=1)
        await asyncio.sleep(200)
        consumer.resume()
        await until(lambda: handler.seen[b"c"])
        consumer.resume(TopicPartition("t", 0))
        await until(lambda: handler.seen[b"a"])
    assert handler.counts == [1, 1, 1]


class Course:
    """Members come and go, and the broker has faults."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = world(delivery_count_limit=10, lock_duration=15.0)
        self.done: Counter[bytes | None] = Counter()
        self.is_calm = False

    async def handle(self, record: Record) -> None:
        await asyncio.sleep(self.chance.random() * (3 if self.chance.random() < 0.9 else 20))
        if record.delivery_count < 3 and self.chance.random() < 0.1:
            raise ValueError
        self.done[record.value] += 1

    async def members(self) -> None:
        chance = self.chance
        while True:
            consumer = consumer_of(self.broker, max_concurrency=10, retry=RetryPolicy(max_attempts=2), drain_timeout=5)
            async with consumer:
                run = asyncio.create_task(consumer.run(self.handle))
                try:
                    await asyncio.sleep(3600 if self.is_calm else 30 + chance.random() * 60)
                    match chance.randrange(3):
                        case 0:
                            consumer.stop()
                        case 1:
                            consumer.stop(drain=False)
                        case _:
                            run.cancel()
                    await asyncio.wait([run])
                finally:
                    run.cancel()
                    await asyncio.wait([run])
            stats = consumer.stats()
            assert stats.share is None or (stats.share.locked, stats.share.unanswered) == (0, 0)

    async def faults(self) -> None:
        while not self.is_calm:
            await asyncio.sleep(self.chance.random() * 40)
            if self.chance.random() < 0.5:
                self.broker.hang(1)
                await asyncio.sleep(self.chance.random() * 5)
                self.broker.unhang(1)
            else:
                self.broker.go_down()
                await asyncio.sleep(self.chance.random() * 5)
                self.broker.come_back()

    async def run(self) -> None:
        tasks = [asyncio.create_task(self.members()) for _ in range(2)]
        faults = asyncio.create_task(self.faults())
        for number in range(RECORDS):
            self.broker.append("t", b"%d" % number, partition=number % 2)
            await asyncio.sleep(self.chance.random() * 2)
        self.is_calm = True
        await faults

        def is_over() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return len(self.done) == RECORDS

        await until(is_over, 1_000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(COURSES))
def test_any_course_loses_nothing(seed: int) -> None:
    """Each record is handled."""
    loop = VirtualLoop()
    with one_source_of_chance(seed, loop.time, PACE), asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(Course(seed).run())
