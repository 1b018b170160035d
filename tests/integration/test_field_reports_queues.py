"""What users of other queues have reported, tried on ``KmqConsumer`` and its tracker. ``docs/testing.md`` names the
threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioparallel import Record, RetryLater
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker, redeliveries
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.integration.test_field_reports import plain
from tests.integration.test_kmq import new_queue
from tests.support.kafka.filling import fill
from tests.support.kafka.reading import read_all
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

LEASE = 1.0


@contextlib.asynccontextmanager
async def tracking(servers: str, queue: str, **options: Any) -> AsyncIterator[RedeliveryTracker]:
    """A tracker for the length of a block."""
    tracker = RedeliveryTracker(queue, group_id=f"{queue}-trackers", bootstrap_servers=servers, **options)
    async with tracker:
        running = asyncio.create_task(tracker.run())
        try:
            yield tracker
        finally:
            tracker.stop()
            await running


def consumer_of(servers: str, queue: str, **options: Any) -> KmqConsumer[bytes, bytes]:
    """Of the queue, without a tracker."""
    given = {"lease": LEASE, "tracker": False, "commit_interval": 0.1, **options}
    return KmqConsumer(queue, group_id=f"{queue}-workers", bootstrap_servers=servers, **given)


async def test_a_tracker_that_comes_late_delivers_nothing_that_has_ended(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """Leases have run out long ago and the end markers are thousands of markers behind their start markers: it reads
    them all before it redelivers anything. What had not ended comes again, though no marker follows."""
    servers, queue = local_kafka.bootstrap_servers, await new_queue(local_kafka, kafka_topic)
    fill(servers, queue, plain(2_001, partitions=1))
    gate, ended, never = asyncio.Event(), Counter[int](), asyncio.Event()
    begun: set[int] = set()

    async def work(record: Record[bytes, bytes]) -> None:
        begun.add(record.offset)
        await (never if record.value == b"2000" else gate).wait()
        ended[record.offset] += 1

    consumer = consumer_of(servers, queue, max_concurrency=3_000, drain_timeout=1)
    async with consumer:
        running = asyncio.create_task(consumer.run(work))
        await until(lambda: len(begun) == 2_001)
        gate.set()
        await until(lambda: len(ended) == 2_000)
        consumer.stop(drain=False)
        await running
    await asyncio.sleep(LEASE)  # there is nobody to wait for: this is the lease
    again: list[tuple[bytes, int]] = []

    async def note(record: Record[bytes, bytes]) -> None:
        again.append((record.value, redeliveries(record)))

    async with tracking(servers, queue) as tracker, consumer_of(servers, queue) as heir:
        running = asyncio.create_task(heir.run(note))
        took = await until(lambda: again, what=lambda: str(tracker.stats()))
        assert took < SLACK
        heir.stop()
        await running
        assert tracker.stats().redelivered == 1
    assert again == [(b"2000", 1)]
    assert len(await read_all(servers, queue)) == 2_002


async def test_a_delay_longer_than_the_lease_is_no_redelivery(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A handler asks for a delay of more leases than there are deliveries: the record waits here, is called a second
    time when it has asked to, and is neither delivered to others nor put away. A stop does not wait for it, and then it
    is delivered to others."""
    servers, queue = local_kafka.bootstrap_servers, await new_queue(local_kafka, kafka_topic)
    fill(servers, queue, plain(20, partitions=2))
    began: dict[bytes, float] = {}
    done: Counter[bytes] = Counter()
    now = asyncio.get_running_loop().time

    async def work(record: Record[bytes, bytes]) -> None:
        if began.setdefault(record.value, now()) + 2.9 * LEASE > now():
            raise RetryLater(3 * LEASE)
        if record.value == b"7" and not redeliveries(record):
            raise RetryLater(3600)
        done[record.value] += 1

    async with tracking(servers, queue, max_redeliveries=1) as tracker:
        async with consumer_of(servers, queue) as consumer:
            running = asyncio.create_task(consumer.run(work))
            await until(lambda: len(done) == 19, what=lambda: f"{consumer.stats()} {tracker.stats()}")
            assert tracker.stats().redelivered == consumer.stats().released == 0
            stopped = now()
            consumer.stop()
            await running
            assert now() - stopped < SLACK
        async with consumer_of(servers, queue) as heir:
            running = asyncio.create_task(heir.run(work))
            await until(lambda: len(done) == 20, what=lambda: f"{heir.stats()} {tracker.stats()}")
            heir.stop()
            await running
    assert set(done.values()) == {1}
    assert len(await read_all(servers, queue)) == 21
    assert not await read_all(servers, f"{queue}__undelivered")
