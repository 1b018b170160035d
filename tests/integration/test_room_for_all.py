"""More partitions than the buffer has room for, on Apache Kafka."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from aioparallel import ParallelConsumer
from aioparallel.records import Record
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.filling import Message, fill

pytestmark = pytest.mark.real

PARTITIONS, LARGE, BOUND = 100, 990_000, 64 * 1024 * 1024


async def until_handled(handled: list[int], count: int, seconds: float) -> None:
    """Wait until so many records were handled, or fail with how many it were."""
    try:
        async with asyncio.timeout(seconds):
            while len(handled) < count:
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{len(handled)} of {count} records were handled within {seconds:g} s") from None


async def test_each_of_100_partitions_of_large_records_brings_its_own_in(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """100 partitions of 1 MB records and the default 64 MiB: a record in any single partition is handled, and so is one
    in each of them beside handlers that wait; the bytes stay within their bound (I4)."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(PARTITIONS)
    message = Message(key=b"k", value=bytes(LARGE))
    fill(servers, topic, [(partition, message) for partition in range(8)])
    handled: list[int] = []
    most = 0

    async def handle(record: Record) -> None:
        nonlocal most
        most = max(most, consumer.stats().buffered_bytes)
        await asyncio.sleep(0.01)
        handled.append(record.partition)

    consumer = ParallelConsumer(topic, bootstrap_servers=servers, group_id=f"group-{uuid.uuid4().hex}")
    async with asyncio.timeout(240), consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until_handled(handled, 8, 60)  # the size of records is known now
        for count, partition in enumerate(range(0, PARTITIONS, 3), 9):
            fill(servers, topic, [(partition, message)])
            await until_handled(handled, count, 20)
        before = len(handled)
        fill(servers, topic, [(partition, message) for partition in range(PARTITIONS) for _ in range(2)])
        await until_handled(handled, before + 2 * PARTITIONS, 60)
        consumer.stop()
        await running
    assert set(handled) == set(range(PARTITIONS))
    assert most <= BOUND
