"""500 partitions in one consumer. Takes about a minute: ``make load-partitions``."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from aioparallel.engine.committer import Committer
from aioparallel.engine.scheduler import Scheduler
from aioparallel.offsets import decode_offset_map
from aioparallel.options import Options
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker

from .consumer_process import ConsumerProcess, Sample
from .full_maps import full_map_sessions
from .job import Job
from .loop_holds import Hold, LoopHolds
from .membership import joined
from .producing import Message, fill

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(240)]

PARTITIONS = 500
RECORDS = 200_000
LONGEST_HOLD = 0.020
ATTEMPTS = 3


def spread(records: int) -> Iterator[tuple[int, Message]]:
    """Small records round all partitions, four keys in each."""
    for serial in range(records):
        yield serial % PARTITIONS, Message(key=b"key-%d" % (serial // PARTITIONS % 4), value=b"x" * 90)


def committed(servers: str, group: str, topic: str) -> list[int]:
    """The group's committed offset of each partition."""
    reader = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        found = reader.committed([TopicPartition(topic, partition) for partition in range(PARTITIONS)], timeout=30)
    finally:
        reader.close()
    return [one.offset for one in found]


def run_to_the_end(servers: str, topic: str) -> Sample:
    """One consumer over everything, checked; its report."""
    job = Job(
        bootstrap_servers=servers,
        topic=topic,
        group_id=f"group-{uuid.uuid4().hex}",
        options={"until": "end", "max_concurrency": 1_000},
        handler_seconds=0.005,
        stats_interval=0,
        watch_loop=True,
    )
    with ConsumerProcess(job) as consumer:
        report = consumer.finish(100)
    assert report["ended"] == RECORDS
    assert report["violations"] == 0
    assert committed(servers, job.group_id, topic) == [RECORDS // PARTITIONS] * PARTITIONS
    return report


async def test_500_partitions_are_read_and_committed_without_long_holds(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Callable[[str], None]
) -> None:
    """200,000 records over 500 partitions all run once, in order, and are committed; no callback takes more than 20 ms
    of CPU time. What holds the loop by design does so in each run, what the machine adds does not: the best of three.
    """
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(PARTITIONS)
    fill(servers, topic, spread(RECORDS))
    longest = []
    for _ in range(ATTEMPTS):
        holds = cast("dict[str, list[Hold]]", run_to_the_end(servers, topic)["holds"])["longest"]
        longest.append(holds[0][0])
        tell(f"longest holds (CPU, wall, collection, what): {[shown(hold) for hold in holds[:3]]}")
        if longest[-1] <= LONGEST_HOLD:
            break
    assert min(longest) <= LONGEST_HOLD


async def test_500_full_maps_are_committed_without_long_holds(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Callable[[str], None]
) -> None:
    """Maps of about 4,000 characters for each of 500 partitions are taken by the broker, read back as the ledgers say
    (I9), and no callback takes more than 20 ms of CPU time, collections apart (this process is not the consumer's)."""
    topic = await kafka_topic(PARTITIONS)
    async with joined(local_kafka.bootstrap_servers, topic) as (client, generation):
        sessions = full_map_sessions(topic, PARTITIONS, generation)
        committer = Committer(client, Options(), Scheduler(), lambda: sessions, lambda: None)
        holds: list[Hold] = []
        for _ in range(ATTEMPTS):
            for session in sessions:
                session.acknowledged_version = None
            watch = LoopHolds()
            began = time.perf_counter()
            with watch.watching():
                assert await committer.commit(sessions)
            took = time.perf_counter() - began
            gc.collect()
            holds.append(watch.longest()[0])
            tell(f"committed in {took:.2f} s, {committer.commits} requests so far; holds {shown(holds[-1])}")
        found = await client.committed([session.partition for session in sessions], 30)
    sizes = [len(found[session.partition].metadata) for session in sessions]
    tell(f"maps of {min(sizes)} to {max(sizes)} characters")
    assert min(sizes) > 3_800
    assert committer.failed_commits == committer.cut_maps == 0
    for session in sessions[:2]:
        offset, text = found[session.partition]
        assert decode_offset_map(offset, text) == session.ledger.snapshot()
    for session in sessions:
        assert found[session.partition] == session.acknowledged
    assert min(hold[0] - hold[2] for hold in holds) <= LONGEST_HOLD


def shown(hold: Hold) -> str:
    """A hold for people: milliseconds."""
    return f"{hold[0] * 1e3:.1f}/{hold[1] * 1e3:.1f}/{hold[2] * 1e3:.1f} ms {hold[3]}"
