"""Handlers that hang for ever, on Apache Kafka. The large size: ``make load-failures``."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from aioparallel import Record
from aioparallel.testing import DeliveryChecker, LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import fill_numbered, number_of
from tests.support.waiting import SLACK, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

DRAIN = 0.5


@pytest.mark.parametrize("stubborn", [False, True], ids=["cancellable", "ignoring cancellation"])
@pytest.mark.parametrize("records", [3_000, pytest.param(300_000, marks=pytest.mark.slow)])
async def test_one_key_in_five_hangs_and_the_others_do_not_notice(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, records: int, stubborn: bool
) -> None:
    """With ``handler_timeout=1`` and the handlers of one key in five hanging for ever, each record of the others is
    handled once, in order; closing takes the drain deadline and what leaving the group takes at most."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(8)
    fill_numbered(servers, topic, records, keys=1_000)
    order, delivery = OrderChecker(), DeliveryChecker[int]()
    for number in range(records):
        if number % 5:
            delivery.produced(number)

    released = asyncio.Event()

    async def handle(record: Record) -> None:
        number = number_of(record)
        with order.handling(record):
            if number % 5 == 0:
                await hang(released, stubborn)
                return
        delivery.handled(number)

    consumer = consumer_of(
        servers, topic, max_concurrency=1_000, max_buffered=100_000, handler_timeout=1, drain_timeout=DRAIN
    )
    async with consuming(consumer, handle):
        await until(lambda: not delivery.lost(), what=lambda: f"{len(delivery.lost())} more; {consumer.stats()}")
        closing = time.monotonic()
    assert time.monotonic() - closing < DRAIN + SLACK
    released.set()
    order.check()
    delivery.check(max_duplicates=0)


async def hang(released: asyncio.Event, stubborn: bool) -> None:
    """``stubborn``: whoever cancels it."""
    while not released.is_set():
        with contextlib.suppress(*[asyncio.CancelledError] * stubborn):
            await released.wait()
