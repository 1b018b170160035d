"""Topic raw: the flights of the year in the order of the file, keyed by tail number."""

from __future__ import annotations

import asyncio
from itertools import islice

from aiokafka import AIOKafkaProducer

from examples.flights.flights import read_flights
from examples.flights.progress import Show

__all__ = ["fill"]

_AT_ONCE = 10_000


async def fill(servers: str, topic: str, count: int, show: Show) -> None:
    """Produce the first ``count`` flights, some thousands at a time."""
    flights = read_flights(count)
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True, linger_ms=20, max_batch_size=256 * 1024
    )
    async with producer:
        done = 0
        while some := list(islice(flights, _AT_ONCE)):
            sent = [await producer.send(topic, value, key) for key, value in some]
            await asyncio.gather(*sent)
            done += len(some)
            show(done, "")
