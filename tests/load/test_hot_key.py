"""One hot key among others: they pass it as far as the look-ahead goes, and statistics say where that ends. The large
size: ``make load-hot``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aioparallel.observe.stats import Stats
from aioparallel.records.record import Record
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

HOT = b"hot"
SIZES = [20_000, pytest.param(200_000, marks=pytest.mark.slow)]


def nine_in_ten_hot(records: int, partitions: int) -> Iterator[Message]:
    """Nine records of the hot key in partition 0, then one of a hundred others in any."""
    for serial in range(records):
        key = serial // 10 % 100
        yield Message(b"key-%03d" % key, b"") if serial % 10 == 0 else Message(HOT, b"", partition=0)


@pytest.mark.parametrize("partitions", [4, 1])
@pytest.mark.parametrize("records", SIZES)
async def test_other_keys_pass_a_stuck_one_within_the_look_ahead(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, records: int, partitions: int
) -> None:
    """While the hot key's first record does not end, all records of the other keys do, in order, though nine times as
    many of the hot key stand between them."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions)
    fill(servers, topic, nine_in_ten_hot(records, partitions))
    order, release = OrderChecker(), asyncio.Event()
    ended: dict[bool, int] = {True: 0, False: 0}

    async def handle(record: Record) -> None:
        with order.handling(record):
            await (release.wait() if record.key == HOT else asyncio.sleep(0.001))
        ended[record.key == HOT] += 1

    consumer = consumer_of(servers, topic, max_buffered=records + records // 10)
    async with consuming(consumer, handle):
        await until(lambda: ended[False] == records // 10, what=lambda: f"{records // 10}: {ended}")
        longest = consumer.stats().longest_lane
        assert longest is not None
        assert (longest.key, ended[True]) == (HOT, 0)
        release.set()
        await until(lambda: sum(ended.values()) == records, what=lambda: f"{records}: {ended}")
    order.check()


@pytest.mark.parametrize("records", SIZES)
async def test_statistics_say_that_a_stuck_key_has_filled_the_buffer(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, records: int
) -> None:
    """Beyond the look-ahead intake is full, nothing is ready, the longest lane is the hot key's, and no more is read
    than ``max_buffered``."""
    servers, topic, bound = local_kafka.bootstrap_servers, await kafka_topic(4), records // 10
    fill(servers, topic, nine_in_ten_hot(records, 4))
    release = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.key == HOT:
            await release.wait()

    consumer = consumer_of(servers, topic, max_buffered=bound, drain_timeout=0.5)
    async with consuming(consumer, handle):
        found: list[Stats] = []

        def is_full() -> bool:
            # One look for all: by the next one, records of others may have come between them.
            found[:] = [consumer.stats()]
            return is_full_of_one_lane(found[0], bound // 2)

        await until(is_full, what=lambda: str(found))
        (stats,) = found
        release.set()
    assert stats.longest_lane is not None
    assert stats.longest_lane.key == HOT
    assert stats.longest_lane.length <= bound + 1
    assert stats.buffered <= bound


def is_full_of_one_lane(stats: Stats, records: int) -> bool:
    """Whether intake has stopped with so many records of one lane, only its handler runs, and nothing else could."""
    is_full = stats.intake == "full: max_buffered reached" and stats.in_flight == 1 and stats.ready_lanes == 0
    return is_full and stats.longest_lane is not None and stats.longest_lane.length > records
