"""A queue in memory: its topics, consumers and trackers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer

PARTITIONS = 2


@pytest.fixture
def broker() -> InMemoryBroker:
    """With the topics of the queue "q"."""
    broker = InMemoryBroker()
    broker.create_topic("q", PARTITIONS)
    broker.create_topic("q-markers", PARTITIONS)
    broker.create_topic("q__undelivered", 1)
    return broker


def client(broker: InMemoryBroker, group: str) -> InMemoryClient:
    """A member of a group, with quick heartbeats."""
    return InMemoryClient(broker, group, session_timeout=2, heartbeat_interval=0.02)


def consumer(broker: InMemoryBroker, **options: Any) -> KmqConsumer[Any, Any]:
    """Of the queue; it has no tracker of its own."""
    options = {"lease": 0.5, "commit_interval": 0.02, "drain_timeout": 1, **options}
    return KmqConsumer(
        "q", group_id="g", client=client(broker, "g"), producer=InMemoryProducer(broker, delivery_timeout=1), **options
    )


def tracker(broker: InMemoryBroker, **options: Any) -> RedeliveryTracker:
    """Of the queue."""
    return RedeliveryTracker(
        "q",
        group_id="trackers",
        client=client(broker, "trackers"),
        producer=InMemoryProducer(broker, delivery_timeout=1),
        **{"use_now_after": 0.1, **options},
    )


def produce(broker: InMemoryBroker, values: list[bytes], partition: int = 0) -> None:
    """Into the queue."""
    for value in values:
        broker.append("q", value, key=b"k", partition=partition, headers=(("kept", b"1"),))


Make = Callable[..., Any]
