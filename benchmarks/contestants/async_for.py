"""Plain aiokafka as its documentation shows it: ``async for``, one handler after the other.

With handlers that sleep it takes their sum; it then comes as far as the work's limit lets it.
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
