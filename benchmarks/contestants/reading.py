"""Shared by contestants on plain aiokafka: the consumer, and when to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord

from aioparallel.deserializers import from_json
from benchmarks.contestant import Job

__all__ = ["read", "read_all", "until_over"]


async def read_all(job: Job) -> list[ConsumerRecord[bytes | None, bytes | None]]:
    """The records of the topic, for contestants that read nothing while the clock runs."""
    found: list[ConsumerRecord[bytes | None, bytes | None]] = []
    async with AIOKafkaConsumer(
        job.work.topic, bootstrap_servers=job.work.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        while len(found) < job.work.records:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                found += records
    return found


async def read(job: Job, loop: Callable[[AIOKafkaConsumer], Awaitable[None]], **options: Any) -> None:
    """Run an endless reading loop until the job is over. aiokafka commits every 5 seconds and when it closes, unless
    ``options`` say otherwise."""
    decoded = {"value_deserializer": from_json} if job.work.handler == "json" else {}
    async with AIOKafkaConsumer(
        job.work.topic,
        bootstrap_servers=job.work.bootstrap_servers,
        group_id=job.group,
        auto_offset_reset="earliest",
        **decoded,
        **options,
    ) as consumer:
        await until_over(job, loop(consumer))


async def until_over(job: Job, working: Awaitable[None]) -> None:
    """Run ``working`` until it ends, raises, or the job is over; it is cancelled then."""
    tasks = [asyncio.ensure_future(working), asyncio.ensure_future(job.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        failure = (await asyncio.gather(*tasks, return_exceptions=True))[0]
    if isinstance(failure, Exception):
        raise failure
