"""aiokafka as people write it when a crash must lose nothing: a task for each record, and commits up to the first
unfinished record, as an offset alone can say no more. No order of keys. For the script ``crash``."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.contestant import Job, Readable, serve
from benchmarks.contestants.ours import COMMIT_INTERVAL, HEARTBEAT, SESSION
from benchmarks.contestants.reading import read


class Prefix:
    """Up to where all records are done. ``next``: the first unfinished offset; None before the first record."""

    def __init__(self) -> None:
        self.next: int | None = None
        self._above: set[int] = set()

    def starts_at(self, offset: int) -> None:
        """Records follow from this offset on; later calls have no effect."""
        if self.next is None:
            self.next = offset

    def add(self, offset: int) -> None:
        """A record is done."""
        assert self.next is not None  # records of a fetch were announced
        self._above.add(offset)
        while self.next in self._above:
            self._above.remove(self.next)
            self.next += 1


async def consume(job: Job) -> None:
    """One round."""
    room, done, tasks = asyncio.Semaphore(job.work.concurrency), Prefix(), set[asyncio.Task[None]]()

    async def run(record: Readable) -> None:
        try:
            await job.handle(record)
            done.add(record.offset)
        finally:
            room.release()

    async def commit(consumer: AIOKafkaConsumer) -> None:
        committed = None
        while True:
            await asyncio.sleep(COMMIT_INTERVAL)
            if done.next != committed:
                committed = done.next
                await consumer.commit({TopicPartition(job.work.topic, 0): committed})

    async def loop(consumer: AIOKafkaConsumer) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(commit(consumer))
            while True:
                for records in (await consumer.getmany(timeout_ms=100, max_records=500)).values():
                    done.starts_at(records[0].offset)
                    for record in records:
                        await room.acquire()
                        task = asyncio.create_task(run(record))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)

    session = {"session_timeout_ms": int(SESSION * 1000), "heartbeat_interval_ms": int(HEARTBEAT * 1000)}
    await read(job, loop, enable_auto_commit=False, **session)


if __name__ == "__main__":
    serve(consume)
