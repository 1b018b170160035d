"""The fetcher does not wait for starts that never come, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from aioparallel import Outgoing, Record
from aioparallel.group.assignment import Assignment
from aioparallel.group.intake import Intake, Plan
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


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_large_record_does_not_stop_small_ones_after_it(partitions: int) -> None:
    """It makes the mean size larger than what is left of ``max_buffered_bytes`` beside paused records. So nothing would
    come that makes it smaller."""
    broker, ended = broker_with(t=partitions), Counter[bytes | None]()

    async def handle(record: Record) -> None:
        ended[record.key] += 1

    def append(size: int, key: bytes) -> None:
        for partition in range(partitions):
            broker.append("t", bytes(size), key=key, partition=partition)

    consumer = consumer_of(broker, max_buffered_bytes=1_000_000)
    consumer.pause_keys("t", b"paused")
    async with running(consumer, handle):
        append(700_000, b"large")
        await until(lambda: ended[b"large"] == partitions)
        for _ in range(2):
            append(300_000 // partitions // 2, b"paused")
        await until(lambda: consumer.stats().buffered == 2 * partitions, 60, lambda: consumer.stats().intake)
        append(10, b"other")
        await until(lambda: ended[b"other"] == partitions, 60, lambda: consumer.stats().intake)
        assert consumer.stats().buffered_bytes < 310_000


async def test_a_hot_key_takes_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of its records nothing is ready until the output is acknowledged. A plan takes time for each
    partition."""
    broker, ended, plans, plan = broker_with(t=100, out=1), list[int](), list[str](), Intake.plan

    def counted(intake: Intake, assignments: Sequence[Assignment]) -> Plan:
        found = plan(intake, assignments)
        plans.append(found.state)
        return found

    async def handle(record: Record) -> Outgoing:
        ended.append(record.offset)
        return Outgoing("out", b"")

    monkeypatch.setattr(Intake, "plan", counted)
    produce(broker, [b"hot"] * 2_000)
    async with running(consumer_of(broker, max_buffered=500), handle):
        await until(lambda: len(ended) == 2_000)
    assert plans.count("full: max_buffered reached") > 5
    assert len(plans) < 300
