"""Writes a hundred jobs to the topic, for ``work.py``.

    python examples/share/order_jobs.py

The broker is that in the variable AIOPARALLEL_BOOTSTRAP_SERVERS, else localhost:9092.
"""

import asyncio
import os

from aiokafka import AIOKafkaProducer

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


async def main() -> None:
    """The topic is an ordinary one, so any producer can write to it."""
    async with AIOKafkaProducer(bootstrap_servers=SERVERS) as producer:
        for value in (b"slow", b"fails", *(b"job %d" % number for number in range(98))):
            await producer.send("jobs", value)
    print("100 jobs are in the topic")


if __name__ == "__main__":
    asyncio.run(main())
