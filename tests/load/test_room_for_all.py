"""More partitions than the buffer has room for, on Apache Kafka."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.config.options import OptionFields
from aioparallel.records.record import Record
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

LARGE, MIB = 990_000, 1024 * 1024
MEASURED = 8
"""Records after which their size is known."""


@pytest.mark.parametrize(
    ("partitions", "options", "bound"),
    [
        pytest.param(24, OptionFields(max_buffered_bytes=16 * MIB), 16 * MIB, id="24"),
        pytest.param(100, OptionFields(), 64 * MIB, id="100, default bound", marks=pytest.mark.slow),
    ],
)
async def test_each_partition_of_large_records_brings_its_own_in(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, partitions: int, options: OptionFields, bound: int
) -> None:
    """Records of 1 MB in more partitions than the bound has room for: one in any single partition is handled, and so
    is one in each of them beside handlers that wait; the bytes stay within their bound (I4)."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions)
    handled: list[int] = []
    most = 0

    async def handle(record: Record) -> None:
        nonlocal most
        most = max(most, consumer.stats().buffered_bytes)
        await asyncio.sleep(0.01)
        handled.append(record.partition)

    async def write(into: list[int]) -> None:
        messages = [Message(b"k", bytes(LARGE), partition=partition) for partition in into]
        wanted = len(handled) + len(messages)
        await asyncio.to_thread(fill, servers, topic, messages)
        await until(lambda: len(handled) == wanted, what=lambda: f"{wanted} handled: {len(handled)}")

    consumer = consumer_of(servers, topic, **options)
    async with consuming(consumer, handle):
        await write([partition % partitions for partition in range(MEASURED)])
        for partition in range(0, partitions, 3):
            await write([partition])
        await write([partition for partition in range(partitions) for _ in range(2)])
    assert set(handled) == set(range(partitions))
    assert most <= bound
