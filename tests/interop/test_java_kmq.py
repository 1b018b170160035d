"""KMQ of softwaremill in both roles beside ours: its client with our tracker, our consumer with its tracker."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from aioparallel import Record
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker, redeliveries
from aioparallel.queues.kmq.markers import read_marker
from aioparallel.testing import LocalKafka
from aioparallel.testing.processes import Child
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.interop.java_programs import JavaPrograms
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.waiting import DEADLINE, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600, func_only=True)]

LEASE = 3.0
"""Seconds. On a busy machine a record may take longer, and is delivered again, as it should be."""
COUNT = 300
FAILING = {b"fails-%d" % number for number in range(10)}
ALL = FAILING | {b"v-%d" % number for number in range(COUNT)}


async def new_queue(kafka: LocalKafka, make: TopicMaker) -> str:
    """Its topics, with records of which some fail at first."""
    queue = await make(2)
    for topic, partitions in ((f"{queue}-markers", 2), (f"{queue}__undelivered", 1)):
        await kafka.create_topic(topic, partitions)
    fill(kafka.bootstrap_servers, queue, [Message(value, value, [("kept", b"1")]) for value in sorted(ALL)])
    return queue


async def open_in(servers: str, queue: str) -> set[tuple[int, int]]:
    """Records whose last marker is no end."""
    found: set[tuple[int, int]] = set()
    for record in await read_all(servers, f"{queue}-markers"):
        marker = read_marker(record.key, record.value)
        assert marker is not None
        assert marker.partition == record.partition
        (found.discard if marker.lease is None else found.add)((marker.partition, marker.offset))
    return found


async def test_their_client_and_our_tracker(
    java_programs: JavaPrograms, local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """What their client leaves our tracker delivers again, to their client; then nothing is open."""
    servers, queue = local_kafka.bootstrap_servers, await new_queue(local_kafka, kafka_topic)
    said: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
    arguments = (servers, queue, f"{queue}-markers", f"java-{queue}", str(int(LEASE * 1_000)))
    program = java_programs.command("KmqWorker", *arguments)
    async with Child("KMQ client", program, log=tmp_path / "worker.log") as child:

        async def hear() -> None:
            async for line in child.lines():
                what, _, _, value = line.split()
                said[what][value.encode()] += 1

        hearing = asyncio.create_task(hear())
        async with RedeliveryTracker(queue, bootstrap_servers=servers, group_id=f"ours-{queue}") as tracker:
            tracking = asyncio.create_task(tracker.run())
            await until(lambda: set(said["ran"]) == ALL, what=lambda: f"{said} {child.log.read_text()[-2_000:]}")
            assert set(said["left"]) == FAILING
            assert tracker.stats().redelivered >= len(FAILING)

            async def none_is_open() -> bool:
                return tracker.stats().open == 0 and not await open_in(servers, queue)

            await until(none_is_open)
            tracker.stop()
            await tracking
        hearing.cancel()
    copies = [one for one in await read_all(servers, queue) if redeliveries(one)]
    assert {one.value for one in copies} >= FAILING
    assert all(("kept", b"1") in one.headers for one in copies)


async def test_our_consumer_and_their_tracker(
    java_programs: JavaPrograms, local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """What our handlers fail their tracker delivers again, to us, and ends its markers."""
    servers, queue = local_kafka.bootstrap_servers, await new_queue(local_kafka, kafka_topic)
    seen: Counter[bytes] = Counter()

    async def work(record: Record[bytes | None, bytes]) -> None:
        seen[record.value] += 1
        if record.value in FAILING and seen[record.value] == 1:
            raise ValueError("at first")

    arguments = (servers, queue, f"{queue}-markers", f"java-{queue}")
    program = java_programs.command("KmqTracker", *arguments)
    consumer = KmqConsumer[bytes, bytes](queue, bootstrap_servers=servers, group_id=queue, lease=LEASE, tracker=False)
    async with Child("KMQ tracker", program, log=tmp_path / "tracker.log") as child:
        assert (await child.line(DEADLINE)).strip() == "tracks"
        async with consumer:
            running = asyncio.create_task(consumer.run(work))
            await until(
                lambda: set(seen) == ALL and all(seen[value] > 1 for value in FAILING),
                what=lambda: f"{seen} {child.log.read_text()[-2_000:]}",
            )

            async def none_is_open() -> bool:
                return not await open_in(servers, queue)

            await until(none_is_open)
            consumer.stop()
            await running
