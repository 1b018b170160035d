"""A member of a group as the contract tests drive it: a client, and a listener that writes down what it hears."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Literal, NamedTuple

from aioparallel.group.client import Client, Generation
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import Record, TopicPartition
from tests.support.waiting import until

__all__ = ["Event", "Member", "values"]


Kind = Literal["assigned", "revoked", "lost", "fenced"]


class Event(NamedTuple):
    """One call of the listener."""

    kind: Kind
    partitions: frozenset[TopicPartition]


def values(records: Iterable[Record]) -> list[bytes | None]:
    """Their values."""
    return [record.value for record in records]


class Member:
    """Hears what the client says, and keeps what it fetched."""

    def __init__(self, client: Client, deadline: float) -> None:
        self.client = client
        self.deadline = deadline
        self.events: list[Event] = []
        self.held: set[TopicPartition] = set()
        self.generation = Generation(-1, "")
        self.on_revoked: Callable[[frozenset[TopicPartition]], Awaitable[None]] | None = None
        self.records: dict[TopicPartition, list[Record]] = {}
        self.next_offsets: dict[TopicPartition, int] = {}
        self._is_revoking = False

    # -- the listener

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        self._hear("assigned", partitions, may_revoke=not partitions)
        assert self.held.isdisjoint(partitions), "assigned what it holds already"
        self.held |= set(partitions)
        self.generation = generation

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("revoked", partitions)
        self._is_revoking = True
        try:
            if self.on_revoked is not None:
                await self.on_revoked(frozenset(partitions))
        finally:
            self._is_revoking = False
            self.held -= set(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._hear("lost", partitions, may_revoke=True)
        self.held -= set(partitions)

    def fenced(self, error: InstanceFenced) -> None:
        self.events.append(Event("fenced", frozenset()))

    def _hear(self, kind: Kind, partitions: Collection[TopicPartition], *, may_revoke: bool = False) -> None:
        assert may_revoke or not self._is_revoking, f"{kind} while revoked() still ran"
        if kind != "assigned":
            assert self.held >= set(partitions), f"{kind} what it does not hold"
        self.events.append(Event(kind, frozenset(partitions)))

    def heard(self, kind: Kind) -> list[frozenset[TopicPartition]]:
        """The partitions of each call of this kind."""
        return [event.partitions for event in self.events if event.kind == kind]

    # -- what tests do with it

    async def subscribe(self, topics: Collection[str] | re.Pattern[str]) -> None:
        """Start and subscribe."""
        await self.client.start(self.deadline)
        self.client.subscribe(topics, self)

    async def join(self, topics: Collection[str] | re.Pattern[str]) -> None:
        """Start, subscribe and wait for the first assignment."""
        await self.subscribe(topics)
        await until(lambda: self.heard("assigned"), self.deadline, "the first assignment")

    async def holds(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until it holds exactly these."""
        wanted = set(partitions)
        await until(lambda: self.held == wanted, self.deadline, f"holding {wanted}; held {self.held}")

    def seek_all(self, offset: int = 0) -> None:
        """Read everything that is held from this offset on."""
        for partition in self.held:
            self.client.seek(partition, offset)

    async def fetch(self, quotas: dict[TopicPartition, int] | None = None) -> int:
        """One fetch within the deadline, checked and kept; how many records it brought."""
        asked = dict.fromkeys(self.held, 100) if quotas is None else quotas
        async with asyncio.timeout(self.deadline):
            taken = await self.client.fetch(asked)
        for partition, records, next_offset, *_ in taken:
            assert len(records) <= asked[partition], "more than the quota"
            kept = self.records.setdefault(partition, [])
            kept.extend(records)
            offsets = [record.offset for record in kept]
            assert offsets == sorted(set(offsets)), "out of order, or twice"
            assert all((r.topic, r.partition) == partition for r in records)
            assert all(offset < next_offset for offset in offsets)
            assert next_offset >= self.next_offsets.get(partition, 0), "the position went back"
            self.next_offsets[partition] = next_offset
        return sum(len(records) for _, records, _, *_ in taken)

    async def read(self, count: int, quotas: dict[TopicPartition, int] | None = None) -> None:
        """Fetch until so many records were kept in all."""
        while sum(map(len, self.records.values())) < count:
            await self.fetch(quotas)

    async def reach(self, partition: TopicPartition, next_offset: int) -> None:
        """Fetch until the position is this one."""
        while self.next_offsets.get(partition) != next_offset:
            await self.fetch()
