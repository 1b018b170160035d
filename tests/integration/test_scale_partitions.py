"""Many partitions and full maps, on a small scale; the long versions are in ``tests/load``."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from aioparallel import ParallelConsumer
from aioparallel.cli.bench.full_maps import full_ledgers
from aioparallel.cli.bench.holds import commit_holds
from aioparallel.records import Record
from aioparallel.testing import DeliveryChecker, LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.filling import Message, fill

pytestmark = pytest.mark.real

DEADLINE = 120.0


async def test_two_hundred_partitions_are_read_once_in_order_within_the_bounds(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """20,000 records over 200 partitions all run once, each key in order, and never more than ``max_buffered`` wait,
    partitions that are through already included (I4)."""
    topic, partitions, records = await kafka_topic(200), 200, 20_000
    messages = [
        (serial % partitions, Message(key=b"key-%d" % (serial // partitions % 4), value=b"%d" % serial))
        for serial in range(records)
    ]
    fill(local_kafka.bootstrap_servers, topic, messages)
    order, delivery = OrderChecker(), DeliveryChecker[bytes]()
    for _, message in messages:
        delivery.produced(message["value"])
    ended = most = 0

    async def handle(record: Record) -> None:
        nonlocal ended, most
        with order.handling(record):
            await asyncio.sleep(0.001)
        assert record.value is not None
        delivery.handled(record.value)
        ended += 1
        if ended % 100 == 0:
            most = max(most, consumer.stats().buffered)

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=local_kafka.bootstrap_servers,
        group_id=f"group-{uuid.uuid4().hex}",
        max_buffered=2_000,
        until="end",
    )
    async with asyncio.timeout(DEADLINE), consumer:
        await consumer.run(handle)
    order.check()
    delivery.check(max_duplicates=0)
    assert most <= 2_000


async def test_full_maps_are_taken_and_read_back(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Maps of about 4,000 characters for each of 60 partitions, in several requests: the broker takes all of them, and
    they decode to the ledgers (I9)."""
    topic, partitions = await kafka_topic(60), 60
    holds = await commit_holds(local_kafka.bootstrap_servers, topic, partitions, full_ledgers(), 1)
    assert holds.problems == []
    assert holds.requests >= 1
    assert holds.shortest_map > 3_800
