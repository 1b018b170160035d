"""This library with its defaults, but for the order and the concurrency that the work asks for."""

from __future__ import annotations

import asyncio

from aioparallel import Ordering, ParallelConsumer
from aioparallel.cli.bench.wire import Job, serve


async def consume(job: Job) -> None:
    """One round."""
    work = job.work
    consumer = ParallelConsumer(
        work.topic,
        bootstrap_servers=work.bootstrap_servers,
        group_id=job.group,
        ordering=Ordering(work.ordering),
        max_concurrency=work.concurrency,
    )

    async def stop() -> None:
        ended = await job.wait()
        consumer.stop(drain=ended)

    async with consumer:
        stopping = asyncio.create_task(stop())
        try:
            await consumer.run(job.handle)
        finally:
            stopping.cancel()


if __name__ == "__main__":
    serve(consume)
