"""A member of a group as these tests drive it: the client, and a listener that writes down what it hears."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import cast

from aioparallel.clients import AiokafkaClient
from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.internals import Consumer, Coordinator, Fetcher
from aioparallel.group.client import Generation
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import Record, TopicPartition
from tests.support.waiting import until

__all__ = [
    "Member",
    "consumer_of",
    "coordinator_of",
    "coordinator_settings",
    "fetch_settings",
    "fetcher_of",
    "unique",
    "walk_of",
]


def unique(name: str) -> str:
    """A name that no other test uses."""
    return f"{name}-{uuid.uuid4()}"


def consumer_of(client: AiokafkaClient) -> Consumer:
    """The AIOKafkaConsumer inside."""
    running = client._running
    assert running is not None
    return running.consumer


def fetcher_of(client: AiokafkaClient) -> Fetcher:
    """aiokafka's fetcher."""
    return cast("Fetcher", consumer_of(client)._fetcher)


def walk_of(client: AiokafkaClient) -> FetchWalk:
    """What takes records out of it."""
    assert client._running is not None
    return client._running.walk


def coordinator_of(client: AiokafkaClient) -> Coordinator:
    """aiokafka's group coordinator."""
    return cast("Coordinator", consumer_of(client)._coordinator)


class Member:
    """Listens, and seeks each partition to its committed offset (or 0) on request."""

    def __init__(self, client: AiokafkaClient) -> None:
        self.client = client
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []
        self.held: frozenset[TopicPartition] = frozenset()
        self.generation = Generation(-1, "")
        self.busy = 0
        self.concurrent = False
        self.on_revoked: Callable[[frozenset[TopicPartition]], Awaitable[None]] | None = None
        self.fail_in: str | None = None

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        self._heard("assigned", partitions)
        self.held |= frozenset(partitions)
        self.generation = generation

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._heard("revoked", partitions)
        self.busy += 1
        try:
            if self.on_revoked is not None:
                await self.on_revoked(frozenset(partitions))
        finally:
            self.busy -= 1
            self.held -= frozenset(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._heard("lost", partitions)
        self.held -= frozenset(partitions)

    def fenced(self, error: InstanceFenced) -> None:
        self._heard("fenced", ())

    def count(self, event: str) -> int:
        """How often the listener heard it."""
        return sum(name == event for name, _ in self.events)

    async def join(self, *topics: str, timeout: float = 5.0) -> None:
        """Start, subscribe, and wait for the first assignment."""
        await self.client.start(timeout)
        self.client.subscribe(set(topics), self)
        await until(lambda: self.count("assigned"), what="the first assignment")

    def read_from(self, offset: int = 0) -> None:
        """Begin to fetch all that is held."""
        for partition in self.held:
            self.client.seek(partition, offset)

    async def read(self, count: int, quota: int = 1000, deadline: float = 120.0) -> dict[TopicPartition, list[Record]]:
        """Fetch until ``count`` records came; more than that fails."""
        records: dict[TopicPartition, list[Record]] = {partition: [] for partition in self.held}
        quotas: Mapping[TopicPartition, int] = dict.fromkeys(self.held, quota)
        async with asyncio.timeout(deadline):
            while sum(map(len, records.values())) < count:
                for fetched in await self.client.fetch(quotas):
                    records[fetched.partition].extend(fetched.records)
        assert sum(map(len, records.values())) == count
        return records

    def _heard(self, event: str, partitions: Collection[TopicPartition]) -> None:
        self.concurrent = self.concurrent or self.busy > 0
        self.events.append((event, frozenset(partitions)))
        if self.fail_in == event:
            raise ZeroDivisionError(event)


def fetch_settings(consumer: Consumer) -> dict[str, object]:
    """The options its fetcher is made with."""
    return {name: getattr(consumer, f"_{name}") for name in ("auto_offset_reset", "fetch_max_wait_ms")}


def coordinator_settings(consumer: Consumer) -> dict[str, object]:
    """The options its coordinator is made with."""
    names = ["enable_auto_commit", "group_id", "heartbeat_interval_ms", "max_poll_interval_ms"]
    names += ["partition_assignment_strategy", "rebalance_timeout_ms", "session_timeout_ms"]
    return {name: getattr(consumer, f"_{name}") for name in names}
