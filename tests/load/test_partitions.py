"""Many partitions in one consumer, and full maps for all of them. The large sizes: ``make load-partitions``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aioparallel import ParallelConsumer
from aioparallel.records.record import Record
from aioparallel.testing import DeliveryChecker, LocalKafka, OrderChecker
from aioparallel.testing.loop_holds import Hold, LoopHolds
from aioparallel.testing.pytest_plugin import TopicMaker
from benchmarks.commit_holds import commit_holds, full_ledgers
from tests.support.kafka.consuming import consume, consumer_of
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

LONGEST_HOLD = 0.020
"""Seconds of CPU time of one callback, collections apart: this process is not a consumer's."""
ATTEMPTS = 3
"""What holds the loop by design does so in each run, what the machine adds does not: the best one counts."""


@pytest.mark.parametrize(("partitions", "records"), [(200, 20_000), pytest.param(500, 200_000, marks=pytest.mark.slow)])
async def test_many_partitions_are_read_once_in_order_within_the_bounds(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Callable[[str], None], partitions: int, records: int
) -> None:
    """Each record over all partitions runs once, each key in order, and is committed; never more than ``max_buffered``
    wait, partitions that are through already included (I4); no callback takes more than 20 ms."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions)
    fill(
        servers,
        topic,
        (
            Message(b"key-%d" % (serial // partitions % 4), b"x" * 90, partition=serial % partitions)
            for serial in range(records)
        ),
    )
    longest: list[float] = []
    bound = 10 * partitions
    while len(longest) < ATTEMPTS:
        group, holds = f"{topic}-{len(longest)}", LoopHolds()
        consumer = consumer_of(servers, topic, group_id=group, until="end", max_concurrency=500, max_buffered=bound)
        await run_to_the_end(consumer, partitions, records, holds)
        found = await committed(servers, group)
        assert {one.offset for one in found.values()} == {records // partitions}
        longest.append(max(map(apart, holds.longest())))
        tell(f"longest holds (CPU, wall, collection): {[shown(hold) for hold in holds.longest()[:3]]}")
        if longest[-1] <= LONGEST_HOLD:
            break
    assert min(longest) <= LONGEST_HOLD


async def run_to_the_end(consumer: ParallelConsumer, partitions: int, records: int, holds: LoopHolds) -> None:
    """One consumer over everything, checked."""
    order, delivery = OrderChecker(), DeliveryChecker[tuple[int, int]]()
    most = ended = 0

    async def handle(record: Record) -> None:
        nonlocal most, ended
        with order.handling(record):
            await asyncio.sleep(0.001)
        delivery.handled((record.partition, record.offset))
        ended += 1
        if ended % (records // 200) == 0:
            most = max(most, consumer.stats().buffered)

    def check() -> None:
        for serial in range(records):
            delivery.produced((serial % partitions, serial // partitions))
        order.check()
        delivery.check(max_duplicates=0)

    with holds.watching():
        await consume(consumer, handle)
        await asyncio.to_thread(check)  # what we do here would count
    assert most <= consumer.options.max_buffered


@pytest.mark.parametrize("partitions", [60, pytest.param(500, marks=pytest.mark.slow)])
async def test_full_maps_are_committed_and_read_back_without_long_holds(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Callable[[str], None], partitions: int
) -> None:
    """Maps of about 4,000 characters for each partition, in several requests: the broker takes all of them, they decode
    to the ledgers (I9), and no callback takes more than 20 ms."""
    topic = await kafka_topic(partitions)
    holds = await commit_holds(local_kafka.bootstrap_servers, topic, partitions, full_ledgers(), ATTEMPTS)
    tell(f"{holds.requests} requests, longest holds {[shown(hold) for hold in holds.longest]}")
    assert holds.problems == []
    assert holds.shortest_map > 3_800
    assert min(map(apart, holds.longest)) <= LONGEST_HOLD


def apart(hold: Hold) -> float:
    """Its CPU time without collections."""
    return hold[0] - hold[2]


def shown(hold: Hold) -> str:
    """A hold for people: milliseconds."""
    return f"{hold[0] * 1e3:.1f}/{hold[1] * 1e3:.1f}/{hold[2] * 1e3:.1f} ms {hold[3]}"
