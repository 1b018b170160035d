"""``Deduplicate`` on Apache Kafka: copies of a stage that writes at least once, and a consumer that is killed."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import defaultdict
from contextlib import aclosing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from aioparallel import ConfigurationError, Deduplicate, ParallelConsumer, TopicPartition
from aioparallel.clients import AiokafkaClient
from aioparallel.deduplication.chunks import ChunkKey, decode_chunk, decode_key
from aioparallel.deduplication.identities import Mark, RecordIdentity
from aioparallel.group.client import Span
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker

SOURCES, BATCH, KEYS, PARTITIONS, KILLS = 12_000, 2_000, 200, 4, 3


async def write(servers: str, topic: str) -> int:
    """Batches in two attempts: of the first a prefix of each key's records arrives. Returns how many were written."""
    rng, count = random.Random(7), 0
    async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5) as producer:
        for start in range(0, SOURCES, BATCH):
            batch = range(start, start + BATCH)
            part = {key: rng.random() for key in range(KEYS)}
            first = [source for source in batch if source - start < BATCH * part[source % KEYS]]
            for source in [*first, *batch]:
                headers = [("src-topic", b"raw"), ("src-partition", b"0"), ("src-offset", b"%d" % source)]
                key = b"%d" % (source % KEYS)
                await producer.send(topic, b"%d" % source, key=key, partition=source % PARTITIONS, headers=headers)
                count += 1
    return count


async def saved(servers: str, seen: str) -> set[int]:
    """What the compacted topic says was seen, by record or by key."""
    client = AiokafkaClient(servers, "reading")
    await client.start(10)
    found: set[int] = set()
    try:
        places = [TopicPartition(seen, number) for number in range(PARTITIONS)]
        spans = {place: Span(0, end) for place, end in (await client.end_offsets(places, 10)).items()}
        chunks: dict[ChunkKey, bytes | None] = {}
        async with aclosing(client.read(spans)) as reads:
            async for _, records, _ in reads:
                chunks |= {key: record.value for record in records if (key := decode_key(record.key)) is not None}
    finally:
        await client.stop(5)
    for value in chunks.values():
        for one, (upto, _) in decode_chunk(value).items() if value is not None else ():
            if isinstance(one, RecordIdentity):
                found.add(one.offset)
            elif isinstance(one, Mark):
                found.update(range(int(one.key), upto + 1, KEYS))
    return found


def lines(path: Path, event: bytes) -> list[int]:
    """The sources of one kind of event, in their order."""
    written = path.read_bytes()
    whole = written[: written.rfind(b"\n") + 1].splitlines()
    return [int(line[2:]) for line in whole if line.startswith(event)]


@pytest.mark.real
@pytest.mark.parametrize("by", ["record", "key"])
async def test_copies_and_kills(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, by: str) -> None:
    """Three times SIGKILL: each record is handled, each key keeps its order, and what was saved when the process died
    is never handled again; what is repeated was in flight, or ended in the last moments."""
    servers = local_kafka.bootstrap_servers
    topic = await kafka_topic(partitions=PARTITIONS)
    seen = f"{topic}-seen"
    await local_kafka.create_topic(seen, PARTITIONS, {"cleanup.policy": "compact"})
    count = await write(servers, topic)
    path = tmp_path / "handled.log"
    path.touch()
    command = [sys.executable, "-m", "tests.support.children.deduplicating"]
    command += [servers, topic, seen, f"{topic}-group", by, str(path)]
    for kill in [SOURCES * (number + 1) // (KILLS + 1) for number in range(KILLS)] + [None]:
        before, started = await saved(servers, seen), len(lines(path, b"S"))
        child = subprocess.Popen(command)
        try:
            async with asyncio.timeout(120):
                while child.poll() is None and (kill is None or len(lines(path, b"E")) < kill):
                    await asyncio.sleep(0.02)
        finally:
            child.kill()
            code = child.wait()
        assert kill is not None or code == 0
        assert not before.intersection(lines(path, b"S")[started:])
    ended = lines(path, b"E")
    assert set(ended) == set(range(SOURCES))
    by_key: defaultdict[int, list[int]] = defaultdict(list)
    for source in dict.fromkeys(ended):
        by_key[source % KEYS].append(source)
    assert all(ours == sorted(ours) for ours in by_key.values())
    print(f"\n{count - SOURCES} copies, {len(ended) - SOURCES} handled twice after {KILLS} kills")
    # A commit's interval and time at 10,000/s at most, and what was in flight: generous.
    assert len(ended) - SOURCES < KILLS * 4_000
    assert await saved(servers, seen) == set(range(SOURCES))


@pytest.mark.real
async def test_a_topic_that_is_not_compacted_is_refused(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """With what is found, and the command that changes it."""
    topic, seen = await kafka_topic(), await kafka_topic()
    consumer = ParallelConsumer(
        topic, bootstrap_servers=local_kafka.bootstrap_servers, group_id=f"{topic}-g", deduplicate=Deduplicate(seen)
    )
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy is delete.*kafka-configs"):
        async with consumer:
            raise AssertionError("it has opened")
