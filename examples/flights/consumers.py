"""A consumer's process: the plain loop of aiokafka or the parallel consumer, with the same handler."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from aiokafka import AIOKafkaConsumer
from httpx_aiohttp import AiohttpTransport

from aioparallel import Ordering, ParallelConsumer, Record
from aioparallel.testing.event_log import EventLog
from aioparallel.testing.processes.parent import run_until_parent_ends, tell
from examples.flights.handler import enrich
from examples.flights.lines import appending

__all__ = ["Job"]

HEARTBEATS = 6  # in a session timeout


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one process, passed as JSON on its command line.

    ``records``: where the plain loop stops; None for the parallel consumer, which stops at the end offsets.
    ``service``: URL of the HTTP service. ``events``, ``enriched``: files to write. ``session_timeout``: seconds.
    """

    bootstrap_servers: str
    topic: str
    group_id: str
    service: str
    events: str
    enriched: str
    concurrency: int
    session_timeout: float
    records: int | None = None

    def to_json(self) -> str:
        """The job as JSON."""
        return json.dumps(asdict(self))


async def consume(job: Job) -> None:
    """Do the job."""
    # httpx over aiohttp's transport: httpx's own pool scans all its connections for each request and made only 107
    # requests/s with 1,000 of them, where this one made 2,990.
    limits = httpx.Limits(max_connections=job.concurrency, max_keepalive_connections=job.concurrency)
    transport = AiohttpTransport(limits=limits, trust_env=False)
    with EventLog(Path(job.events), times=True) as events, appending(Path(job.enriched)) as enriched:
        async with httpx.AsyncClient(transport=transport, timeout=30, trust_env=False) as http:

            async def handle(record: Record) -> None:
                with events.handling(record):
                    enriched.write(await enrich(record, job.service, http))

            await (consume_parallel if job.records is None else consume_one_by_one)(job, handle)


async def consume_parallel(job: Job, handle: Callable[[Record], Awaitable[None]]) -> None:
    """With aioparallel: many records at once, each key in order."""
    consumer = ParallelConsumer(
        job.topic,
        bootstrap_servers=job.bootstrap_servers,
        group_id=job.group_id,
        ordering=Ordering.KEY,
        max_concurrency=job.concurrency,
        session_timeout=job.session_timeout,
        heartbeat_interval=job.session_timeout / HEARTBEATS,
        until="end",
    )
    async with consumer:
        tell("ready")
        await consumer.run(handle)


async def consume_one_by_one(job: Job, handle: Callable[[Record], Awaitable[None]]) -> None:
    """With plain aiokafka: one record after the other."""
    consumer = AIOKafkaConsumer(
        job.topic, bootstrap_servers=job.bootstrap_servers, group_id=job.group_id, auto_offset_reset="earliest"
    )
    done = 0
    async with consumer:
        tell("ready")
        async for got in consumer:
            await handle(Record(got.topic, got.partition, got.offset, got.key, got.value))
            done += 1
            if done == job.records:
                return


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run_until_parent_ends(consume(Job(**json.loads(sys.argv[1]))))
