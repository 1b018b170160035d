"""A member of a share group: each job is locked for it, and acknowledged by itself.

In a clone of the repository, in three terminals (Apache Kafka needs Java)::

    pip install --editable '.[examples]'
    aioparallel broker --kafka --topic jobs:1 --topic jobs.dlq
    aioparallel share configure workers share.auto.offset.reset=earliest
    python examples/share/work.py               # until Ctrl-C; in as many terminals as you like
    python examples/share/order_jobs.py         # a hundred jobs: one takes long, one always fails

All members have the same partition. Each takes up to ``max_concurrency`` jobs at once, so it is low here: with the
default of 100 the first member would take all. The job that takes long delays no other. The one that fails is delivered
to any member, three times in all, and then dead-lettered: ``aioparallel dlq list jobs.dlq`` shows it. ``aioparallel
share describe workers`` shows the members and what is left. If a member is killed, others get its jobs.
"""

import asyncio
import os

from aioparallel import Record
from aioparallel.queues.share import ShareConsumer

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


async def work(record: Record) -> None:
    """The value of a record says what to do."""
    if record.value == b"slow":
        await asyncio.sleep(3)
    await asyncio.sleep(0.05)
    if record.value == b"fails":
        print(f"{record.value!r} fails, delivery {record.delivery_count}", flush=True)
        raise ValueError("as always")
    print(f"{record.value!r} is done, delivery {record.delivery_count}", flush=True)


consumer = ShareConsumer(
    "jobs",
    bootstrap_servers=SERVERS,
    group_id="workers",
    dead_letter="jobs.dlq",
    max_deliveries=3,
    max_concurrency=4,  # jobs that this process runs at once
    handler_timeout=60,
)

if __name__ == "__main__":
    consumer.run_sync(work)  # until Ctrl-C or SIGTERM
