"""Filling topics in the tests of Spark, with a client that is not Spark's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaProducer

__all__ = ["Message", "NewTopic", "fill", "numbered"]

NewTopic = Callable[..., str]
"""``new_topic(partitions)``: its name."""


class Message(NamedTuple):
    """A record to be written; its key decides the partition, as Kafka's own producers do it (murmur2)."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int | None = None


def numbered(count: int, keys: int = 20) -> list[Message]:
    """Values ``{"n": 0}`` and up; every second one has a header."""
    headers = [[("trace", b"t%d" % n)] if n % 2 else [] for n in range(count)]
    return [Message(b"key-%d" % (n % keys), b'{"n": %d}' % n, headers[n]) for n in range(count)]


def fill(servers: str, topic: str, messages: Sequence[Message], *, aborted: bool = False) -> None:
    """Write them in their order; ``aborted``: in a transaction that is aborted."""
    asyncio.run(_fill(servers, topic, messages, aborted))


async def _fill(servers: str, topic: str, messages: Sequence[Message], aborted: bool) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"aborted-{topic}" if aborted else None)
    await producer.start()
    try:
        if aborted:
            await producer.begin_transaction()
        sent = [
            await producer.send(topic, one.value, key=one.key, headers=list(one.headers), timestamp_ms=one.timestamp)
            for one in messages
        ]
        await asyncio.gather(*sent)
        if aborted:
            await producer.abort_transaction()
    finally:
        await producer.stop()
