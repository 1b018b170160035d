"""One member of a share group: ``python -m tests.support.children.sharing SERVERS TOPIC GROUP SECONDS``.

Its output has a line for each handler that begins (``began OFFSET DELIVERY``), for each that has ended (``ended
OFFSET``), and for each record that was acknowledged too late (``late OFFSET``). SIGTERM ends it well."""

from __future__ import annotations

import asyncio
import logging
import sys

from aioparallel import Record
from aioparallel.queues.share import ShareConsumer


def member(servers: str, topic: str, group: str, seconds: str) -> None:
    """Handles ten records at once."""
    consumer = ShareConsumer[bytes, bytes](
        topic,
        bootstrap_servers=servers,
        group_id=group,
        max_concurrency=10,
        on_late=lambda record: print("late", record.offset, flush=True),
    )

    async def handle(record: Record[bytes | None, bytes]) -> None:
        print("began", record.offset, record.delivery_count, flush=True)
        await asyncio.sleep(float(seconds))
        print("ended", record.offset, flush=True)

    consumer.run_sync(handle)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    member(*sys.argv[1:])
