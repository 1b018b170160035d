"""The consumer's process: first the plain loop of aiokafka, later the parallel consumer, same handler in both."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import AIOKafkaConsumer

from aioparallel import Ordering, ParallelConsumer, Record
from aioparallel.cli.demo.enrich import Enricher, open_client
from aioparallel.cli.demo.events import EventLog, Lines
from aioparallel.cli.demo.flights import compact
from aioparallel.cli.demo.job import Job
from aioparallel.cli.demo.process import announce, run_until_parent_ends
from aioparallel.errors import ConsumerStateError

__all__ = ["consume_one_by_one", "consume_parallel", "main"]

SAMPLE_INTERVAL = 0.1  # seconds between two samples of the statistics


@asynccontextmanager
async def enricher(job: Job) -> AsyncIterator[Enricher]:
    """The handler with its files and its connections open."""
    with EventLog(job.events) as events, Lines(Path(job.enriched)) as enriched:
        async with open_client(job.concurrency) as client:
            yield Enricher(client, job.service, events, enriched, job.run)


async def consume_one_by_one(job: Job) -> None:
    """What a consumer without aioparallel does: one record after the other."""
    consumer = AIOKafkaConsumer(
        job.topic,
        bootstrap_servers=job.bootstrap_servers,
        group_id=job.group_id,
        auto_offset_reset="earliest",
        session_timeout_ms=int(job.session_timeout * 1000),
        heartbeat_interval_ms=int(job.heartbeat_interval * 1000),
    )
    async with enricher(job) as handler, consumer:
        announce("ready")
        done = 0
        async for got in consumer:
            await handler.handle(Record(got.topic, got.partition, got.offset, got.key, got.value))
            done += 1
            if done == job.records:
                return


async def consume_parallel(job: Job) -> None:
    """The same with aioparallel: many records at once, each key in order."""
    async with enricher(job) as handler:
        consumer = ParallelConsumer(
            job.topic,
            bootstrap_servers=job.bootstrap_servers,
            group_id=job.group_id,
            ordering=Ordering.KEY,
            max_concurrency=job.concurrency,
            session_timeout=job.session_timeout,
            heartbeat_interval=job.heartbeat_interval,
            until="end",
        )
        async with consumer:
            announce("ready")
            with Lines(job.samples) as samples:
                sampling = asyncio.create_task(sample(consumer, samples, job.run))
                try:
                    await consumer.run(handler.handle)
                finally:
                    sampling.cancel()
                    await asyncio.wait([sampling])
                    write_sample(consumer, samples, job.run)


async def sample(consumer: ParallelConsumer, samples: Lines, run: int) -> None:
    """Write the consumer's statistics down, ten times a second."""
    while True:
        write_sample(consumer, samples, run)
        await asyncio.sleep(SAMPLE_INTERVAL)


def write_sample(consumer: ParallelConsumer, samples: Lines, run: int) -> None:
    """The statistics now, as one line of JSON; none before there are any."""
    try:
        stats = consumer.stats()
    except ConsumerStateError:
        return
    values = {
        "in_flight": stats.in_flight,
        "buffered": stats.buffered,
        "parked": stats.parked,
        "ready_lanes": stats.ready_lanes,
        "lanes": stats.lanes,
        "intake": stats.intake,
        # Without partitions the sum is 0, and says nothing about the group.
        "lag": stats.lag if stats.partitions else None,
    }
    samples.write(compact({"at": time.monotonic_ns(), "run": run, **values}))


def main(text: str) -> None:
    """The process."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    job = Job.from_json(text)
    run_until_parent_ends(consume_parallel(job) if job.records is None else consume_one_by_one(job))


if __name__ == "__main__":
    main(sys.argv[1])
