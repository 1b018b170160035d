"""Plain aiokafka at its fastest: lists of records, one handler after the other.

Handlers that sleep take the sum of their times, so the run usually ends at the work's limit.
"""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer

from benchmarks.contestant import Job, serve
from benchmarks.contestants.reading import read


async def consume(job: Job) -> None:
    """One round."""
    handle, size = job.handle, job.work.batch

    async def loop(consumer: AIOKafkaConsumer) -> None:
        while True:
            found = await consumer.getmany(timeout_ms=1_000, max_records=size or 500)
            for records in found.values():
                if size:
                    await handle(records)
                    continue
                for record in records:
                    await handle(record)

    await read(job, loop)


if __name__ == "__main__":
    serve(consume)
