"""A member of group "g" for these tests: a client, and a listener that writes down what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from aioparallel.group.client import Client, Generation
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient

__all__ = ["P0", "P1", "Listener", "client_of", "joined", "now", "read"]

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Listener:
    """Keeps what is held, and each call; :meth:`until` waits for the next ones."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()
        self.generation = Generation(-1, "")
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        self.on_assigned: Callable[[], None] = lambda: None
        self.on_revoked: Callable[[], Awaitable[None]] | None = None
        self._heard = asyncio.Event()

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        self.held |= set(partitions)
        self.generation = generation
        self._hear("assigned", partitions)
        self.on_assigned()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("revoked", partitions)
        if self.on_revoked is not None:
            await self.on_revoked()
        self.held -= set(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.held -= set(partitions)
        self._hear("lost", partitions)

    def fenced(self, error: InstanceFenced) -> None:
        self._hear("fenced", ())

    def _hear(self, kind: str, partitions: Collection[TopicPartition]) -> None:
        self.calls.append((kind, frozenset(partitions)))
        self._heard.set()

    def kinds(self) -> list[str]:
        """What was called, in order."""
        return [kind for kind, _ in self.calls]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until it is true, looking after each call; an hour of virtual time at most."""
        async with asyncio.timeout(3600):
            while not condition():
                self._heard.clear()
                await self._heard.wait()


async def read(client: Client, partition: TopicPartition, count: int) -> list[Record]:
    """So many records of one partition."""
    records: list[Record] = []
    async with asyncio.timeout(3600):
        while len(records) < count:
            for fetched in await client.fetch({partition: count - len(records)}):
                records += fetched.records
    return records


def client_of(broker: InMemoryBroker, *, cooperative: bool = False, instance: str | None = None) -> InMemoryClient:
    """A member of group "g": session 10 s, heartbeat 1 s, rebalance 20 s."""
    return InMemoryClient(
        broker,
        "g",
        cooperative=cooperative,
        session_timeout=10,
        heartbeat_interval=1,
        rebalance_timeout=20,
        group_instance_id=instance,
    )


async def joined(broker: InMemoryBroker, *, cooperative: bool = False) -> tuple[InMemoryClient, Listener]:
    """A client that has its first assignment."""
    client, listener = client_of(broker, cooperative=cooperative), Listener()
    await client.start(1)
    client.subscribe(["t"], listener)
    await listener.until(lambda: listener.calls)
    return client, listener


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()
