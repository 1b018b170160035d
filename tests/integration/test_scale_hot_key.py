"""A hot key and a hot partition, on a small scale; the long versions are in ``tests/load``."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from aioparallel import ParallelConsumer
from aioparallel.errors import ConsumerStateError
from aioparallel.observe.stats import Stats
from aioparallel.records import Record
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.filling import Message, fill

pytestmark = pytest.mark.real

HOT = b"hot"
KEYS = 100
DEADLINE = 120.0


def nine_in_ten_hot(records: int, partitions: int) -> Iterator[tuple[int, Message]]:
    """Nine records of the hot key in partition 0, then one of another key in any."""
    for serial in range(records):
        if serial % 10:
            yield 0, Message(key=HOT, value=b"")
        else:
            key = serial // 10 % KEYS
            yield key % partitions, Message(key=b"key-%03d" % key, value=b"")


async def test_other_keys_pass_a_stuck_one_within_the_look_ahead(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """While the hot key's first record does not end, all 2,000 records of the other keys do, in order, though 18,000 of
    the hot key stand between them."""
    topic = await kafka_topic(4)
    fill(local_kafka.bootstrap_servers, topic, nine_in_ten_hot(20_000, 4))
    order, release, passed = OrderChecker(), asyncio.Event(), asyncio.Event()
    others = 0

    async def handle(record: Record) -> None:
        nonlocal others
        with order.handling(record):
            if record.key == HOT:
                await release.wait()
                return
            await asyncio.sleep(0.001)
        others += 1
        if others == 2_000:
            passed.set()

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=local_kafka.bootstrap_servers,
        group_id=f"group-{uuid.uuid4().hex}",
        max_buffered=22_000,
        until="end",
    )
    async with consumer, asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        group.create_task(consumer.run(handle))
        await passed.wait()
        stats = consumer.stats()
        assert stats.longest_lane is not None
        assert stats.longest_lane.key == HOT
        release.set()
    order.check()
    assert order.statistics().started == 20_000


async def test_statistics_say_that_a_stuck_key_has_filled_the_buffer(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """Beyond the look-ahead intake is full, nothing is ready, and the longest lane is the hot key's."""
    topic = await kafka_topic(4)
    fill(local_kafka.bootstrap_servers, topic, nine_in_ten_hot(20_000, 4))
    release = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.key == HOT:
            await release.wait()

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=local_kafka.bootstrap_servers,
        group_id=f"group-{uuid.uuid4().hex}",
        max_buffered=2_000,
        drain_timeout=0.5,
    )
    async with consumer, asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        group.create_task(consumer.run(handle))
        stats = await full(consumer)
        release.set()
        consumer.stop()
    assert stats.longest_lane is not None
    assert stats.longest_lane.key == HOT
    assert stats.longest_lane.length <= 2_001
    assert stats.buffered <= 2_000
    assert stats.ready_lanes == 0


async def full(consumer: ParallelConsumer) -> Stats:
    """The statistics once intake is full of the hot key's records, and only its handler runs. Full alone is not enough:
    it also is while others' records are still between them."""
    while True:
        await asyncio.sleep(0.02)
        try:
            stats = consumer.stats()
        except ConsumerStateError:
            continue  # it does not run yet
        is_full = stats.intake == "full: max_buffered reached" and stats.in_flight == 1
        if is_full and stats.longest_lane is not None and stats.longest_lane.length > 1_000:
            return stats
