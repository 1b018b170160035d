"""A consumer process that a test kills: run as ``python -m tests.support.children.killed``.

Writes one line per handler event to a file, each with one write(2) to a descriptor in append mode: what was
written stays written when the process is killed. S: started, E: ended, C: cancelled; L: partitions were lost, or given
away without a commit, which a busy machine does to a session of 1.5 s, and what was not committed runs again here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys

from aioparallel import Ordering, ParallelConsumer, Record


class Losses(logging.Handler):
    """Writes a line for each message that says so."""

    def __init__(self, log: int) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", None) in {"partitions_lost", "settle_uncommitted"}:
            os.write(self._log, b"L 0 0 -\n")


def main(servers: str, topic: str, group: str, log_path: str, concurrency: str) -> None:
    """Consume to the end offsets; 20 to 60 ms a record."""
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    rng = random.Random(os.getpid())
    logging.getLogger("aioparallel").addHandler(Losses(log))

    async def handle(record: Record) -> None:
        place = b"%d %d %s\n" % (record.partition, record.offset, record.key or b"-")
        os.write(log, b"S " + place)
        try:
            await asyncio.sleep(rng.uniform(0.02, 0.06))
        except asyncio.CancelledError:
            os.write(log, b"C " + place)
            raise
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
