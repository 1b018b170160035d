"""Sends outputs through the in-memory producer, and reads the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced
from aioparallel.testing.memory import InMemoryBroker, InMemoryProducer
from tests.support.memory.consuming import produce

__all__ = ["Result", "broker_with", "numbered", "send", "three_nodes", "values"]

Result = Sequence[Produced] | ProduceFailed


def broker_with(keys: Iterable[bytes | None]) -> InMemoryBroker:
    """Topic "t" with a record of each key, and topic "out" of two partitions."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    broker.create_topic("out", 2)
    produce(broker, keys)
    return broker


def three_nodes() -> InMemoryBroker:
    """Topic "t" has a partition on each of three nodes: partition 0 on node 1 and so on."""
    broker = InMemoryBroker(nodes=3)
    broker.create_topic("t", 3)
    return broker


def send(producer: InMemoryProducer, *outputs: Outgoing) -> asyncio.Future[Result]:
    """Send them together; the future has what the callback was given."""
    ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    producer.send(outputs, ended.set_result)
    return ended


def numbered(first: int, count: int) -> list[Outgoing]:
    """So many outputs to partition 0."""
    return [Outgoing("t", b"%03d" % number, partition=0) for number in range(first, first + count)]


def values(broker: InMemoryBroker, topic: str = "t") -> list[bytes | None]:
    """Of all records of the topic."""
    return [record.value for record in broker.records(topic)]
