"""The limit of the event loop: as many tasks as the work's concurrency, each sleeping for its part of the records.

It reads nothing from Kafka and has no handler, order, commits or log; the checks leave it out. Its rate is an upper
bound for any consumer on this event loop, which must also fetch, order, track and commit records. For work in which all
records sleep equally long.
"""

from __future__ import annotations

import asyncio
import contextlib

from benchmarks.contestant import Job, serve, sleeps_of


async def consume(job: Job) -> None:
    """One round."""
    work = job.work
    batch = work.batch or 1
    seconds = sleeps_of(work)[0][0] * 1e-6
    done = 0

    async def sleep(times: int) -> None:
        nonlocal done
        for _ in range(times):
            await asyncio.sleep(seconds)
            done += batch

    whole, rest = divmod(work.records // batch, work.concurrency)
    job.begin()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(work.limit), asyncio.TaskGroup() as group:
            for number in range(work.concurrency):
                group.create_task(sleep(whole + (number < rest)))
    job.finish(done)


if __name__ == "__main__":
    serve(consume)
