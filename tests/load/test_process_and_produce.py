"""Process and produce on an Apache Kafka that dies. The large size: ``make load-failures``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aioparallel import Outgoing, Record
from aioparallel.testing import LocalKafka
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import fill_numbered, number_of
from tests.support.kafka.reading import check_numbers, read_all
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.mark.parametrize("records", [5_000, pytest.param(200_000, marks=pytest.mark.slow)])
async def test_a_broker_that_dies_while_outputs_are_on_their_way_loses_and_reorders_none(
    mortal_kafka: LocalKafka, tell: Callable[[str], None], records: int
) -> None:
    """Killed at a quarter and brought back: every output is there, each key's in order, and nothing was tried again."""
    servers, source, target = mortal_kafka.bootstrap_servers, f"source-{records}", f"target-{records}"
    for topic in (source, target):
        await mortal_kafka.create_topic(topic, 8)
    fill_numbered(servers, source, records, keys=1_000)
    killed = asyncio.Event()

    async def handle(record: Record) -> Outgoing:
        await asyncio.sleep(0.001)
        if number_of(record) == records // 4:
            mortal_kafka.kill()  # at once, amid what is on its way
            killed.set()
        return Outgoing(target, record.value, record.key)

    consumer = consumer_of(servers, source)
    async with consuming(consumer, handle):
        await killed.wait()
        await asyncio.to_thread(mortal_kafka.restart)
        took = await until(lambda: consumer.stats().succeeded == records, what=lambda: str(consumer.stats()))
        assert consumer.stats().failed_attempts == 0
    twice = check_numbers(await read_all(servers, target), range(records), max_duplicates=1_000)
    tell(f"the last record {took:.1f} s after the broker was back; {twice} outputs twice, none missing")
