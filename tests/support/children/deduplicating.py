"""A consumer process that leaves out copies, and that a test kills: run as
``python -m tests.support.children.deduplicating``.

Writes a line for each record whose handler has ended, with one write(2) to a descriptor in append mode.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import Literal, cast

from aioparallel import Deduplicate, ParallelConsumer, Record


def main(servers: str, topic: str, seen: str, group: str, by: str, path: str) -> None:
    """Consume to the end offsets; 1 to 10 ms a record."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    rng = random.Random(os.getpid())

    async def handle(record: Record) -> None:
        os.write(log, b"S %s\n" % (record.value or b"-"))
        await asyncio.sleep(rng.uniform(0.001, 0.01))
        os.write(log, b"E %s\n" % (record.value or b"-"))

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        max_concurrency=50,
        commit_interval=0.2,
        session_timeout=3,
        heartbeat_interval=0.4,
        deduplicate=Deduplicate(seen, by=cast("Literal['record', 'key']", by)),
        until="end",
    )
    consumer.run_sync(handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
