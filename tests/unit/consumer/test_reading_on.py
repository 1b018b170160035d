"""The fetcher does not wait for starts that never come, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

from aioparallel import Record
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import consumer_of, produce
from tests.support.waiting import until
from tests.unit.consumer.test_pausing import broker_with, running


async def test_ready_records_that_are_paused_do_not_stop_the_rest() -> None:
    """They were ready when the fetcher planned, and enough for a while. None of them starts."""
    broker, ended, release = broker_with(t=1), Counter[bytes | None](), asyncio.Event()

    async def handle(record: Record) -> None:
        if record.key == b"first":
            await release.wait()
        ended[record.key] += 1

    consumer = consumer_of(broker, max_concurrency=1)
    keys = [b"%d" % number for number in range(2_000)]
    async with running(consumer, handle):
        produce(broker, [b"first"])
        await until(lambda: consumer.stats().in_flight == 1)
        produce(broker, keys)
        await until(lambda: consumer.stats().buffered == 2_000)
        consumer.pause_keys("t", *keys)
        await asyncio.sleep(1)
        produce(broker, [b"other"])
        release.set()
        await until(lambda: ended[b"other"], 60, lambda: consumer.stats().intake)
        assert ended.total() == 2


async def test_a_map_that_fits_again_lets_a_partition_read_past_what_is_paused() -> None:
    """No start makes the fetcher plan again, because all that was held back is paused as well."""
    broker, ended, release = InMemoryBroker(metadata_limit=12), Counter[bytes | None](), asyncio.Event()
    broker.create_topic("t", 2)
    slow = [b"slow %d" % number for number in range(48)]

    async def handle(record: Record) -> None:
        if record.key in slow:
            await release.wait()
        ended[record.key] += 1

    consumer = consumer_of(broker, max_concurrency=50, max_buffered=64, when_map_is_full="block")
    consumer.pause_keys("t", b"paused")
    async with running(consumer, handle):
        produce(broker, [key if n * n % 7 < 3 else b"quick" for n, key in enumerate(slow)])
        produce(broker, [b"paused"] * 32)
        await until(lambda: any(one.map_cut_at for one in consumer.stats().partitions))
        produce(broker, [b"paused"])
        await until(lambda: consumer.stats().buffered == 33)
        release.set()
        await until(lambda: ended.total() == 48)
        await asyncio.sleep(1)
        produce(broker, [b"other"])
        await until(lambda: ended[b"other"], 60, lambda: consumer.stats().intake)
