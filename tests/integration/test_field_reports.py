"""What users of other consumers have reported, tried on this one. ``docs/testing.md`` names the threads."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Sequence
from typing import Any, Unpack

import pytest
from confluent_kafka import Producer

from aioparallel import FailurePolicy, Outgoing, ParallelConsumer, Record, RetryPolicy, TopicPartition
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.config.options import OptionFields
from aioparallel.observe.health import ProblemKind
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consume, consuming
from tests.support.kafka.filling import Message, fill, fill_numbered
from tests.support.kafka.reading import committed
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real


def member(
    kafka: LocalKafka, topics: str | Sequence[str] | re.Pattern[str], group: str, **options: Unpack[OptionFields]
) -> ParallelConsumer[Any, Any]:
    """One of a group that commits, and hears of rebalances and of topics, at once."""
    quick: OptionFields = {
        "commit_interval": 0.1,
        "session_timeout": 6,
        "heartbeat_interval": 0.3,
        "drain_timeout": 2,
        "client_options": {"metadata_max_age_ms": 200},
    }
    quick.update(options)
    return ParallelConsumer(topics, bootstrap_servers=kafka.bootstrap_servers, group_id=group, **quick)


def unique() -> str:
    return f"field-{uuid.uuid4().hex[:12]}"


def plain(count: int, partitions: int = 1) -> list[Message]:
    """So many, each of a key of its own, spread over the partitions."""
    return [Message(b"%d" % i, b"%d" % i, partition=i % partitions) for i in range(count)]


async def offsets(kafka: LocalKafka, group: str) -> dict[str, int]:
    """What a group has committed, by topic of one partition."""
    async with Admin(kafka.bootstrap_servers) as admin:
        return {place.topic: one.offset for place, one in (await admin.committed(group)).items()}


async def test_a_topic_of_a_pattern_is_deleted(local_kafka: LocalKafka) -> None:
    """The other topics go on, also their commits, though a record of the deleted one is still in flight; the end does
    not wait for it."""
    stem, group = unique(), unique()
    kept, gone = f"{stem}-kept", f"{stem}-gone"
    for name in (kept, gone):
        await local_kafka.create_topic(name, 1)
    seen: list[str] = []

    async def handle(record: Record) -> None:
        seen.append(record.topic)
        if record.topic == gone:
            await asyncio.Event().wait()

    consumer = member(local_kafka, re.compile(f"{stem}-.*"), group)
    async with consuming(consumer, handle):
        for name in (kept, gone):
            fill(local_kafka.bootstrap_servers, name, plain(1))
        await until(lambda: sorted(seen) == [gone, kept], what=lambda: str(seen))
        async with Admin(local_kafka.bootstrap_servers) as admin:
            await admin.delete_topics(gone)
        fill(local_kafka.bootstrap_servers, kept, plain(4))

        async def taken() -> bool:
            return (await offsets(local_kafka, group)).get(kept) == 5

        await until(taken, what=lambda: str(consumer.health()))
        await until(lambda: [one.topic for one in consumer.stats().partitions] == [kept])
        began = asyncio.get_running_loop().time()
        consumer.stop()
    assert asyncio.get_running_loop().time() - began < 2 + SLACK


@pytest.mark.slow
async def test_one_of_several_topics_is_deleted_and_made_again(local_kafka: LocalKafka) -> None:
    """The others go on, ``health()`` names the one that is gone; when it is made again it is read, and nothing is
    wrong."""
    group, names = unique(), [unique() for _ in range(3)]
    for name in names:
        await local_kafka.create_topic(name, 1)
    seen: list[str] = []

    async def handle(record: Record) -> None:
        seen.append(record.topic)

    consumer = member(local_kafka, names, group)

    def told() -> list[str]:
        return [problem.message for problem in consumer.health().problems if problem.kind is ProblemKind.TOPIC_GONE]

    async with consuming(consumer, handle):
        for name in names:
            fill(local_kafka.bootstrap_servers, name, plain(1))
        await until(lambda: len(seen) == 3, what=lambda: str(seen))
        assert not told()
        async with Admin(local_kafka.bootstrap_servers) as admin:
            await admin.delete_topics(names[1])
        await until(told, what=lambda: str(consumer.health()))
        assert names[1] in told()[0]
        assert consumer.health().ready
        for name in (names[0], names[2]):
            fill(local_kafka.bootstrap_servers, name, plain(1))
        await until(lambda: len(seen) == 5, what=lambda: str(seen))
        await local_kafka.create_topic(names[1], 1)
        fill(local_kafka.bootstrap_servers, names[1], plain(5))
        await until(lambda: seen.count(names[1]) >= 5 and not told(), what=lambda: str(consumer.health()))


async def test_a_retry_that_waits_holds_up_nobody(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Records that wait an hour for their next attempt hold up neither a member that joins nor the stop; whoever has
    their partition then runs them, and nothing else again."""
    topic, group = await kafka_topic(2), unique()
    fill(local_kafka.bootstrap_servers, topic, plain(40, partitions=2))
    calls: list[tuple[int, int]] = []

    async def fails(record: Record) -> None:
        calls.append((record.partition, record.offset))
        if record.offset == 3:
            raise ValueError("not now")

    again: list[tuple[int, int]] = []

    async def note(record: Record) -> None:
        again.append((record.partition, record.offset))

    first = member(local_kafka, topic, group, failures=FailurePolicy(retry=RetryPolicy(first_delay=3600)))
    async with consuming(first, fails):
        await until(
            lambda: first.stats().parked == 2 and first.stats().succeeded == 38, what=lambda: str(first.stats())
        )
        joined = asyncio.get_running_loop().time()
        async with consuming(member(local_kafka, topic, group), note):
            await until(lambda: len(again) == 1)
            assert asyncio.get_running_loop().time() - joined < SLACK
            left = asyncio.get_running_loop().time()
            first.stop()
            await until(lambda: first.stats().parked == 0)
            assert asyncio.get_running_loop().time() - left < SLACK
    assert again[0] in {(0, 3), (1, 3)}
    assert len(again) == 1
    # The first member called the one that stayed with it once more at most, when the group came together anew.
    assert len(calls) <= 41


async def test_a_position_inside_a_compressed_batch(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Brokers answer with the whole batch: what is before the position, or complete by the map, does not run again."""
    topic, group = await kafka_topic(), unique()
    fill(local_kafka.bootstrap_servers, topic, plain(1_000), codec="lz4")
    ended: list[int] = []

    async def some(record: Record) -> None:
        if record.offset == 437 or record.offset >= 800:
            await asyncio.Event().wait()
        ended.append(record.offset)

    first = member(local_kafka, topic, group, max_concurrency=1_000)
    async with consuming(first, some, drain=False):
        await until(lambda: len(ended) == 799, what=lambda: str(len(ended)))
    again: list[int] = []

    async def note(record: Record) -> None:
        again.append(record.offset)

    await consume(member(local_kafka, topic, group, until="end"), note)
    assert sorted(again) == [437, *range(800, 1_000)]


async def test_nothing_is_not_the_same_as_empty(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Records without a key, tombstones and headers without a value are handled, and arrive in outputs, in a retry
    topic and in dead letters as they were; so do empty ones, and headers of one name."""
    topic, retry, dead, out = [await kafka_topic() for _ in range(4)]
    headers: list[tuple[str, bytes | None]] = [("twice", None), ("empty", b""), ("twice", b"2")]
    producer = Producer({"bootstrap.servers": local_kafka.bootstrap_servers})
    kinds = [(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")]
    for key, value in kinds:
        producer.produce(topic, value, key, headers=list(headers))
    producer.flush(30)
    found: dict[str, list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]] = {
        name: [] for name in (topic, retry, dead, out)
    }

    async def keep(record: Record) -> None:
        own = [(name, one) for name, one in record.headers if name in ("twice", "empty")]
        found[record.topic].append((record.key, record.value, own))

    async def handle(record: Record) -> Outgoing:
        await keep(record)
        if record.value == b"":
            raise ValueError("always")
        if record.value is None and record.topic == topic:
            raise ValueError("once")
        return Outgoing(out, record.value, record.key, record.headers)

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={retry: 0.1}, dead_letter=dead)
    consumer = member(local_kafka, topic, unique(), failures=failures)
    async with consuming(consumer, handle):
        await until(lambda: consumer.stats().succeeded == 6 and consumer.stats().dead_lettered == 6 + 3)
    await consume(member(local_kafka, [dead, out], unique(), until="end"), keep)

    def with_headers(wanted: list[tuple[bytes | None, bytes | None]]) -> list[str]:
        return sorted(repr((key, value, headers)) for key, value in wanted)

    rows = {name: sorted(map(repr, of_name)) for name, of_name in found.items()}
    assert rows[topic] == with_headers(kinds)
    assert rows[retry] == with_headers([(key, value) for key, value in kinds if not value])
    assert rows[dead] == with_headers([(key, value) for key, value in kinds if value == b""])
    assert rows[out] == with_headers([(key, value) for key, value in kinds if value != b""])


async def test_topics_that_share_keys(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A key that stands in three topics has a lane in each: all are handled once, in their order, and committed."""
    topics, group = [await kafka_topic() for _ in range(3)], unique()
    for topic in topics:
        fill_numbered(local_kafka.bootstrap_servers, topic, 333, keys=5)
    orders = {topic: OrderChecker() for topic in topics}
    seen: list[tuple[str, int]] = []

    async def handle(record: Record) -> None:
        with orders[record.topic].handling(record):
            await asyncio.sleep(0)
        seen.append((record.topic, record.offset))

    await consume(member(local_kafka, topics, group, until="end"), handle)
    for order in orders.values():
        order.check()
    assert len(set(seen)) == len(seen) == 999
    assert await offsets(local_kafka, group) == dict.fromkeys(topics, 333)


async def test_a_full_buffer_does_not_hold_up_a_rebalance(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Hundreds of slow records are buffered: a member that joins gets its partitions as soon
    as what is in flight has ended, and when it leaves they are read again here. Each record runs once."""
    topic, group = await kafka_topic(4), unique()
    fill(local_kafka.bootstrap_servers, topic, plain(2_400, partitions=4))
    runs: list[tuple[int, int, int]] = []

    def handler(number: int) -> Any:
        async def handle(record: Record) -> None:
            await asyncio.sleep(0.02)
            runs.append((number, record.partition, record.offset))

        return handle

    def one() -> ParallelConsumer[Any, Any]:
        return member(local_kafka, topic, group, max_concurrency=20, max_buffered=2_000)

    first = one()
    async with consuming(first, handler(1)):
        await until(lambda: first.stats().buffered > 500 and len(runs) > 20, what=lambda: str(first.stats()))
        async with consuming(one(), handler(2)):
            took = await until(lambda: any(number == 2 for number, *_ in runs))
            assert took < SLACK
            await until(lambda: sum(number == 2 for number, *_ in runs) > 200)
        await until(lambda: len({run[1:] for run in runs}) == 2_400)
    assert len(runs) == 2_400


async def test_what_is_paused_stays_paused_through_a_rebalance(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """Partitions that come to a paused member wait with the others, and ``resume()`` is for all of them."""
    topic, group = await kafka_topic(4), unique()
    runs: list[tuple[int, int]] = []

    async def handle(record: Record) -> None:
        runs.append((record.partition, record.offset))

    first, second = member(local_kafka, topic, group), member(local_kafka, topic, group)
    async with consuming(first, handle):
        async with consuming(second, handle):
            await until(lambda: len(second.stats().partitions) == 2 and second.health().ready)
            first.pause()
        await until(lambda: len(first.stats().partitions) == 4 and first.health().ready)
        fill(local_kafka.bootstrap_servers, topic, plain(40, partitions=4))
        await until(lambda: first.stats().lag == 40, what=lambda: str(first.stats()))
        assert not runs
        first.resume()
        await until(lambda: len(runs) == 40)
    assert sorted(runs) == [(partition, offset) for partition in range(4) for offset in range(10)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_retention_overtakes_a_stuck_record(local_kafka: LocalKafka, kafka_topic: TopicMaker, start: Any) -> None:
    """The committed position is no longer in the log when the next process starts: it goes on at the log's beginning,
    whatever a group without a position would do, and what is complete by the map does not run again."""
    topic, group, servers = await kafka_topic(), unique(), local_kafka.bootstrap_servers
    fill(servers, topic, plain(100))
    ended: list[int] = []

    async def some(record: Record) -> None:
        if record.offset in (10, 70):
            await asyncio.Event().wait()
        ended.append(record.offset)

    first = member(local_kafka, topic, group)
    async with consuming(first, some, drain=False):
        await until(lambda: len(ended) == 98)
    async with Admin(servers) as admin:
        await admin.delete_records({TopicPartition(topic, 0): 50})
    fill(servers, topic, plain(20))
    again: list[int] = []

    async def note(record: Record) -> None:
        again.append(record.offset)

    stats = await consume(member(local_kafka, topic, group, until="end", auto_offset_reset=start), note)
    assert sorted(again) == [70, *range(100, 120)]
    assert (stats.offset_resets, stats.lag) == (1, 0)
    assert (await committed(servers, group))[0].offset == 120
