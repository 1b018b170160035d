"""One partition with a backlog beside seven others: nobody starves. The large size: ``make load-hot``."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from aioparallel.records.record import Record
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("backlog", "concurrency"), [(40_000, 10), pytest.param(600_000, 100, marks=pytest.mark.slow)])
async def test_other_partitions_do_not_wait_for_the_end_of_a_backlog(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, backlog: int, concurrency: int
) -> None:
    """Five times a record comes to each of seven partitions beside one with a backlog of 20 seconds or more: all of
    them are handled before that has ended, in order."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(8)
    fill(servers, topic, (Message(b"key-%04d" % (n % 1009), b"x" * 90, partition=0) for n in range(backlog)))
    order, ended = OrderChecker(), Counter[int]()

    async def handle(record: Record) -> None:
        with order.handling(record):
            await asyncio.sleep(0.005)
        ended[record.partition] += 1

    async def write_and_wait(count: int) -> None:
        await asyncio.to_thread(fill, servers, topic, [Message(b"k", b"", partition=one) for one in range(1, 8)])
        await until(lambda: all(ended[one] == count for one in range(1, 8)), what=lambda: f"{count}: {ended}")

    consumer = consumer_of(servers, topic, max_concurrency=concurrency, drain_timeout=0.5)
    async with consuming(consumer, handle):
        await until(lambda: ended[0])
        for count in range(1, 6):
            await write_and_wait(count)
        assert ended[0] < backlog
    order.check()
