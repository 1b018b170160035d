"""What the contestants on plain aiokafka share: the consumer, and when to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiokafka import AIOKafkaConsumer

from aioparallel.cli.bench.wire import Job

__all__ = ["read", "until_over"]


async def read(job: Job, loop: Callable[[AIOKafkaConsumer], Awaitable[None]]) -> None:
    """Run a loop that reads for ever until the job is over. Commits are aiokafka's own, every 5 seconds and when it
    closes."""
    async with AIOKafkaConsumer(
        job.work.topic,
        bootstrap_servers=job.work.bootstrap_servers,
        group_id=job.group,
        auto_offset_reset="earliest",
    ) as consumer:
        await until_over(job, loop(consumer))


async def until_over(job: Job, reading: Awaitable[None]) -> None:
    """Run ``reading`` until it ends, raises, or the job is over; it is cancelled then."""
    tasks = [asyncio.ensure_future(reading), asyncio.ensure_future(job.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        failure = (await asyncio.gather(*tasks, return_exceptions=True))[0]
    if isinstance(failure, Exception):
        raise failure
