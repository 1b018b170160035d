"""Memory is bounded by the options, whatever the backlog. The large sizes: ``make load-memory`` (2 minutes)."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest

from aioparallel.records.record import Record
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.event_log import read_events, replay
from aioparallel.testing.processes import Child
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.job import Job
from tests.support.kafka.consuming import consume, consumer_of
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import DEADLINE

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

MIB: Final = 1024 * 1024
PARTITIONS, KEYS, CONCURRENCY = 8, 500, 500

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


def backlog(records: int, size: int) -> Iterator[Message]:
    """``records`` records of ``size`` bytes over all partitions, 500 keys in each."""
    value = b"x" * (size - 8)
    for serial in range(records):
        yield Message(key_of(serial % PARTITIONS, serial // PARTITIONS), value, partition=serial % PARTITIONS)


def key_of(partition: int, offset: int) -> bytes:
    """The key of a record of :func:`backlog`."""
    return b"key-%04d" % (offset % KEYS)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """What is freed meanwhile is freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def live_records() -> int:
    """Records that exist in this process."""
    return sum(type(one) is Record for one in gc.get_objects())


@pytest.mark.usefixtures("no_collections")
async def test_ended_records_are_freed_at_once(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """However many records have ended, no more exist than are buffered and in flight, without the garbage collector:
    an ended record is part of no reference cycle, so a backlog's values do not pile up between collections."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(PARTITIONS)
    fill(servers, topic, backlog(6_000, 8))
    before, ended, most = live_records(), 0, 0

    async def handle(record: Record) -> None:
        nonlocal ended, most
        await asyncio.sleep(0)
        ended += 1
        if ended % 1_000 == 0:
            most = max(most, live_records() - before)

    await consume(consumer_of(servers, topic, max_buffered=500, until="end"), handle)
    assert ended == 6_000
    assert most <= 500 + 100


async def test_large_records_are_bounded_by_bytes(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """With ``max_buffered_bytes`` of 256 KiB, 26 records of 10 KB, all of 2,000 are read, and what is buffered passes
    the bound by no more than one fetch."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(PARTITIONS)
    fill(servers, topic, backlog(2_000, 10_000))
    most = 0

    async def handle(record: Record) -> None:
        nonlocal most
        most = max(most, consumer.stats().buffered_bytes)
        await asyncio.sleep(0.005)

    consumer = consumer_of(servers, topic, max_concurrency=50, max_buffered_bytes=256 * 1024, until="end")
    assert (await consume(consumer, handle)).succeeded == 2_000
    # The first fetch does not know the size yet: it takes a record for 4 KiB, so it brings up to 64.
    assert most <= 64 * 10_000


Sample = Mapping[str, int]


@asynccontextmanager
async def consumer_process(
    servers: str, topic: str, directory: Path, ready: Callable[[Sample], bool], **options: object
) -> AsyncIterator[tuple[Child, list[Sample]]]:
    """Handlers of a second, in a process of its own, when it is ready; and its samples, a new one every 0.2 s."""
    settings = {"max_concurrency": CONCURRENCY, **options}
    job = Job(
        bootstrap_servers=servers, topic=topic, group_id=f"{topic}-group", options=settings, seconds=(1.0, 1.0),
        sample_interval=0.2,
    )  # fmt: skip
    samples: list[Sample] = []
    async with job.child(directory, topic) as child, asyncio.timeout(DEADLINE + 60):
        while not (samples and ready(samples[-1])):
            samples.append(json.loads(await child.line()))
        yield child, samples
        child.terminate()
        await child.ended(60)


async def watched(child: Child, samples: list[Sample], seconds: float) -> list[tuple[float, int]]:
    """Its memory for so long, a point with each sample: seconds since now, and bytes."""
    process, began = psutil.Process(child.pid), time.monotonic()
    points: list[tuple[float, int]] = []
    while (at := time.monotonic() - began) <= seconds:
        points.append((at, process.memory_info().rss))
        samples.append(json.loads(await child.line()))
    return points


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "size", "seconds", "options", "buffered"),
    [
        (2_000_000, 100, 60, {}, 10_000 * (100 + RECORD_OVERHEAD)),
        (200_000, 10_000, 30, {"max_buffered_bytes": 8 * MIB}, 8 * MIB),
    ],
)
async def test_memory_stays_flat_under_a_backlog(
    local_kafka: LocalKafka,
    kafka_topic: TopicMaker,
    tmp_path: Path,
    tell: Callable[[str], None],
    records: int,
    size: int,
    seconds: float,
    options: Mapping[str, int],
    buffered: int,
) -> None:
    """Of millions of small records, and of large ones: as much memory at the end as in the beginning, and within what
    the options say; never more buffered or in flight than they say, bytes by one fetch."""
    servers, empty, topic = local_kafka.bootstrap_servers, await kafka_topic(PARTITIONS), await kafka_topic(PARTITIONS)
    fill(servers, topic, backlog(records, size))
    idle_when, full_when = (lambda one: one["partitions"] == PARTITIONS), (lambda one: one["in_flight"] == CONCURRENCY)
    async with consumer_process(servers, empty, tmp_path, idle_when) as (child, samples):
        idle = max(bytes_ for _, bytes_ in await watched(child, samples, 1))
    async with consumer_process(servers, topic, tmp_path, full_when, **options) as (child, samples):
        points = await watched(child, samples, seconds)
    # In flight they count no more as buffered, but their bytes are still there.
    allowed = idle + FRAGMENTS * (buffered + CONCURRENCY * (size + HANDLER_OVERHEAD) + FETCHED)
    early = max(bytes_ for at, bytes_ in points if seconds / 6 <= at <= seconds / 2)
    late, most = max(bytes_ for at, bytes_ in points if at > seconds / 2), max(bytes_ for _, bytes_ in points)
    tell(
        f"memory: idle {idle / MIB:.1f} MiB, peak of the first half {early / MIB:.1f}, of the second "
        f"{late / MIB:.1f}, allowed by the options {allowed / MIB:.1f}"
    )
    assert late <= early * 1.05
    assert most <= allowed
    assert max(one["buffered"] for one in samples) <= 10_000
    assert max(one["in_flight"] for one in samples) <= CONCURRENCY
    assert max(one["buffered_bytes"] for one in samples) <= options.get("max_buffered_bytes", 64 * MIB) + MIB
    order, events = OrderChecker(), read_events(tmp_path / f"{topic}.events")
    replay(events, key_of, order)
    order.check()
    assert len(events) >= 2 * CONCURRENCY * (seconds - 5)
