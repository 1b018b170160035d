"""Works on a queue: each job is leased for three seconds, and is delivered again if it is not done by then.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic jobs:4 --topic jobs-markers:4 --topic jobs__undelivered
    python examples/kmq/work.py                 # until Ctrl-C
    python examples/kmq/order_jobs.py           # a hundred jobs: one hangs the first time, one always fails

The job that hangs does not hold up the others. When its lease is over it is delivered again, and another call of the
handler does it, here or in another process: ``work.py`` may run in several terminals. The job that always fails is
delivered four times in all and then dead-lettered: ``aioparallel dlq list jobs__undelivered`` shows it, and
``aioparallel kmq status jobs --group workers-redelivery`` the open jobs meanwhile.
"""

import asyncio
import os

from aioparallel import Record
from aioparallel.queues.kmq import KmqConsumer, redeliveries

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


async def work(record: Record) -> None:
    """The value of a record says what to do."""
    time = f"{redeliveries(record) + 1}. time"
    if record.value == b"hangs" and not redeliveries(record):
        print(f"{record.value!r} hangs, the {time}", flush=True)
        await asyncio.sleep(3600)
    await asyncio.sleep(0.05)
    if record.value == b"fails":
        print(f"{record.value!r} fails, the {time}", flush=True)
        raise ValueError("as always")
    print(f"{record.value!r} is done, the {time}", flush=True)


consumer = KmqConsumer("jobs", bootstrap_servers=SERVERS, group_id="workers", lease=3, drain_timeout=1)

if __name__ == "__main__":
    consumer.run_sync(work)  # until Ctrl-C or SIGTERM
