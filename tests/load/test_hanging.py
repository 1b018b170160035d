"""Handlers that hang for ever, on Apache Kafka. ``make load-failures``."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
import uuid
from collections.abc import Callable

import pytest

from aioparallel import ParallelConsumer, Record
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.topics import fill_numbered, number_of, on_uvloop

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(300)]

RECORDS, KEYS, PARTITIONS = 300_000, 1_000, 8
DRAIN = 2.0


async def rest_took(servers: str, topic: str, *, hanging: bool, stubborn: bool) -> tuple[float, float]:
    """Seconds for the records of four in five keys, and seconds for closing while the rest hangs."""
    begun = ended = 0.0
    done = 0
    expected = sum(n % 5 != 0 for n in range(RECORDS))
    all_done = asyncio.Event()
    order = OrderChecker()

    async def handle(record: Record) -> None:
        nonlocal begun, ended, done
        begun = begun or time.perf_counter()
        with order.handling(record):
            if hanging and number_of(record) % 5 == 0:
                await hang(stubborn)
            await asyncio.sleep(0.01)
        if number_of(record) % 5 != 0:
            done += 1
            ended = time.perf_counter()
            if done == expected:
                all_done.set()

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"g-{uuid.uuid4().hex}",
        max_concurrency=1_000,
        max_buffered=100_000,
        handler_timeout=1,
        drain_timeout=DRAIN,
    )
    async with asyncio.timeout(60):
        async with consumer:
            running = asyncio.ensure_future(consumer.run(handle))
            await all_done.wait()
            closing = time.perf_counter()
            consumer.stop()
            await running
        closed = time.perf_counter() - closing
    assert not order.violations
    return ended - begun, closed


async def hang(stubborn: bool) -> None:
    """For ever; ``stubborn``: for ten seconds, whoever cancels it."""
    forever = asyncio.Event()
    if not stubborn:
        await forever.wait()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


@pytest.mark.parametrize("stubborn", [False, True], ids=["cancellable", "ignoring cancellation"])
async def test_one_in_five_hangs_and_the_rest_does_not_notice(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Callable[[str], None], stubborn: bool
) -> None:
    """With ``handler_timeout=1`` and one handler in five hanging for ever, the rest takes as long as without, and
    closing takes the drain deadline and what leaving the group takes at most."""
    servers = local_kafka.bootstrap_servers
    topic = await kafka_topic(PARTITIONS)
    fill_numbered(servers, topic, RECORDS, KEYS, PARTITIONS)
    taken: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(3):
        for hanging in (False, True):
            seconds, closed = await asyncio.to_thread(
                on_uvloop, rest_took(servers, topic, hanging=hanging, stubborn=stubborn)
            )
            taken[hanging].append(seconds)
            tell(f"hanging={hanging}: the rest {seconds:.2f} s, closed in {closed:.2f} s")
            assert closed < DRAIN + 3
    ratio = statistics.median(taken[False]) / statistics.median(taken[True])
    tell(f"rate of the rest beside hanging handlers: {ratio:.2f} of that without")
    assert ratio >= 0.9
