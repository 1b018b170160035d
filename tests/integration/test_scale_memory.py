"""Memory under a backlog, on a small scale; the long version is ``tests/load/test_memory.py``."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Iterator

import pytest

from aioparallel import ParallelConsumer
from aioparallel.records import Record
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.filling import Message, fill

pytestmark = pytest.mark.real

DEADLINE = 120.0
KIB = 1024


@pytest.fixture
def no_collections() -> Iterator[None]:
    """What is freed meanwhile is freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def live_records() -> int:
    """Records that exist in this process."""
    return sum(type(one) is Record for one in gc.get_objects())


@pytest.mark.usefixtures("no_collections")
async def test_ended_records_are_freed_at_once(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """However many records have ended, no more exist than are buffered and in flight, without the garbage collector:
    an ended record is part of no reference cycle, so a backlog's values do not pile up between collections."""
    topic = await kafka_topic(2)
    fill(
        local_kafka.bootstrap_servers,
        topic,
        ((serial % 2, Message(key=b"key-%04d" % (serial % 997), value=b"")) for serial in range(6_000)),
    )
    before, ended, most = live_records(), 0, 0

    async def handle(record: Record) -> None:
        nonlocal ended, most
        await asyncio.sleep(0)
        ended += 1
        if ended % 1_000 == 0:
            most = max(most, live_records() - before)

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=local_kafka.bootstrap_servers,
        group_id=f"group-{uuid.uuid4().hex}",
        max_buffered=500,
        until="end",
    )
    async with asyncio.timeout(DEADLINE), consumer:
        await consumer.run(handle)
    assert ended == 6_000
    assert most <= 500 + 100


async def test_large_records_are_bounded_by_bytes(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """With ``max_buffered_bytes`` of 256 KiB, 26 records of 10 KB, all of 2,000 are read, and what is buffered passes
    the bound by no more than one fetch."""
    topic = await kafka_topic(4)
    fill(
        local_kafka.bootstrap_servers,
        topic,
        ((serial % 4, Message(key=b"key-%03d" % (serial % 199), value=bytes(10_000))) for serial in range(2_000)),
    )
    ended, most = 0, 0

    async def handle(record: Record) -> None:
        nonlocal ended, most
        most = max(most, consumer.stats().buffered_bytes)
        await asyncio.sleep(0.005)
        ended += 1

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=local_kafka.bootstrap_servers,
        group_id=f"group-{uuid.uuid4().hex}",
        max_concurrency=50,
        max_buffered_bytes=256 * KIB,
        until="end",
    )
    async with asyncio.timeout(DEADLINE), consumer:
        await consumer.run(handle)
    assert ended == 2_000
    # The first fetch does not know the size yet: it takes a record for 4 KiB, so it brings up to 64.
    assert most <= 64 * 10_007
