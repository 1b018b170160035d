"""500 partitions in one consumer. Takes about a minute: ``make load-partitions``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from aioparallel.cli.bench.full_maps import full_ledgers
from aioparallel.cli.bench.holds import commit_holds
from aioparallel.cli.bench.loop_holds import Hold
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.consumer_process import ConsumerProcess, Sample
from tests.support.children.job import Job
from tests.support.kafka.filling import Message, fill

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
    holds = await commit_holds(local_kafka.bootstrap_servers, topic, PARTITIONS, full_ledgers(), ATTEMPTS)
    for took, hold in zip(holds.seconds, holds.longest, strict=True):
        tell(f"committed in {took:.2f} s; holds {shown(hold)}")
    tell(f"{holds.requests} requests, maps of {holds.shortest_map} to {holds.longest_map} characters")
    assert holds.problems == []
    assert holds.shortest_map > 3_800
    assert min(hold[0] - hold[2] for hold in holds.longest) <= LONGEST_HOLD


def shown(hold: Hold) -> str:
    """A hold for people: milliseconds."""
    return f"{hold[0] * 1e3:.1f}/{hold[1] * 1e3:.1f}/{hold[2] * 1e3:.1f} ms {hold[3]}"
