"""Pyrallel Consumer as a contestant: asyncio mode, with its defaults except for two settings.

``max_in_flight`` is the number of records that may run at once. ``poll_batch_size`` was found by trial for each kind of
handler, as its tuning guide advises; the default of 1,000 is three to five times slower. Handlers that return at once
need large batches: it pauses all partitions while it has more records than may run, and each pause costs a fraction of
a second. Handlers that wait need small ones: its CPU time per record grows with the number of records that it holds.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from pyrallel_consumer.config import KafkaConfig
from pyrallel_consumer.consumer import PyrallelConsumer
from pyrallel_consumer.dto import ExecutionMode, OrderingMode, WorkItem

from benchmarks.contestant import Job, Work, serve

ORDERINGS: Final = {
    "key": OrderingMode.KEY_HASH,
    "partition": OrderingMode.PARTITION,
    "unordered": OrderingMode.UNORDERED,
}
POLL_BATCH_OF_SLEEPERS: Final = 50
POLL_BATCH: Final = 10_000
COMMIT_TIMEOUT: Final = 20.0
"""Seconds for the commits after the last record has ended."""


class Place:
    """A record's place, in the form that the benchmark's handler uses."""

    __slots__ = ("offset", "partition")

    def __init__(self, item: WorkItem) -> None:
        self.partition = item.tp.partition
        self.offset = item.offset


def configuration(work: Work, group: str) -> KafkaConfig:
    """The configuration of the work, with the settings found best for it."""
    config = KafkaConfig(BOOTSTRAP_SERVERS=work.bootstrap_servers, CONSUMER_GROUP=group)
    config.parallel_consumer.ordering_mode = ORDERINGS[work.ordering]
    config.parallel_consumer.poll_batch_size = POLL_BATCH_OF_SLEEPERS if work.handler == "sleep" else POLL_BATCH
    config.parallel_consumer.execution.mode = ExecutionMode.ASYNC
    config.parallel_consumer.execution.max_in_flight = work.concurrency
    return config


async def consume(job: Job) -> None:
    """One round."""
    handle = job.handle

    async def worker(item: WorkItem) -> None:
        await handle(Place(item))

    consumer = PyrallelConsumer(configuration(job.work, job.group), worker, job.work.topic)
    await consumer.start()
    try:
        if await job.wait():
            await committed(consumer)
    finally:
        await consumer.stop()


async def committed(consumer: PyrallelConsumer) -> None:
    """Wait until the consumer has committed everything: its ``stop`` only commits what it has counted by then."""
    deadline = time.monotonic() + COMMIT_TIMEOUT
    while any(partition.true_lag for partition in consumer.get_metrics().partitions):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Pyrallel Consumer has not committed everything {COMMIT_TIMEOUT:g} s after the end")
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    serve(consume)
