"""A broker that is gone is seen from outside: named in ``health()``, not ready, live all the while, the lag marked."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioparallel import Health, Record
from aioparallel.testing import LocalKafka
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = pytest.mark.real

WITHIN = 10.0
"""Seconds for what depends on nothing but this: the broker answers, or does not."""


@pytest.mark.parametrize(
    ("hang", "full"),
    [
        pytest.param(True, False, id="stopped, idle"),
        pytest.param(False, True, id="killed, full", marks=pytest.mark.slow),
    ],
)
async def test_a_dead_broker_is_named(mortal_kafka: LocalKafka, hang: bool, full: bool) -> None:
    """An idle consumer, and one whose buffer is full, so that it asks for nothing: within ten seconds it says which
    broker does not answer, and how old its lag is; when the broker is back it is ready again, and has lost nothing."""
    servers, topic = mortal_kafka.bootstrap_servers, f"dead-{hang}-{full}"
    await mortal_kafka.create_topic(topic, 2)
    count = 3_000
    fill(servers, topic, [Message(b"%d" % i, b"value") for i in range(count)])
    gate = asyncio.Event()
    ran: set[tuple[int, int]] = set()

    async def handle(record: Record) -> None:
        if full:
            await gate.wait()
        ran.add((record.partition, record.offset))

    consumer = consumer_of(servers, topic, max_concurrency=10, max_buffered=200, session_timeout=60)
    said: list[Health] = []

    def is_ready() -> bool:
        said.append(consumer.health())
        return said[-1].ready

    async with consuming(consumer, handle):
        await until(is_ready)
        await until(lambda: (consumer.stats().lag or 0) >= count if full else len(ran) == count)
        del said[:]
        async with mortal_kafka.down(hang=hang):
            began = time.monotonic()
            await until(lambda: not is_ready())
            took = time.monotonic() - began
            health, stats = said[-1], consumer.stats()
            (problem,) = [one for one in health.problems if one.kind == "broker_unreachable"]
            assert f"broker 1 at {servers} has not answered for " in problem.message
            assert health.live
            assert health.running
            assert stats.lag_age is not None
            assert stats.lag_age >= 4
            assert took < WITHIN
        began = time.monotonic()
        await until(is_ready)
        assert time.monotonic() - began < WITHIN
        assert all(one.live for one in said)
        await until(lambda: (consumer.stats().lag_age or 9) < 5)
        gate.set()
        await until(lambda: len(ran) == count)
