"""Works on a queue: each job is somebody's for three seconds, and is delivered again where it was not done by then.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic jobs:4 --topic jobs-markers:4 --topic jobs__undelivered
                                                # prints an `export` line: copy it into the other terminals
    python examples/kmq/work.py                 # until Ctrl-C
    python examples/kmq/order_jobs.py           # a hundred jobs: one hangs the first time, one always fails

The job that hangs holds up no other, and comes again when its lease is over: another call of the handler does it,
here or in another process. (Before you start ``work.py`` in several terminals, give the broker ``--kafka``, which
needs Java: in a group of the embedded one there is room for one.) The one that always fails is delivered four times in
all and then put into ``jobs__undelivered``: ``aioparallel dlq list jobs__undelivered`` shows it, ``aioparallel kmq
status jobs --group workers-redelivery`` what is open meanwhile.
"""

import asyncio
import os

from aioparallel import Record
from aioparallel.queues.kmq import KmqConsumer, redeliveries

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


async def work(record: Record) -> None:
    """What a job does stands in its value."""
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
