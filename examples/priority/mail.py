"""Sends mail by priority: a password reset does not wait for the newsletter that went on the topics before it.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic mail-0:4 --topic mail-1:4 --topic mail-2:4
                                                # prints an `export` line: copy it into the other terminals
    python examples/priority/mail.py            # until Ctrl-C: then it drains and commits
    python examples/priority/order_mail.py      # a newsletter, receipts, and then a few resets

Three priorities are three topics: ``mail-0`` (newsletters), ``mail-1`` (receipts) and ``mail-2`` (resets). While all of
them have something to do the resets get four places of seven, the receipts two and the newsletters one; what one does
not need the others have. Mail to one address goes out in order, within its priority.
"""

import asyncio
import os
import time

from aioparallel import Record
from aioparallel.queues.priority import PriorityConsumer, priority_of

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")
NAMES = ("newsletter", "receipt", "reset")


async def send_mail(record: Record) -> None:
    """Prints every reset, and of the others one of a hundred in each partition."""
    waited = time.time() - record.timestamp / 1000
    await asyncio.sleep(0.05)  # the mail server
    if record.offset % 100 == 0 or priority_of(record) == 2:
        print(f"{NAMES[priority_of(record)]:10} {record.value!r} waited {waited:5.2f} s", flush=True)


consumer = PriorityConsumer(
    "mail", priorities=3, bootstrap_servers=SERVERS, group_id="mailers", max_concurrency=20, max_poll_records=100
)

if __name__ == "__main__":
    consumer.run_sync(send_mail)  # until Ctrl-C or SIGTERM
