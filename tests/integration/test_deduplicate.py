"""``Deduplicate`` on Apache Kafka: copies of a stage that writes at least once, and a consumer that is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioparallel import ConfigurationError, Deduplicate, Record
from aioparallel.persistence.dedup.chunks import decode_chunk, decode_key
from aioparallel.persistence.dedup.identities import Mark, RecordIdentity
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import EventKind, EventTail
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.job import Job
from tests.support.kafka.consuming import consumer_of
from tests.support.kafka.filling import Message, fill, number_of
from tests.support.kafka.reading import check_numbers, read_all

SOURCES, BATCH, KEYS, PARTITIONS, KILLS = 12_000, 2_000, 200, 4, 3


def copies() -> Iterator[Message]:
    """Batches in two attempts: of the first a prefix of each key's records arrives. The value says the source."""
    rng = random.Random(7)
    for start in range(0, SOURCES, BATCH):
        batch = range(start, start + BATCH)
        part = {key: rng.random() for key in range(KEYS)}
        first = [source for source in batch if source - start < BATCH * part[source % KEYS]]
        for source in [*first, *batch]:
            headers = [("src-topic", b"raw"), ("src-partition", b"0"), ("src-offset", b"%d" % source)]
            yield Message(b"%d" % (source % KEYS), b"%d" % source, headers, partition=source % PARTITIONS)


async def saved(servers: str, seen: str) -> set[int]:
    """What the compacted topic says was seen, by record or by key."""
    records = await read_all(servers, seen)
    chunks = {key: record.value for record in records if (key := decode_key(record.key)) is not None}
    found: set[int] = set()
    for value in chunks.values():
        for one, (upto, *_) in decode_chunk(value).items() if value is not None else ():
            if isinstance(one, RecordIdentity):
                found.add(one.offset)
            elif isinstance(one, Mark):
                found.update(range(int(one.key), upto + 1, KEYS))
    return found


@pytest.mark.real
@pytest.mark.parametrize("by", [pytest.param("record", marks=pytest.mark.slow), "key"])
async def test_copies_and_kills(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, by: str) -> None:
    """Three times SIGKILL: each record is handled, each key keeps its order, and what was saved when the process died
    is never handled again; what is repeated was in flight, or ended in the last moments."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    seen = f"{topic}-seen"
    await local_kafka.create_topic(seen, PARTITIONS, {"cleanup.policy": "compact"})
    count = fill(servers, topic, copies())
    written = {(record.partition, record.offset): record for record in await read_all(servers, topic)}
    options = {"max_concurrency": 50, "commit_interval": 0.2, "session_timeout": 1.5, "heartbeat_interval": 0.4}
    job = Job(
        bootstrap_servers=servers, topic=topic, group_id=f"{topic}-group", options={**options, "until": "end"},
        seconds=(0.001, 0.01), deduplicate=(seen, by),
    )  # fmt: skip
    handled: list[Record] = []
    for number in range(1, KILLS + 2):
        before, events = await saved(servers, seen), EventTail(tmp_path / f"{number}.events")
        began: set[int] = set()

        def enough(
            enough: int = SOURCES * number // (KILLS + 1), events: EventTail = events, began: set[int] = began
        ) -> bool:
            for kind, partition, offset, _ in events.new():
                record = written[partition, offset]
                if kind is EventKind.BEGAN:
                    began.add(number_of(record))
                elif kind is EventKind.ENDED:
                    handled.append(record)
            return len(handled) >= enough

        await job.run(tmp_path, f"{number}", enough if number <= KILLS else None)
        enough()
        assert not before.intersection(began)
    # A commit's interval and time at 10,000/s at most, and what was in flight: generous.
    twice = check_numbers(handled, range(SOURCES), max_duplicates=KILLS * 4_000)
    print(f"\n{count - SOURCES} copies, {twice} handled twice after {KILLS} kills")
    assert await saved(servers, seen) == set(range(SOURCES))


@pytest.mark.real
async def test_a_topic_that_is_not_compacted_is_refused(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """With what is found, and the command that changes it."""
    topic, seen = await kafka_topic(), await kafka_topic()
    consumer = consumer_of(local_kafka.bootstrap_servers, topic, deduplicate=Deduplicate(seen))
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy is delete.*kafka-configs"):
        async with consumer:
            raise AssertionError("it has opened")
