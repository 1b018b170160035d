"""The README's first program: many records at once, each key in order.

In a clone of the repository, in three terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic flights:8
    python examples/first.py                    # until Ctrl-C: then it drains and commits
    python examples/orders.py 100 flights       # something to print
"""

import os

from aioparallel import Ordering, ParallelConsumer, Record

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


async def handle(record: Record) -> None:
    print(record.topic, record.partition, record.offset, record.key, record.value)
    ...  # await whatever takes long: an HTTP call, a database


consumer = ParallelConsumer(
    "flights", bootstrap_servers=SERVERS, group_id="enrich", ordering=Ordering.KEY, max_concurrency=500
)
consumer.run_sync(handle)  # until Ctrl-C or SIGTERM, then drains and commits
