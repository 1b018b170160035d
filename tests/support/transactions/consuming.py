"""Consumers that commit in transactions, on the broker in memory."""

from __future__ import annotations

from typing import Any

from aioparallel import Outgoing, ParallelConsumer, Record, Transactions
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryTransactionalProducer

__all__ = ["broker_of", "consumer_of", "copy"]


def broker_of(partitions: int = 1, *, outs: int = 1) -> InMemoryBroker:
    """With topics "in", "out" and "dead", and "tight", which takes nothing without a key."""
    broker = InMemoryBroker()
    for topic, count in (("in", partitions), ("out", outs), ("dead", 1), ("tight", 1)):
        broker.create_topic(topic, count)
    broker.make_compacted("tight")
    return broker


def consumer_of(
    broker: InMemoryBroker, *, client: InMemoryClient | None = None, **options: Any
) -> ParallelConsumer[Any, Any]:
    """Of topic "in", in group "g"."""
    given = {"producer": InMemoryTransactionalProducer(broker, "g"), "commits": Transactions(), **options}
    client = client or InMemoryClient(broker, "g", isolation_level="read_committed")
    return ParallelConsumer("in", group_id="g", client=client, **given)


async def copy(record: Record) -> Outgoing:
    """To topic "out"."""
    return Outgoing("out", record.value, record.key)
