"""A task for each record with a semaphore, as people write it to run many at once.

It keeps no order, and commits what it has read, finished or not: a crash loses running records.
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord

from benchmarks.contestant import Job, serve
from benchmarks.contestants.reading import read


async def consume(job: Job) -> None:
    """One round."""
    handle = job.handle
    slots = asyncio.Semaphore(job.work.concurrency)
    running: set[asyncio.Task[None]] = set()

    async def run(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
        try:
            await handle(record)
        finally:
            slots.release()

    async def loop(consumer: AIOKafkaConsumer) -> None:
        while True:
            found = await consumer.getmany(timeout_ms=1_000, max_records=500)
            for records in found.values():
                for record in records:
                    await slots.acquire()
                    task = asyncio.create_task(run(record))
                    running.add(task)
                    task.add_done_callback(running.discard)

    try:
        await read(job, loop)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    serve(consume)
