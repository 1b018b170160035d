"""The consumer on Apache Kafka: what only a real broker shows."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from aioparallel import ParallelConsumer, Record
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.offsets import decode_offset_map
from aioparallel.records.errors import BrokerUnreachable, TopicNotFound
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed
from tests.support.waiting import until

pytestmark = pytest.mark.real


def values(count: int) -> Iterator[Message]:
    """So many of fifty keys, each value another one."""
    for i in range(count):
        yield Message(b"%d" % (i % 50), b"value %d" % i * 5)


async def collect(servers: str, topic: str, group: str | None = None) -> list[Record]:
    """Run to the end offsets."""
    records: list[Record] = []

    async def handle(record: Record) -> None:
        records.append(record)

    await consume(consumer_of(servers, topic, group_id=group, until="end"), handle)
    return records


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_topics_are_read(local_kafka: LocalKafka, kafka_topic: TopicMaker, codec: str) -> None:
    """Batches of every codec arrive whole and in order."""
    topic = await kafka_topic(partitions=2)
    fill(local_kafka.bootstrap_servers, topic, values(500), codec=codec)
    records = await collect(local_kafka.bootstrap_servers, topic)
    assert sorted(record.value or b"" for record in records) == sorted(one.value or b"" for one in values(500))


async def test_lag_reaches_zero_behind_aborted_transactions(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Under read_committed an aborted transaction at the tail is passed: lag 0, the end offset is committed."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=1)
    fill(servers, topic, values(5))
    fill(servers, topic, [Message(None, b"aborted")] * 20, aborted=True)
    seen: list[bytes | None] = []

    async def handle(record: Record) -> None:
        seen.append(record.value)

    consumer = consumer_of(servers, topic, client_options={"isolation_level": "read_committed"}, commit_interval=0.1)
    async with consuming(consumer, handle):
        await until(lambda: len(seen) == 5 and consumer.stats().lag == 0)
        await until(lambda: consumer.stats().partitions[0].committed == 26)
    assert b"aborted" not in seen


async def test_smaller_metadata_limit_is_learnt_and_nothing_lost() -> None:
    """offset.metadata.max.bytes=200: the refusal is learnt from, maps are cut to fit, a restart loses nothing."""
    rng = random.Random(2)
    stuck = {offset for offset in range(20_000) if rng.random() < 0.1}
    ended: set[int] = set()

    async def some_stick(record: Record) -> None:
        if record.offset in stuck:
            await asyncio.Event().wait()
        ended.add(record.offset)

    async with LocalKafka(compile_once=True, server_properties={"offset.metadata.max.bytes": "200"}) as broker:
        servers, topic = broker.bootstrap_servers, "small"
        await broker.create_topic(topic, 1)
        fill(servers, topic, [Message(None, b"v")] * 20_000)
        consumer = consumer_of(
            servers, topic, group_id="small-g", max_concurrency=4_000, max_buffered=30_000, commit_interval=0.2,
            session_timeout=3, heartbeat_interval=1,
        )  # fmt: skip
        async with consuming(consumer, some_stick, drain=False):
            await until(lambda: len(ended) == 20_000 - len(stuck))
            await until(lambda: consumer.stats().partitions[0].map_cut_at is not None)
            await consumer.commit_now()
            assert 0 < consumer.stats().metadata_limit <= 200
        offset, metadata, *_ = (await committed(servers, "small-g"))[0]
        known = decode_offset_map(offset, metadata)
        assert (offset, 0 < len(metadata) <= 200) == (min(stuck), True)
        again = {record.offset for record in await collect(servers, topic, "small-g")}
    assert again == set(known.incompletes) | set(range(known.highest_succeeded + 1, 20_000))


async def test_missing_topic_and_dead_broker_are_one_clear_error(
    local_kafka: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Both end within their deadline, with one error and nothing on the log above INFO; no topic is created."""
    servers = local_kafka.bootstrap_servers
    with caplog.at_level(logging.INFO):
        with pytest.raises(TopicNotFound, match="no-such-topic"):
            await ParallelConsumer("no-such-topic", bootstrap_servers=servers, group_id="g").__aenter__()
        since = time.monotonic()
        dead = ParallelConsumer("t", bootstrap_servers="127.0.0.1:1", group_id="g", connect_timeout=2)
        with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1 within 2 s"):
            await dead.__aenter__()
        assert time.monotonic() - since < 15
    assert [entry for entry in caplog.records if entry.levelno > logging.INFO] == []
    async with Admin(servers) as admin:
        assert "no-such-topic" not in await admin.topics()


async def test_runs_inside_another_application(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """In a running loop beside other work: a background task, stopped by the end of the block, as in a lifespan."""
    topic = await kafka_topic(partitions=4)
    seen: list[int] = []

    async def handle(record: Record) -> None:
        seen.append(record.offset)

    async def lifespan() -> AsyncIterator[None]:
        consumer = ParallelConsumer(topic, bootstrap_servers=local_kafka.bootstrap_servers, group_id=f"{topic}-g")
        async with consumer:
            running = asyncio.create_task(consumer.run(handle))
            yield
        await running

    async with asyncio.timeout(120):
        async for _ in lifespan():
            fill(local_kafka.bootstrap_servers, topic, values(200))
            await until(lambda: len(seen) == 200)
    found = await committed(local_kafka.bootstrap_servers, f"{topic}-g")
    assert sum(offset for offset, *_ in found.values()) == 200
