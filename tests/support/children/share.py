"""A member of a share group: ``python -m tests.support.children.share SERVERS TOPIC GROUP SECONDS EVENTS``. SIGTERM
ends it well.

Its event log has each delivery that it gets, and what becomes of it. Every 500th record of a partition, from the 7th
on, always fails. One in 100 takes five times as long as ``SECONDS``."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from pathlib import Path

from aioparallel import Record
from aioparallel.queues.share import ShareConsumer
from tests.support.share_events import Action, ShareLog, WatchedClient

BAD, EVERY = 7, 500
LONG = 100


def is_bad(offset: int) -> bool:
    """Whether its handler fails."""
    return offset % EVERY == BAD


def main(servers: str, topic: str, group: str, seconds: str, events: str) -> None:
    """Handle records."""
    log = ShareLog(Path(events))
    log.watch()
    consumer = ShareConsumer[bytes, bytes](
        topic,
        bootstrap_servers=servers,
        group_id=group,
        client=WatchedClient(servers, group, log),
        on_late=lambda record: log.of(Action.LATE, record),
        max_concurrency=250,
    )

    async def handle(record: Record[bytes | None, bytes]) -> None:
        log.of(Action.BEGAN, record)
        try:
            length = 5 if record.offset % LONG == 1 else random.uniform(0.5, 1.5)
            await asyncio.sleep(float(seconds) * length)
            if is_bad(record.offset):
                raise ValueError(record.offset)
        except BaseException:
            log.of(Action.FAILED, record)
            raise
        log.of(Action.ENDED, record)

    consumer.run_sync(handle)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("aioparallel.engine.outcomes.failure_log").setLevel(logging.CRITICAL)
    main(*sys.argv[1:])
