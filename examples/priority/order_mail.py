"""Orders mail of three priorities, the least urgent first, for ``mail.py``.

    python examples/priority/order_mail.py

The broker is that in the variable AIOPARALLEL_BOOTSTRAP_SERVERS, else localhost:9092.
"""

import asyncio
import os

from aioparallel.queues.priority import PriorityProducer

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


async def main() -> None:
    """2,000 newsletters at once, 200 receipts, and a reset every tenth of a second."""
    async with PriorityProducer(priorities=3, bootstrap_servers=SERVERS) as producer:
        for priority, count in ((0, 2_000), (1, 200)):
            await asyncio.gather(
                *[
                    producer.send("mail", b"%d" % number, priority=priority, key=b"reader-%d" % (number % 500))
                    for number in range(count)
                ]
            )
        for number in range(10):
            await producer.send("mail", b"%d" % number, priority=2, key=b"reader-%d" % number)
            await asyncio.sleep(0.1)
    print("2,210 mails are ordered")


if __name__ == "__main__":
    asyncio.run(main())
