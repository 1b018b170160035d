"""A hundred thousand parked records. ``make load-failures``."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

import psutil
import pytest

from aioparallel import FailurePolicy, Ordering, ParallelConsumer, Record, RetryPolicy
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def parked(count: int) -> tuple[float, float]:
    """So many records wait for a retry: bytes of memory for each, and the part of a core that they take."""
    broker = InMemoryBroker()
    broker.create_topic("t", 4)
    for n in range(count):
        broker.append("t", b"x" * 100, partition=n % 4)

    async def handle(record: Record) -> None:
        raise ConnectionError("the service is down")

    consumer = ParallelConsumer(
        "t",
        group_id="g",
        client=InMemoryClient(broker, "g"),
        ordering=Ordering.UNORDERED,
        max_parked=2 * count + 1_000,
        failures=FailurePolicy(retry=RetryPolicy(first_delay=3_600, max_delay=3_600)),
        drain_timeout=0,
    )
    gc.collect()
    before = psutil.Process().memory_info().rss
    async with consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        async with asyncio.timeout(60):
            while consumer._engine is None or consumer.stats().parked < count:
                await asyncio.sleep(0.1)
        gc.collect()
        size = (psutil.Process().memory_info().rss - before) / count
        begun, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(5)
        part = (time.process_time() - cpu) / (time.monotonic() - begun)
        consumer.stop(drain=False)
        await running
    return size, part


async def test_parked_records_cost_memory_in_proportion_and_no_cpu(tell: Callable[[str], None]) -> None:
    """50,000 or 100,000 of them: as much memory for each, and no more CPU than heartbeats and polls in memory take."""
    await parked(1_000)  # what is loaded once is loaded now
    small, _ = await parked(50_000)
    large, part = await parked(100_000)
    tell(f"{small:.0f} and {large:.0f} bytes each with 50,000 and 100,000 parked, {100 * part:.1f} % of a core")
    assert large < 1_500
    assert large < 1.5 * max(small, 400)
    assert part < 0.03
