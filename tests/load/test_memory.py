"""Memory is bounded by the options, whatever the backlog. Takes about two minutes: ``make load-memory``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.consumer_process import ConsumerProcess, number
from tests.support.children.job import Job
from tests.support.kafka.filling import Message, fill

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(400)]

MIB = 1024 * 1024
PARTITIONS = 8
WATCHED = 60.0
STEP = 0.5

# What a client holds beside the buffered records: a fetch response of each partition (aiokafka's
# max_partition_fetch_bytes), and one more response while it is being read and taken apart.
FETCHED = 2 * PARTITIONS * MIB
# What a buffered record takes beside its key, value and headers: the record, two bytes objects, a lane and its places
# in the lane table and in the ledger. Bytes; 400 by tracemalloc with a key of its own for each record.
RECORD_OVERHEAD = 500
# The allocators keep freed pieces between those in use: about so much of all that comes and goes.
FRAGMENTS = 1.25
# What a handler in flight takes: worker, task, context, the handler's frames and its timer. Bytes, generous.
HANDLER_OVERHEAD = 10_000


class Watch(NamedTuple):
    """Memory of a process over time: seconds since the start of watching, and bytes."""

    points: list[tuple[float, int]]

    def highest(self, since: float, until: float) -> int:
        """The peak between these two moments."""
        return max(size for at, size in self.points if since <= at <= until)


def watch(consumer: ConsumerProcess, seconds: float) -> Watch:
    """Look at the process's memory twice a second."""
    began = time.monotonic()
    points: list[tuple[float, int]] = []
    while (at := time.monotonic() - began) <= seconds:
        points.append((at, consumer.resident_bytes()))
        time.sleep(STEP)
    return Watch(points)


def backlog(records: int, size: int) -> Iterator[tuple[int, Message]]:
    """``records`` records of ``size`` bytes over all partitions, 500 keys in each: the order checker's own memory is
    soon complete."""
    value = b"x" * (size - 8)
    for serial in range(records):
        yield serial % PARTITIONS, Message(key=b"key-%04d" % (serial // PARTITIONS % 500), value=value)


def idle_bytes(kafka: LocalKafka, topic: str) -> int:
    """Memory of a consumer with an empty topic."""
    job = Job(bootstrap_servers=kafka.bootstrap_servers, topic=topic, group_id=f"{topic}-group")
    with ConsumerProcess(job) as consumer:
        consumer.wait_for(lambda sample: sample["partitions_open"] == PARTITIONS, 30)
        time.sleep(1)
        size = consumer.resident_bytes()
        consumer.end()
    return size


Tell = Callable[[str], None]


async def test_memory_stays_flat_under_a_backlog_of_two_million(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Tell
) -> None:
    """2,000,000 records of 100 bytes, handlers of 1 s, a minute: memory is flat and within what the options say."""
    idle = idle_bytes(local_kafka, await kafka_topic(PARTITIONS))
    topic = await kafka_topic(PARTITIONS)
    began = time.monotonic()
    fill(local_kafka.bootstrap_servers, topic, backlog(2_000_000, 100))
    tell(f"2,000,000 records produced in {time.monotonic() - began:.1f} s")
    job = Job(
        bootstrap_servers=local_kafka.bootstrap_servers,
        topic=topic,
        group_id=f"{topic}-group",
        options={"max_concurrency": 500},
        handler_seconds=1.0,
    )
    with ConsumerProcess(job) as consumer:
        consumer.wait_for(lambda sample: sample["in_flight"] == 500, 30)
        seen = watch(consumer, WATCHED)
        samples = consumer.samples
        report = consumer.end()
    allowed = idle + FRAGMENTS * (10_000 * (100 + RECORD_OVERHEAD) + 500 * HANDLER_OVERHEAD + FETCHED)
    early, late = seen.highest(10, 30), seen.highest(30, WATCHED)
    tell(
        f"memory: idle {idle / MIB:.1f} MiB, peak of seconds 10-30 {early / MIB:.1f}, of 30-60 {late / MIB:.1f}, "
        f"allowed by the options {allowed / MIB:.1f}; {report['ended']} records handled"
    )
    assert late <= early * 1.05
    assert seen.highest(0, WATCHED) <= allowed
    assert max(number(sample["buffered"]) for sample in samples) <= 10_000
    assert max(number(sample["in_flight"]) for sample in samples) <= 500
    assert number(report["ended"]) >= 500 * (WATCHED - 5)
    assert report["violations"] == 0


async def test_large_records_are_bounded_by_bytes(local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Tell) -> None:
    """200,000 records of 10 KB with max_buffered_bytes of 8 MiB: buffered bytes pass it by no more than one fetch."""
    idle = idle_bytes(local_kafka, await kafka_topic(PARTITIONS))
    topic = await kafka_topic(PARTITIONS)
    fill(local_kafka.bootstrap_servers, topic, backlog(200_000, 10_000))
    job = Job(
        bootstrap_servers=local_kafka.bootstrap_servers,
        topic=topic,
        group_id=f"{topic}-group",
        options={"max_concurrency": 500, "max_buffered_bytes": 8 * MIB},
        handler_seconds=1.0,
        stats_interval=0.1,
    )
    with ConsumerProcess(job) as consumer:
        consumer.wait_for(lambda sample: sample["in_flight"] == 500, 30)
        seen = watch(consumer, 30)
        samples = consumer.samples
        report = consumer.end()
    buffered = max(number(sample["buffered_bytes"]) for sample in samples)
    # In flight they count no more as buffered, but their bytes are still there.
    allowed = idle + FRAGMENTS * (8 * MIB + 500 * (10_000 + HANDLER_OVERHEAD) + FETCHED)
    early, late = seen.highest(5, 15), seen.highest(15, 30)
    tell(
        f"buffered at most {buffered / MIB:.1f} MiB; memory: idle {idle / MIB:.1f} MiB, peak of seconds 5-15 "
        f"{early / MIB:.1f}, of 15-30 {late / MIB:.1f}, allowed {allowed / MIB:.1f}"
    )
    assert buffered <= 8 * MIB + MIB
    assert late <= early * 1.05
    assert seen.highest(0, 30) <= allowed
    assert report["violations"] == 0
