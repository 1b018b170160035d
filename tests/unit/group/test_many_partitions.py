"""More partitions than the buffer has room for: whoever has records brings them in."""

from __future__ import annotations

import asyncio
import random
from typing import Unpack

import pytest

from aioparallel.config.handling import Ordering
from aioparallel.config.options import OptionFields
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import Seen, committed, consumer_of
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import until


async def handled(broker: InMemoryBroker, topic: str, count: int, **options: Unpack[OptionFields]) -> int:
    """The most that was buffered (records) until ``count`` records were handled."""
    seen, most = Seen(), 0
    consumer = consumer_of(broker, topic, **options)

    async def handle(record: Record) -> None:
        nonlocal most
        most = max(most, consumer.stats().buffered)
        await seen(record)

    async with asyncio.timeout(30), consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: len(seen.ended) == count, 20)
        consumer.stop()
        await running
    return most


@pytest.mark.parametrize("partition", [0, 37, 63, 64, 99])
async def test_a_record_in_any_of_100_partitions_of_large_ones_is_handled(
    broker: InMemoryBroker, partition: int
) -> None:
    """64 MiB have room for 64 records of 1 MB, and each of the 100 partitions can bring one in."""
    broker.create_topic("m", 100)
    large = bytes(1_000_000)
    for first in range(10):
        broker.append("m", large, key=b"k", partition=first)
    seen = Seen()
    consumer = consumer_of(broker, "m")
    async with asyncio.timeout(30), consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.ended) == 10, 20)  # the mean size is known now
        for count in range(11, 15):
            broker.append("m", large, key=b"k", partition=partition)
            await until(lambda count=count: len(seen.ended) == count, 5)  # type: ignore[misc]
        consumer.stop()
        await running


async def test_20_partitions_share_a_buffer_of_10_records(broker: InMemoryBroker) -> None:
    """Each of 20 partitions has its records handled, and never more than 10 are buffered (I4)."""
    broker.create_topic("m", 20)
    for partition in range(20):
        for _ in range(10):
            broker.append("m", b"v", key=b"k", partition=partition)
    assert await handled(broker, "m", 200, max_buffered=10) <= 10


@pytest.mark.parametrize("partition", range(0, 20, 3))
async def test_one_record_in_one_of_20_partitions_passes_a_buffer_of_10(broker: InMemoryBroker, partition: int) -> None:
    """Nobody else has records, so nothing else makes intake plan anew."""
    broker.create_topic("m", 20)
    seen = Seen()
    consumer = consumer_of(broker, "m", max_buffered=10)
    async with asyncio.timeout(30), consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(consumer.stats().partitions) == 20 if consumer._engine else False)
        await asyncio.sleep(1)
        broker.append("m", b"v", key=b"k", partition=partition)
        await until(lambda: seen.ended, 5)
        consumer.stop()
        await running


@pytest.mark.parametrize("cooperative", [True, False])
async def test_a_partition_that_comes_late_reads_beside_a_hot_key(broker: InMemoryBroker, cooperative: bool) -> None:
    """One key of the partition held has filled the buffer; each of those that come later still brings its records in,
    one after the other, within max_buffered (I4)."""
    broker.create_topic("hot", 1)
    for _ in range(500):
        broker.append("hot", b"v", key=b"k", partition=0)
    release, seen = asyncio.Event(), Seen()

    async def handle(record: Record) -> None:
        assert consumer.stats().buffered <= 100
        if record.topic == "hot":
            await release.wait()
        else:
            await seen(record)

    consumer = consumer_of(broker, ["hot", "t", "late"], cooperative=cooperative, max_buffered=100)
    broker.create_topic("late", 1)
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine is not None and consumer.stats().buffered > 50)
        await asyncio.sleep(1)
        broker.add_partitions("late", 4)
        late = [TopicPartition("late", number) for number in range(1, 4)]
        await until(lambda: len([p for p in consumer.stats().partitions if p.state == "open"]) == 6)
        await until(lambda: consumer.stats().buffered > 50)
        await asyncio.sleep(1)
        for _ in range(20):
            for partition in late:
                broker.append("late", b"v", key=b"k", partition=partition.partition)
        await until(lambda: len(seen.ended) == 60, 20)
        release.set()
        consumer.stop()
        await running


async def test_a_partition_that_has_enough_is_not_left_to_run_dry(broker: InMemoryBroker) -> None:
    """All records are in one of 100 partitions: with its share nearly full it has enough, and goes on long before so
    many starts as make a fetch worth its while."""
    broker.create_topic("m", 100)
    for i in range(200):
        broker.append("m", b"v", key=b"%d" % i, partition=7)
    assert await handled(broker, "m", 200, max_buffered=2_000, max_concurrency=1) <= 2_000


async def test_records_that_the_map_drops_do_not_lower_the_mean_size(broker: InMemoryBroker) -> None:
    """A restored map drops most of what a fetch brought: the bytes of the rest are theirs alone, and the records that
    still fit are reckoned from them."""
    large, stuck = bytes(10_000), asyncio.Event()
    for i in range(500):
        broker.append("t", large, key=b"%d" % i, partition=0)
    chosen = set(random.Random(1).sample(range(1, 500), 5)) | {0}
    first = Seen()

    async def most_end(record: Record) -> None:
        if record.offset in chosen:
            await stuck.wait()
        await first(record)

    async with asyncio.timeout(30), consumer_of(broker, max_concurrency=600, drain_timeout=0) as consumer:
        running = asyncio.create_task(consumer.run(most_end))
        await until(lambda: len(first.ended) == 500 - len(chosen))
        await consumer.commit_now()
        consumer.stop(drain=False)
        await running
    for _ in range(500):
        broker.append("t", large, key=b"hot", partition=0)
    most = 0

    async def look(record: Record) -> None:
        nonlocal most
        await asyncio.sleep(0.1)
        most = max(most, consumer.stats().buffered_bytes)

    async with asyncio.timeout(200), consumer_of(broker, until="end", max_buffered_bytes=1_000_000) as consumer:
        await consumer.run(look)
    assert committed(broker) == 1_000
    assert most <= 1_000_000


def test_a_nearly_full_buffer_is_filled_again() -> None:
    """One partition in order, records of several sizes, of which the buffer holds some dozens: all are handled."""
    rng = random.Random(0)

    async def main() -> None:
        broker = InMemoryBroker()
        broker.create_topic("t", 1)
        for _ in range(300):
            broker.append("t", b"x" * rng.randint(500, 1_500))
        async with consumer_of(broker, ordering=Ordering.PARTITION, max_buffered_bytes=64_000) as consumer:
            run = asyncio.ensure_future(consumer.run(Seen(0.001)))
            await asyncio.sleep(60)
            seen = consumer.stats()
            consumer.stop()
            await run
        assert seen.ended == 300, seen

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
