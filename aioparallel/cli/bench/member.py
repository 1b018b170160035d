"""A member's process of ``members.py``: it joins, waits for SIGUSR1, and then handles what its partitions hold.

Its job: ``bootstrap_servers``, ``topic``, ``group``, ``sleep`` (seconds that each handler sleeps; 0: it returns at
once), ``events`` (a file of :class:`~aioparallel.cli.bench.events.EventFile`). It tells ``open``, how many partitions
it has, whenever that changes, and runs until its parent ends it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from aioparallel import ParallelConsumer, Record
from aioparallel.cli.bench.events import EventFile, place
from aioparallel.cli.bench.worker import job, tell
from aioparallel.cli.demo.process import run_until_parent_ends
from aioparallel.errors import ConsumerStateError
from aioparallel.event_loop import quick_collections

__all__ = ["CONCURRENCY", "main"]

CONCURRENCY: Final = 1_000
_POLL: Final = 0.05

Handle = Callable[[Record[Any, Any]], Awaitable[None]]


def no_op(events: Path) -> Handle:
    """Says only that it began, as there is nothing between that and its end."""
    view, count = EventFile(events).view, 0

    async def handle(record: Record[Any, Any]) -> None:
        nonlocal count
        view[count] = place(record.partition, record.offset)
        count += 1

    return handle


def sleeper(events: Path, seconds: float) -> Handle:
    """Sleeps so many seconds."""
    view, count = EventFile(events).view, 0

    async def handle(record: Record[Any, Any]) -> None:
        nonlocal count
        event = place(record.partition, record.offset)
        view[count] = event
        count += 1
        await asyncio.sleep(seconds)
        view[count] = ~event
        count += 1

    return handle


async def _consume(order: dict[str, Any]) -> None:
    events, seconds = Path(order["events"]), order["sleep"]
    consumer = ParallelConsumer(
        order["topic"],
        bootstrap_servers=order["bootstrap_servers"],
        group_id=order["group"],
        max_concurrency=CONCURRENCY,
    )
    consumer.pause()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, consumer.resume)
    async with consumer:
        telling = asyncio.create_task(_tell_partitions(consumer))
        try:
            await consumer.run(sleeper(events, seconds) if seconds else no_op(events))
        finally:
            telling.cancel()


async def _tell_partitions(consumer: ParallelConsumer) -> None:
    told = 0
    while True:
        try:
            count = sum(one.state == "open" for one in consumer.stats().partitions)
        except ConsumerStateError:  # not running yet
            count = 0
        if count != told:
            told = count
            tell(open=count)
        await asyncio.sleep(_POLL)


def main() -> None:
    """The process."""
    quick_collections()
    run_until_parent_ends(_consume(job()))


if __name__ == "__main__":
    main()
