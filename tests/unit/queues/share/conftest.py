"""A share group in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel import Record
from aioparallel.queues.share import ShareConsumer
from aioparallel.testing.memory import InMemoryBroker, InMemoryProducer
from tests.support.share_group import FakeShareClient, ShareGroup
from tests.support.virtual_time import VirtualLoop

_LOOK = 0.02  # seconds in virtual time: a shorter one makes hours long


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """All of these tests run on the virtual loop."""
    return {"virtual": VirtualLoop}


@pytest.fixture
def group() -> ShareGroup:
    """With an empty partition of the topic "t"."""
    group = ShareGroup()
    group.produce([])
    return group


@pytest.fixture
def broker() -> InMemoryBroker:
    """For outputs and dead letters."""
    broker = InMemoryBroker()
    broker.create_topic("out", 1)
    broker.create_topic("dead", 1)
    return broker


def consumer_of(
    group: ShareGroup, broker: InMemoryBroker | None = None, *, client: FakeShareClient | None = None, **options: Any
) -> ShareConsumer[Any, Any]:
    """A member of the group."""
    producer = None if broker is None else InMemoryProducer(broker, delivery_timeout=1)
    return ShareConsumer(
        "t", group_id="g", client=client or FakeShareClient(group, delay=0.01), producer=producer, **options
    )


async def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until it is true, in virtual time. Raises AssertionError after so many seconds."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while not condition():
        assert loop.time() < ends, f"not within {seconds:g} s"
        await asyncio.sleep(_LOOK)


@asynccontextmanager
async def running(consumer: Any, handler: Any) -> AsyncIterator[Any]:
    """While the block runs; what ended it is raised."""
    async with consumer:
        task = asyncio.create_task(consumer.run(handler))
        try:
            await until(lambda: consumer.health().ready or task.done())
            yield consumer
        finally:
            consumer.stop()
            await task


class Handler:
    """Notes what it is given; ``does`` by record."""

    def __init__(self, does: Callable[[Record], Any] = lambda record: None) -> None:
        self.does = does
        self.seen: Counter[bytes | None] = Counter()
        self.counts: list[int] = []
        self.ended: Counter[bytes | None] = Counter()
        self.cancelled: Counter[bytes | None] = Counter()

    async def __call__(self, record: Record) -> Any:
        self.seen[record.value] += 1
        self.counts.append(record.delivery_count)
        result = self.does(record)
        if asyncio.iscoroutine(result):
            try:
                await result
            except asyncio.CancelledError:
                self.cancelled[record.value] += 1
                raise
            result = None
        self.ended[record.value] += 1
        return result
