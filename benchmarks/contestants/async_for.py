"""Plain aiokafka as in its documentation: ``async for``, one handler after the other.

Handlers that sleep take the sum of their times, so the run usually ends at the work's limit.
"""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer

from benchmarks.contestant import Job, serve
from benchmarks.contestants.reading import read


async def consume(job: Job) -> None:
    """One round."""
    handle = job.handle

    async def loop(consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            await handle(record)

    await read(job, loop)


if __name__ == "__main__":
    serve(consume)
