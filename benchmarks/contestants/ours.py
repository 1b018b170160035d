"""This library with its defaults, except for the order and concurrency of the work."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aioparallel
from aioparallel import Ordering, Outgoing, ParallelConsumer, Record, batches
from aioparallel.clients import AiokafkaClient
from aioparallel.deserializers import from_json
from aioparallel.group.client import Fetched
from aioparallel.records.errors import ConsumerStateError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.event_log import EventLog
from aioparallel.testing.processes.parent import tell
from benchmarks.contestant import Handle, Job, serve
from benchmarks.contestants.observing import OBSERVED, extensions
from benchmarks.contestants.reading import read_all, until_over

# A dead member's partitions wait for the end of its session: the shortest that brokers allow by default.
SESSION: Final = 6.0  # seconds
HEARTBEAT: Final = 2.0  # seconds
COMMIT_INTERVAL: Final = 1.0  # seconds, our default
POLL: Final = 0.005  # seconds


class ArrivalClient(AiokafkaClient):
    """Logs arrivals: for each fetch an event with the last record that it returned of a partition."""

    def __init__(self, bootstrap_servers: str, group_id: str, log: EventLog) -> None:
        super().__init__(bootstrap_servers, group_id)
        self._log = log

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """Fetch, and log the arrival."""
        fetched = await super().fetch(quotas, most)
        for one in fetched:
            if one.records:
                self._log.began(one.partition.partition, one.next_offset - 1)
        return fetched


def options(job: Job) -> dict[str, Any]:
    """Options for scripts and handlers."""
    found: dict[str, Any] = {}
    if job.work.handler == "json":
        found["value_deserializer"] = from_json
    if job.work.handler == "transactions":
        from aioparallel import Transactions  # noqa: PLC0415 - revisions that are compared may not have it

        found["commits"] = Transactions()
    if job.work.script == "crash":
        found |= {"session_timeout": SESSION, "heartbeat_interval": HEARTBEAT}
    if job.work.script == "pace":
        arrivals = EventLog(Path(f"{job.path}.arrivals"), times=True, room=2 * job.work.records)
        found["client"] = ArrivalClient(job.work.bootstrap_servers, job.group, arrivals)
    return found


def producing(handle: Handle, output: str) -> Any:
    """The handler with one output for each record."""

    async def produce(record: Record) -> Outgoing:
        await handle(record)
        return Outgoing(output, record.value, record.key)

    return produce


def handler(job: Job) -> Any:
    """The handler of the work."""
    if job.work.batch:
        return batches(job.handle, size=job.work.batch)
    return producing(job.handle, job.output) if job.output else job.handle


async def consume(job: Job) -> None:
    """One round."""
    work = job.work
    if work.library and not Path(aioparallel.__file__).is_relative_to(work.library):
        raise RuntimeError(f"{aioparallel.__file__} is imported, which is not in {work.library}")
    if work.handler == "map":
        await map_records(job)
        return
    consumer = make_consumer(job)
    beside = [stop_when_over(consumer, job)]
    if work.script in ("pace", "members"):
        beside.append(tell_partitions(consumer, job))
    if work.script == "members":
        consumer.pause()
        beside.append(go_on(consumer, job))
    if job.output is not None or work.handler == "queue":
        beside.append(finish_when_acknowledged(consumer, job))
    async with consumer:
        tasks = [asyncio.create_task(one) for one in beside]
        try:
            await consumer.run(handler(job))
        finally:
            for task in tasks:
                task.cancel()


def make_consumer(job: Job) -> ParallelConsumer[Any, Any]:
    """The consumer of the work."""
    work = job.work
    common: dict[str, Any] = {
        "bootstrap_servers": work.bootstrap_servers,
        "group_id": job.group,
        "max_concurrency": work.concurrency,
        **extensions(os.environ.get(OBSERVED, "")),
        **options(job),
    }
    if work.handler == "queue":
        from aioparallel.queues.kmq import KmqConsumer  # noqa: PLC0415 - as above

        return KmqConsumer(work.topic, lease=60, tracker=False, max_buffered=20 * work.concurrency, **common)
    return ParallelConsumer(work.topic, ordering=Ordering(work.ordering), **common)


async def map_records(job: Job) -> None:
    """The records of the topic, read before the clock starts, by key through parallel_map."""
    from aioparallel import parallel_map  # noqa: PLC0415 - as above

    records = await read_all(job)

    async def run() -> None:
        async for outcome in parallel_map(
            job.handle, records, key=lambda record: record.key, max_concurrency=job.work.concurrency
        ):
            outcome.result()

    await until_over(job, run())


async def stop_when_over(consumer: ParallelConsumer, job: Job) -> None:
    """Stop the consumer; at the work's limit without draining."""
    ended = await job.wait()
    consumer.stop(drain=ended)


async def go_on(consumer: ParallelConsumer, job: Job) -> None:
    """Resume a member when the benchmark says ``go``."""
    await job.let_go.wait()
    consumer.resume()


async def tell_partitions(consumer: ParallelConsumer, job: Job) -> None:
    """Report the number of open partitions when it changes, until the records start; for latency, until all are open.
    ``stats()`` walks the whole backlog, so it is not called while the clock runs."""
    told = 0
    while not job.let_go.is_set() and (job.work.script == "members" or told < job.work.partitions):
        try:
            count = sum(one.state == "open" for one in consumer.stats().partitions)
        except ConsumerStateError:  # not running yet
            count = 0
        if count != told:
            told = count
            tell(json.dumps({"open": count}))
        await asyncio.sleep(10 * POLL)


async def finish_when_acknowledged(consumer: ParallelConsumer, job: Job) -> None:
    """A record has succeeded once the broker has its output. ``stats()`` walks the whole backlog, so it is called only
    when that is nearly gone."""
    await job.all_called.wait()
    succeeded = 0
    while succeeded < job.work.records:
        await asyncio.sleep(POLL)
        try:
            succeeded = consumer.stats().succeeded
        except ConsumerStateError:  # not running yet
            continue
    job.finish(succeeded)


if __name__ == "__main__":
    serve(consume)
