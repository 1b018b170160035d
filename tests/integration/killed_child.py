"""A consumer process that a test kills: run as ``python -m tests.integration.killed_child``.

Writes one line per handler event to a file, each with one write(2) to a descriptor in append mode: what was
written stays written when the process is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from aioparallel import Ordering, ParallelConsumer, Record


def main(servers: str, topic: str, group: str, log_path: str, concurrency: str) -> None:
    """Consume to the end offsets; 20 to 60 ms a record."""
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    rng = random.Random(os.getpid())

    async def handle(record: Record) -> None:
        place = b"%d %d %s\n" % (record.partition, record.offset, record.key or b"-")
        os.write(log, b"S " + place)
        await asyncio.sleep(rng.uniform(0.02, 0.06))
        os.write(log, b"E " + place)

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        ordering=Ordering.KEY,
        max_concurrency=int(concurrency),
        session_timeout=1.5,
        heartbeat_interval=0.4,
        until="end",
    )
    consumer.run_sync(handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
