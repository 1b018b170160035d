"""Share consumers on Apache Kafka."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel import ConfigurationError, Outgoing, ProblemKind, Record, Reject, TopicPartition
from aioparallel.group.share_client import AcknowledgeType
from aioparallel.queues.share import ShareConsumer
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.share_members import configured, new_group, produce, share_member
from tests.support.waiting import until

pytestmark = pytest.mark.real

SHORT_LOCK = {"share.record.lock.duration.ms": "15000"}
"""The shortest that brokers allow."""


@asynccontextmanager
async def running(kafka: LocalKafka, topic: str, group: str, handler: Any, **options: Any) -> AsyncIterator[Any]:
    """A consumer, while the block runs; what ended it is raised."""
    consumer: ShareConsumer[Any, Any] = ShareConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group, **options
    )
    async with consumer:
        task = asyncio.create_task(consumer.run(handler))
        try:
            await until(lambda: consumer.health().joined or task.done())
            yield consumer
        finally:
            consumer.stop()
            await task


class Handler:
    """Notes what it is given; ``does`` by record."""

    def __init__(self, does: Callable[[Record], Any] = lambda record: None) -> None:
        self.does = does
        self.seen: Counter[bytes | None] = Counter()
        self.counts: list[int] = []

    async def __call__(self, record: Record) -> Any:
        self.seen[record.value] += 1
        self.counts.append(record.delivery_count)
        found = self.does(record)
        return await found if asyncio.iscoroutine(found) else found


async def test_members_share_a_partition(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """More members than partitions: each record is handled once, and all members take part."""
    topic, group = await kafka_topic(1), await configured(local_kafka.bootstrap_servers, new_group(), {})
    handlers = [Handler(lambda _: asyncio.sleep(0.02)) for _ in range(3)]
    async with (
        running(local_kafka, topic, group, handlers[0], max_concurrency=10) as first,
        running(local_kafka, topic, group, handlers[1], max_concurrency=10) as second,
        running(local_kafka, topic, group, handlers[2], max_concurrency=10) as third,
    ):
        await until(lambda: all(one.stats().partitions for one in (first, second, third)))
        await produce(local_kafka, topic, 3_000)
        await until(lambda: sum(one.stats().share.accepted for one in (first, second, third)) == 3_000)
        assert sum(one.stats().share.late for one in (first, second, third)) == 0
    seen = sum([handler.seen for handler in handlers], Counter[bytes | None]())
    assert (len(seen), set(seen.values())) == (3_000, {1})
    assert all(handler.seen for handler in handlers)


async def test_the_groups_limit_is_known_at_the_start(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A record that the group gives up before it is dead-lettered would be lost."""
    topic, dead = await kafka_topic(1), await kafka_topic(1)
    group = await configured(local_kafka.bootstrap_servers, new_group(), {"share.delivery.count.limit": "2"})
    options: dict[str, Any] = {"bootstrap_servers": local_kafka.bootstrap_servers, "group_id": group}
    with pytest.raises(ConfigurationError, match="max_deliveries=5: must be at most 2, the group's"):
        async with ShareConsumer(topic, dead_letter=dead, max_deliveries=5, **options):
            pass
    async with ShareConsumer(topic, dead_letter=dead, **options):
        pass


@pytest.mark.slow
async def test_the_groups_limit_changes(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A member that runs notices."""
    topic, dead = await kafka_topic(1), await kafka_topic(1)
    group = await configured(local_kafka.bootstrap_servers, new_group(), {})
    await produce(local_kafka, topic, 1)
    gate = asyncio.Event()

    async def does(record: Record) -> None:
        if record.delivery_count == 2:
            await gate.wait()
        raise ValueError

    handler = Handler(does)
    async with running(local_kafka, topic, group, handler, dead_letter=dead) as consumer:
        await until(lambda: handler.counts == [1, 2])
        await configured(local_kafka.bootstrap_servers, group, {"share.delivery.count.limit": "2"})
        await until(lambda: consumer._membership._client.delivery_limit == 2)
        gate.set()
        await until(lambda: consumer.stats().dead_lettered == 1)
        assert consumer.stats().share.given_up == 0


async def test_what_comes_in_its_last_delivery(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Members that had it died: it is dead-lettered, and not begun."""
    topic, dead = await kafka_topic(1), await kafka_topic(1)
    group = await configured(local_kafka.bootstrap_servers, new_group(), {})
    await produce(local_kafka, topic, 2)
    async with share_member(local_kafka.bootstrap_servers, group, topic) as dying:
        for _ in range(4):
            await dying.end(await dying.take(2), AcknowledgeType.RELEASE)
    handler = Handler()
    async with running(local_kafka, topic, group, handler, dead_letter=dead) as consumer:
        await until(lambda: consumer.stats().dead_lettered == 2)
        await until(lambda: consumer.stats().share.accepted == 2)
    assert not handler.seen


async def test_failed_and_rejected_records(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A failed record is delivered again at once, with a higher count; a rejected one is not."""
    topic, group = await kafka_topic(1), await configured(local_kafka.bootstrap_servers, new_group(), {})

    def does(record: Record) -> None:
        if record.value == b"v0" and record.delivery_count < 3:
            raise ValueError
        if record.value == b"v1":
            raise Reject("no")

    handler = Handler(does)
    async with running(local_kafka, topic, group, handler) as consumer:
        await produce(local_kafka, topic, 10)
        await until(lambda: consumer.stats().share.accepted == 9 and consumer.stats().share.rejected == 1)
    assert handler.seen[b"v0"] == 3
    assert handler.seen[b"v1"] == 1
    assert sorted(handler.counts)[-2:] == [2, 3]


async def test_outputs_and_dead_letters(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Both are written before their records are accepted."""
    topic, out, dead = await kafka_topic(1), await kafka_topic(1), await kafka_topic(1)
    group = await configured(local_kafka.bootstrap_servers, new_group(), {})

    def does(record: Record) -> Outgoing:
        if record.value == b"v1":
            raise ValueError
        return Outgoing(out, record.value)

    handler = Handler(does)
    async with running(local_kafka, topic, group, handler, dead_letter=dead, max_deliveries=2) as consumer:
        await produce(local_kafka, topic, 10)
        await until(lambda: consumer.stats().share.accepted == 10)
        assert consumer.stats().dead_lettered == 1
    assert handler.seen[b"v1"] == 2


@pytest.mark.parametrize("has_letters", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_stops_during_a_long_job(local_kafka: LocalKafka, kafka_topic: TopicMaker, has_letters: bool) -> None:
    """Each cuts it off. In the group's last delivery it is dead-lettered, or counted as given up."""
    topic, dead = await kafka_topic(1), await kafka_topic(1)
    group = await configured(local_kafka.bootstrap_servers, new_group(), {})
    await produce(local_kafka, topic, 1)
    handler = Handler(lambda _: asyncio.sleep(1_000))
    options: dict[str, Any] = {"drain_timeout": 0.5}
    if has_letters:
        options |= {"dead_letter": dead, "max_deliveries": 5}
    for number in range(1, 6):
        async with running(local_kafka, topic, group, handler, **options) as consumer:
            await until(lambda: consumer.stats().in_flight == 1)
        stats = consumer.stats()
        assert (stats.dead_lettered, stats.share.given_up) == (
            number == 5 and has_letters,
            number == 5 and not has_letters,
        )
    assert handler.counts == [1, 2, 3, 4, 5]
    async with running(local_kafka, topic, group, handler, **options):
        await asyncio.sleep(3)
    assert len(handler.counts) == 5


@pytest.mark.slow
async def test_a_handler_longer_than_its_lock(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The lock is renewed."""
    topic, group = await kafka_topic(1), await configured(local_kafka.bootstrap_servers, new_group(), SHORT_LOCK)
    handler = Handler(lambda _: asyncio.sleep(25))
    async with running(local_kafka, topic, group, handler) as consumer:
        await produce(local_kafka, topic, 1)
        await until(lambda: consumer.stats().share.accepted == 1)
        assert consumer.stats().share.renewed >= 2
    assert handler.counts == [1]


@pytest.mark.slow
async def test_a_lock_that_cannot_be_renewed(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The handler is cancelled in time, and the record comes again at once."""
    topic = await kafka_topic(1)
    configs = {**SHORT_LOCK, "share.renew.acknowledge.enable": "false"}
    group = await configured(local_kafka.bootstrap_servers, new_group(), configs)
    handler = Handler(lambda record: asyncio.sleep(25) if record.delivery_count == 1 else None)
    async with running(local_kafka, topic, group, handler) as consumer:
        await produce(local_kafka, topic, 1)
        await until(lambda: consumer.stats().share.accepted == 1)
        assert [one.kind for one in consumer.health().problems] == [ProblemKind.LOCK_LOST]
        share = consumer.stats().share
        assert (share.lost, share.late, share.released) == (1, 0, 1)
    assert handler.counts == [1, 2]


async def test_a_paused_partition(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """It is not acquired, and no delivery is used up; the other goes on."""
    topic, group = await kafka_topic(2), await configured(local_kafka.bootstrap_servers, new_group(), {})
    handler = Handler()
    async with running(local_kafka, topic, group, handler) as consumer:
        await until(lambda: len(consumer.stats().partitions) == 2)
        consumer.pause(TopicPartition(topic, 0))
        await asyncio.sleep(1)
        await produce(local_kafka, topic, 100, partition=0)
        await produce(local_kafka, topic, 100, partition=1, first=100)
        await until(lambda: consumer.stats().share.accepted == 100)
        await asyncio.sleep(1)
        assert consumer.stats().admitted == 100
        consumer.resume(TopicPartition(topic, 0))
        await until(lambda: consumer.stats().share.accepted == 200)
    assert set(handler.counts) == {1}


async def test_a_stop_leaves_the_rest_to_others(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """What was not begun is released at once; the next member need not wait for any lock."""
    topic, group = await kafka_topic(1), await configured(local_kafka.bootstrap_servers, new_group(), {})
    await produce(local_kafka, topic, 2_000)
    first, second = Handler(lambda _: asyncio.sleep(0.05)), Handler()
    async with running(local_kafka, topic, group, first, max_concurrency=10):
        await until(lambda: len(first.seen) > 100)
    began = time.monotonic()
    async with running(local_kafka, topic, group, second) as consumer:
        await until(lambda: len({*first.seen, *second.seen}) == 2_000)
        await consumer.commit_now()
    assert time.monotonic() - began < 15
    assert (first.seen + second.seen).total() == 2_000


async def test_a_bounded_run(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """It ends when nothing is left, and says how fast it was."""
    topic, group = await kafka_topic(4), await configured(local_kafka.bootstrap_servers, new_group(), {})
    for partition in range(4):
        await produce(local_kafka, topic, 5_000, partition, first=5_000 * partition)
    handler = Handler(lambda _: asyncio.sleep(0.005))
    consumer: ShareConsumer[Any, Any] = ShareConsumer(
        topic, bootstrap_servers=local_kafka.bootstrap_servers, group_id=group, until="end", max_concurrency=500
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(handler))
        await until(lambda: handler.seen)
        began = time.monotonic()
        await until(lambda: len(handler.seen) == 20_000)
        print(f"{20_000 / (time.monotonic() - began):,.0f} records a second")
        await running
        stats = consumer.stats()
    assert stats.share is not None
    assert (stats.share.accepted, stats.share.late, stats.share.released) == (20_000, 0, 0)
    assert set(handler.seen.values()) == {1}
