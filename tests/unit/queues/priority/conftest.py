"""Topics of three priorities in memory, and who reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel.queues.priority import PriorityConsumer, priority_group
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import until

PRIORITIES = 3


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """All of them run on the virtual loop."""
    return {"virtual": VirtualLoop}


@pytest.fixture
def broker() -> InMemoryBroker:
    """With the topics of "jobs", two partitions each, and one for dead letters."""
    broker = InMemoryBroker()
    for priority in range(PRIORITIES):
        broker.create_topic(f"jobs-{priority}", 2)
    broker.create_topic("dead", 1)
    return broker


def clients(broker: InMemoryBroker, group_id: str = "g", **options: Any) -> list[InMemoryClient]:
    """A member of each group, with quick heartbeats."""
    options = {"session_timeout": 2, "heartbeat_interval": 0.02, **options}
    return [InMemoryClient(broker, priority_group(group_id, one), **options) for one in range(PRIORITIES)]


def consumer(broker: InMemoryBroker, topics: Any = "jobs", **options: Any) -> PriorityConsumer[Any, Any]:
    """Of all priorities."""
    options = {"commit_interval": 0.02, "drain_timeout": 1, **options}
    return PriorityConsumer(
        topics,
        priorities=PRIORITIES,
        group_id="g",
        clients=options.pop("clients", None) or clients(broker),
        producer=InMemoryProducer(broker, delivery_timeout=1),
        **options,
    )


def produce(broker: InMemoryBroker, priority: int, count: int, *, partition: int = 0, topic: str = "jobs") -> None:
    """So many records of this priority, each with a key of its own."""
    for number in range(count):
        broker.append(f"{topic}-{priority}", b"%d" % number, key=b"%d" % number, partition=partition)


@asynccontextmanager
async def running(one: Any, *handler: Any) -> AsyncIterator[Any]:
    """While the block runs; what ended it is raised."""
    async with one:
        task = asyncio.create_task(one.run(*handler))
        try:
            await until(lambda: one.health().ready or task.done())
            yield one
        finally:
            one.stop()
            await task
