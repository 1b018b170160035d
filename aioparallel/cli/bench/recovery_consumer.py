"""The consumers' processes of ``recovery.py``: ours, and what people write by hand on aiokafka.

Its job: ``contestant`` (``ours`` or ``by-hand``), ``bootstrap_servers``, ``topic``, ``group``, ``events`` (a file of
:class:`~aioparallel.cli.bench.events.EventFile`), ``stuck`` (the offset whose handler never ends, or None). It runs
until its parent ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from aioparallel import ParallelConsumer
from aioparallel.cli.bench.events import EventFile, place
from aioparallel.cli.bench.wire import Readable
from aioparallel.cli.bench.worker import job
from aioparallel.cli.demo.process import run_until_parent_ends
from aioparallel.event_loop import quick_collections

__all__ = ["Prefix", "main"]

CONCURRENCY: Final = 1_000
# A dead member's partitions wait until its session is over: the shortest that brokers allow unless told otherwise.
SESSION: Final = 6.0  # seconds
HEARTBEAT: Final = 2.0  # seconds
COMMIT_INTERVAL: Final = 1.0  # seconds, the default of ours
RECORDS_A_FETCH: Final = 500
FETCH_TIMEOUT: Final = 100  # milliseconds

Handle = Callable[[Readable], Awaitable[None]]


def handler(order: dict[str, Any]) -> Handle:
    """Returns at once, but for one record; writes down what it does."""
    view, stuck, count = EventFile(Path(order["events"])).view, order["stuck"], 0

    async def handle(record: Readable) -> None:
        nonlocal count
        event = place(record.partition, record.offset)
        view[count] = event
        count += 1
        if record.offset == stuck:
            await asyncio.Event().wait()
        view[count] = ~event
        count += 1

    return handle


async def ours(order: dict[str, Any], handle: Handle) -> None:
    """The parallel consumer."""
    consumer = ParallelConsumer(
        order["topic"],
        bootstrap_servers=order["bootstrap_servers"],
        group_id=order["group"],
        max_concurrency=CONCURRENCY,
        session_timeout=SESSION,
        heartbeat_interval=HEARTBEAT,
    )
    async with consumer:
        await consumer.run(handle)


async def by_hand(order: dict[str, Any], handle: Handle) -> None:
    """A task for each record, and commits of what is done without a gap: the most that an offset alone can say."""
    consumer = AIOKafkaConsumer(
        order["topic"],
        bootstrap_servers=order["bootstrap_servers"],
        group_id=order["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(SESSION * 1000),
        heartbeat_interval_ms=int(HEARTBEAT * 1000),
    )
    room, done, tasks = asyncio.Semaphore(CONCURRENCY), Prefix(), set[asyncio.Task[None]]()

    async def run(record: Readable) -> None:
        try:
            await handle(record)
            done.add(record.offset)
        finally:
            room.release()

    async with consumer:
        committing = asyncio.create_task(_commit(consumer, TopicPartition(order["topic"], 0), done))
        try:
            while True:
                for records in (await consumer.getmany(timeout_ms=FETCH_TIMEOUT, max_records=RECORDS_A_FETCH)).values():
                    done.starts_at(records[0].offset)
                    for record in records:
                        await room.acquire()
                        task = asyncio.create_task(run(record))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
        finally:
            for task in (committing, *tasks):
                task.cancel()


class Prefix:
    """Up to where everything is done: ``next`` is the first offset that is not; None before the first record."""

    def __init__(self) -> None:
        self.next: int | None = None
        self._above: set[int] = set()

    def starts_at(self, offset: int) -> None:
        """Records from here on follow; said again it means nothing."""
        if self.next is None:
            self.next = offset

    def add(self, offset: int) -> None:
        """This one is done."""
        assert self.next is not None  # records of a fetch were announced
        self._above.add(offset)
        while self.next in self._above:
            self._above.remove(self.next)
            self.next += 1


async def _commit(consumer: AIOKafkaConsumer, partition: TopicPartition, done: Prefix) -> None:
    committed = None
    while True:
        await asyncio.sleep(COMMIT_INTERVAL)
        if done.next != committed:
            committed = done.next
            await consumer.commit({partition: committed})


def main() -> None:
    """The process."""
    order = job()
    consume = {"ours": ours, "by-hand": by_hand}[order["contestant"]]
    quick_collections()
    run_until_parent_ends(consume(order, handler(order)))


if __name__ == "__main__":
    main()
