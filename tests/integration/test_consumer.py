"""The consumer on Apache Kafka: what only a real broker shows."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka import AIOKafkaProducer

from aioparallel import ParallelConsumer, Record
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.errors import BrokerUnreachable, TopicNotFound
from aioparallel.offsets import decode_offset_map
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker

pytestmark = pytest.mark.real


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def produce(servers: str, topic: str, count: int, **options: object) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5, **options) as producer:
        sends = [await producer.send(topic, b"value %d" % i * 5, key=b"%d" % (i % 50)) for i in range(count)]
        await asyncio.gather(*sends)


async def committed(servers: str, group: str) -> dict[int, tuple[int, str]]:
    async with Admin(servers) as admin:
        found = await admin.committed(group)
    return {tp.partition: (one.offset, one.metadata) for tp, one in found.items()}


async def collect(servers: str, topic: str, group: str) -> list[Record]:
    """Run to the end offsets."""
    records: list[Record] = []

    async def handle(record: Record) -> None:
        records.append(record)

    consumer = ParallelConsumer(topic, bootstrap_servers=servers, group_id=group, until="end")
    async with asyncio.timeout(120), consumer:
        await consumer.run(handle)
    return records


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_topics_are_read(local_kafka: LocalKafka, kafka_topic: TopicMaker, codec: str) -> None:
    """Batches of every codec arrive whole and in order."""
    topic = await kafka_topic(partitions=2)
    await produce(local_kafka.bootstrap_servers, topic, 500, compression_type=codec)
    records = await collect(local_kafka.bootstrap_servers, topic, f"{topic}-g")
    assert sorted(record.value or b"" for record in records) == sorted(b"value %d" % i * 5 for i in range(500))


async def test_lag_reaches_zero_behind_aborted_transactions(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Under read_committed an aborted transaction at the tail is passed: lag 0, the end offset is committed."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=1)
    await produce(servers, topic, 5)
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-tx") as producer:
        await producer.begin_transaction()
        await asyncio.gather(*[await producer.send(topic, b"aborted") for _ in range(20)])
        await producer.abort_transaction()
    values: list[bytes | None] = []

    async def handle(record: Record) -> None:
        values.append(record.value)

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"{topic}-g",
        client_options={"isolation_level": "read_committed"},
        commit_interval=0.1,
    )
    async with asyncio.timeout(120), consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine is not None and len(values) == 5 and consumer.stats().lag == 0)
        await until(lambda: consumer.stats().partitions[0].committed == 26)
        consumer.stop()
        await running
    assert b"aborted" not in values


async def test_smaller_metadata_limit_is_learnt_and_nothing_lost(tmp_path: object) -> None:
    """offset.metadata.max.bytes=200: the refusal is learnt from, maps are cut to fit, a restart loses nothing."""
    rng = random.Random(2)
    stuck = {offset for offset in range(20_000) if rng.random() < 0.1}
    ended: set[int] = set()

    async def some_stick(record: Record) -> None:
        if record.offset in stuck:
            await asyncio.Event().wait()
        ended.add(record.offset)

    async with LocalKafka(server_properties={"offset.metadata.max.bytes": "200"}) as broker:
        servers, topic = broker.bootstrap_servers, "small"
        await broker.create_topic(topic, 1)
        async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5) as producer:
            await asyncio.gather(*[await producer.send(topic, b"v") for _ in range(20_000)])
        consumer = ParallelConsumer(
            topic, bootstrap_servers=servers, group_id="small-g", max_concurrency=4_000, max_buffered=30_000,
            commit_interval=0.2, session_timeout=3, heartbeat_interval=1,
        )  # fmt: skip
        async with asyncio.timeout(120), consumer:
            running = asyncio.create_task(consumer.run(some_stick))
            await until(lambda: len(ended) == 20_000 - len(stuck))
            await until(lambda: consumer.stats().partitions[0].map_cut_at is not None)
            await consumer.commit_now()
            assert 0 < consumer.stats().metadata_limit <= 200
            consumer.stop(drain=False)
            await running
        offset, metadata = (await committed(servers, "small-g"))[0]
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

    async def lifespan() -> AsyncIterator[ParallelConsumer]:
        consumer = ParallelConsumer(topic, bootstrap_servers=local_kafka.bootstrap_servers, group_id=f"{topic}-g")
        async with consumer:
            running = asyncio.create_task(consumer.run(handle))
            yield consumer
        await running

    async with asyncio.timeout(120):
        async for _ in lifespan():
            await produce(local_kafka.bootstrap_servers, topic, 200)
            await until(lambda: len(seen) == 200)
    found = await committed(local_kafka.bootstrap_servers, f"{topic}-g")
    assert sum(offset for offset, _ in found.values()) == 200
