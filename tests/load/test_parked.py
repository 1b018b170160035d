"""A hundred thousand parked records. ``make load-failures``."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

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


def measured(count: int) -> tuple[float, float]:
    """What so many parked records cost in this process, after what is loaded once is loaded."""
    asyncio.run(parked(1_000))
    return asyncio.run(parked(count))


def test_parked_records_cost_memory_in_proportion_and_no_cpu(tell: Callable[[str], None]) -> None:
    """50,000 or 100,000 of them: as much memory for each, and no more CPU than heartbeats and polls in memory take.
    Each in a process of its own: memory that earlier work has freed would hide what they take."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        small, _ = processes.submit(measured, 50_000).result()
        large, part = processes.submit(measured, 100_000).result()
    tell(f"{small:.0f} and {large:.0f} bytes each with 50,000 and 100,000 parked, {100 * part:.1f} % of a core")
    assert 100 < small < 1_500
    assert large < 1.25 * small
    assert part < 0.03
