"""One process of a queue: ``python -m tests.support.children.queue member SERVERS QUEUE LEASE SECONDS EVENTS`` or
``... tracker SERVERS QUEUE``. SIGTERM ends it well.

A member notes in its event log which numbers it has begun and ended; every 500th number from 7 on always fails."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from pathlib import Path

from aioparallel import Record
from aioparallel.cli import main as command_line
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.testing.event_log import EventLog

BAD, EVERY = 7, 500


def is_bad(number: int) -> bool:
    """Whether its handler fails."""
    return number % EVERY == BAD


def member(servers: str, queue: str, lease: str, seconds: str, events: str) -> None:
    """Handles records, and tracks none."""
    consumer = KmqConsumer[bytes, bytes](
        queue,
        bootstrap_servers=servers,
        group_id=f"{queue}-workers",
        lease=float(lease),
        max_concurrency=500,
        session_timeout=1.5,
        heartbeat_interval=0.4,
        tracker=False,
    )
    with EventLog(Path(events)) as log:

        async def handle(record: Record[bytes | None, bytes]) -> None:
            number = int(record.value)
            log.began(0, number)
            await asyncio.sleep(float(seconds) * random.uniform(0.5, 1.5))
            if is_bad(number):
                raise ValueError(number)
            log.ended(0, number)

        consumer.run_sync(handle)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    if sys.argv[1] == "member":
        member(*sys.argv[2:])
    else:
        sys.argv = ["aioparallel", "kmq", "tracker", sys.argv[3], "--bootstrap-servers", sys.argv[2]]
        command_line()
