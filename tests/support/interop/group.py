"""A topic and a consumer group of a test: what is in the one, and what the other has committed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import NamedTuple, Protocol, cast

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.group.client import Committed
from aioparallel.offsets import OffsetMap, decode_offset_map
from aioparallel.records import TopicPartition

__all__ = ["Committed", "Group", "Place", "open_group", "said_by"]

_POLL_INTERVAL = 0.05
_DEADLINE = 120.0
"""A fresh broker makes its offsets topic when the first group asks."""


class Place(NamedTuple):
    """A record's place in the topic."""

    partition: int
    offset: int


_NOTHING = Committed(0, "")


class _Acknowledged(Protocol):
    offset: int


class _Producer(Protocol):
    """The part of aiokafka's producer used here; aiokafka has no type information."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def send(self, topic: str, value: bytes, key: bytes, partition: int) -> asyncio.Future[_Acknowledged]: ...


class _Committer(Protocol):
    """The part of aiokafka's consumer used here."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def assign(self, partitions: list[TopicPartition]) -> None: ...
    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None: ...


class Group:
    """One topic, ``counts`` records in each of its partitions, and one group that reads it.

    The record at offset i of a partition has the key ``key(i)``.
    """

    def __init__(self, bootstrap_servers: str, topic: str, name: str, admin: Admin) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.name = name
        self.counts: list[int] = []
        self._admin = admin

    async def fill(self, counts: list[int], key: Callable[[int], int] = lambda offset: offset) -> None:
        """Produce ``counts[p]`` records to partition p, which must be empty."""
        producer = cast("_Producer", AIOKafkaProducer(bootstrap_servers=self.bootstrap_servers, linger_ms=5))
        await producer.start()
        try:
            for partition, count in enumerate(counts):
                sent = [
                    await producer.send(self.topic, b"%d" % offset, b"%d" % key(offset), partition)
                    for offset in range(count)
                ]
                acknowledged = await asyncio.gather(*sent)
                assert [one.offset for one in acknowledged] == list(range(count)), f"partition {partition}: not empty?"
        finally:
            await producer.stop()
        self.counts = counts

    def places(self) -> list[Place]:
        """Every record of the topic."""
        return [Place(partition, offset) for partition, count in enumerate(self.counts) for offset in range(count)]

    async def commit(self, partition: int, offset: int, metadata: str) -> None:
        """Commit by hand; the group must have no member."""
        # Without auto commit: at its end that would commit the position, which it looks up in the background.
        consumer = cast(
            "_Committer",
            AIOKafkaConsumer(bootstrap_servers=self.bootstrap_servers, group_id=self.name, enable_auto_commit=False),
        )
        await consumer.start()
        try:
            place = cast("TopicPartition", aiokafka.TopicPartition(self.topic, partition))  # it takes no other tuple
            consumer.assign([place])
            await consumer.commit({place: (offset, metadata)})
        finally:
            await consumer.stop()

    async def committed(self) -> dict[int, Committed]:
        """By partition, for those that have a commit."""
        found = await self._admin.committed(self.name)
        return {place.partition: entry for place, entry in found.items() if place.topic == self.topic}

    async def maps(self) -> dict[int, OffsetMap]:
        """What the commits say, by partition; for one without a commit, nothing from offset 0 on."""
        committed = {**dict.fromkeys(range(len(self.counts)), _NOTHING), **await self.committed()}
        return {p: decode_offset_map(entry.offset, entry.metadata) for p, entry in committed.items()}

    async def until(self, true: Callable[[], bool], what: str, alive: Callable[[], None]) -> None:
        """Wait until it is true; ``alive`` is asked meanwhile and may raise."""
        try:
            async with asyncio.timeout(_DEADLINE):
                while not true():
                    alive()
                    await asyncio.sleep(_POLL_INTERVAL)
        except TimeoutError:
            raise AssertionError(f"group {self.name}: not within {_DEADLINE:g} s: {what}") from None

    async def committed_all_but(self, stuck: Collection[Place], alive: Callable[[], None] = lambda: None) -> None:
        """Wait until what is committed says exactly this; ``alive`` is asked meanwhile and may raise."""
        wanted = {p: map_of(count, offsets_in(stuck, p)) for p, count in enumerate(self.counts)}
        maps: dict[int, OffsetMap] = {}
        try:
            async with asyncio.timeout(_DEADLINE):
                while (maps := await self.maps()) != wanted:
                    alive()
                    await asyncio.sleep(_POLL_INTERVAL)
        except TimeoutError:
            shown = {p: _brief(one) for p, one in maps.items()}
            aim = {p: _brief(one) for p, one in wanted.items()}
            raise AssertionError(f"after {_DEADLINE:g} s group {self.name} says {shown} and not {aim}") from None


def map_of(count: int, stuck: Collection[int]) -> OffsetMap:
    """What is to be committed when of ``count`` offsets all but those stuck are complete."""
    base = min(stuck, default=count)
    highest = max(set(range(base, count)) - set(stuck), default=base - 1)
    return OffsetMap(base, highest, tuple(sorted(offset for offset in stuck if offset < highest)))


def offsets_in(places: Collection[Place], partition: int) -> set[int]:
    """The offsets of the places in this partition."""
    return {place.offset for place in places if place.partition == partition}


def said_by(maps: Mapping[int, OffsetMap], counts: list[int]) -> set[Place]:
    """The records that these commits leave to be run: the incompletes, and everything above the maps."""
    left = set()
    for partition, count in enumerate(counts):
        said = maps[partition]
        left |= {Place(partition, offset) for offset in (*said.incompletes, *range(said.highest_succeeded + 1, count))}
    return left


@contextlib.asynccontextmanager
async def open_group(bootstrap_servers: str, topic: str, name: str) -> AsyncIterator[Group]:
    """A group for one test."""
    async with Admin(bootstrap_servers) as admin:
        yield Group(bootstrap_servers, topic, name, admin)


def _brief(said: OffsetMap) -> str:
    return f"base {said.base_offset}, highest {said.highest_succeeded}, {len(said.incompletes)} incomplete"
