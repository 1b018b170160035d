"""Writes orders of thirty customers to a topic, for the other examples.

    python examples/orders.py 1000              # on topic orders
    python examples/orders.py 50 refunds        # on another one

The broker is that in the variable AIOPARALLEL_BOOTSTRAP_SERVERS, else localhost:9092.
"""

import asyncio
import json
import os
import sys

from aiokafka import AIOKafkaProducer

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


async def produce(count: int, topic: str) -> None:
    """Orders with numbers 0, 1, 2, ... of the customers in turn; the key is the customer."""
    async with AIOKafkaProducer(bootstrap_servers=SERVERS) as producer:
        for number in range(count):
            customer = f"customer-{number % 30}"
            order = {"number": number, "customer": customer, "amount": 10 + number % 90}
            await producer.send(topic, json.dumps(order).encode(), key=customer.encode())
    print(f"{count} orders are on topic {topic}")  # leaving the block has waited for the acknowledgements


if __name__ == "__main__":
    asyncio.run(
        produce(int(sys.argv[1] if sys.argv[1:] else sys.exit(__doc__)), sys.argv[2] if len(sys.argv) > 2 else "orders")
    )
