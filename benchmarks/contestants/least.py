"""The least possible work: the smallest program on aiokafka with the same waits.

As many tasks as the work's concurrency take fetched records, each awaiting one handler after the other. It keeps no
order, tracks nothing and commits what it has read: every consumer on this client does at least this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from aiokafka import AIOKafkaConsumer

from benchmarks.contestant import Job, Readable, serve
from benchmarks.contestants.reading import read

CHUNK: Final = 500
"""Records of one fetch, as in :mod:`benchmarks.contestants.getmany`."""


async def consume(job: Job) -> None:
    """One round."""
    handle, size, concurrency = job.handle, job.work.batch, job.work.concurrency
    fetched: deque[Readable] = deque()
    idle: deque[asyncio.Future[None]] = deque()
    wanted, enough = asyncio.Event(), concurrency * (size or 1)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        while True:
            if fetched:
                found = [fetched.popleft() for _ in range(min(size, len(fetched)))] if size else fetched.popleft()
                if len(fetched) <= enough:
                    wanted.set()
                await handle(found)
                continue
            wanted.set()
            idle.append(waiting := loop.create_future())
            await waiting

    async def loop(consumer: AIOKafkaConsumer) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
            while True:
                for records in (await consumer.getmany(timeout_ms=1_000, max_records=CHUNK)).values():
                    fetched.extend(records)
                while fetched and idle:
                    for _ in range(min(len(idle), -(-len(fetched) // (size or 1)))):
                        idle.popleft().set_result(None)
                    await asyncio.sleep(0)
                if len(fetched) > enough:
                    wanted.clear()
                    await wanted.wait()

    await read(job, loop)


if __name__ == "__main__":
    serve(consume)
