"""Sends mail by priority: a password reset does not wait for the newsletter that was ordered before it.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic mail-0:4 --topic mail-1:4 --topic mail-2:4
    python examples/priority/mail.py            # until Ctrl-C: then it drains and commits
    python examples/priority/order_mail.py      # a newsletter, receipts, and then a few resets

Three priorities are three topics: ``mail-0`` (newsletters), ``mail-1`` (receipts) and ``mail-2`` (resets). While all of
them have records, resets get four of seven places, receipts two and newsletters one; places that one does not need go
to the others. Mail to one address is sent in order within its priority.
"""

import asyncio
import os
import time

from aioparallel import Record
from aioparallel.queues.priority import PriorityConsumer, priority_of

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")
NAMES = ("newsletter", "receipt", "reset")


async def send_mail(record: Record) -> None:
    """Prints each reset, and one of a hundred others in each partition."""
    waited = time.time() - record.timestamp / 1000
    await asyncio.sleep(0.05)  # instead of a mail server
    if record.offset % 100 == 0 or priority_of(record) == 2:
        print(f"{NAMES[priority_of(record)]:10} {record.value!r} waited {waited:5.2f} s", flush=True)


consumer = PriorityConsumer(
    "mail", priorities=3, bootstrap_servers=SERVERS, group_id="mailers", max_concurrency=20, max_poll_records=100
)

if __name__ == "__main__":
    consumer.run_sync(send_mail)  # until Ctrl-C or SIGTERM
