"""A topic and a consumer group of a test: what is in the one, and what the other has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from aioparallel.group.client import Committed
from aioparallel.offsets import OffsetMap, decode_offset_map
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed
from tests.support.waiting import DEADLINE, until

__all__ = ["Group", "Place", "said_by"]


class Place(NamedTuple):
    """A record's place in the topic."""

    partition: int
    offset: int


_NOTHING = Committed(0, "")


class Group:
    """One topic, ``counts`` records in each of its partitions, and one group that reads it.

    The record at offset i of a partition has the key ``key(i)``.
    """

    def __init__(self, bootstrap_servers: str, topic: str, name: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.name = name
        self.counts: list[int] = []

    async def fill(self, counts: list[int], key: Callable[[int], int] = lambda offset: offset) -> None:
        """Produce ``counts[p]`` records to partition p, which must be empty."""
        messages = [
            Message(b"%d" % key(offset), b"%d" % offset, partition=partition)
            for partition, count in enumerate(counts)
            for offset in range(count)
        ]
        await asyncio.to_thread(fill, self.bootstrap_servers, self.topic, messages)
        self.counts = counts

    def places(self) -> list[Place]:
        """Every record of the topic."""
        return [Place(partition, offset) for partition, count in enumerate(self.counts) for offset in range(count)]

    async def commit(self, partition: int, offset: int, metadata: str) -> None:
        """Commit by hand; the group must have no member."""
        # Not librdkafka, which does not send every character of a Dense map. Without auto commit: at its end that would
        # commit the position, which it looks up in the background.
        place = TopicPartition(self.topic, partition)
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers, group_id=self.name, enable_auto_commit=False
        ) as consumer:
            consumer.assign([place])
            await consumer.commit({place: (offset, metadata)})

    async def committed(self) -> dict[int, Committed]:
        """By partition, for those that have a commit."""
        return await committed(self.bootstrap_servers, self.name)

    async def maps(self) -> dict[int, OffsetMap]:
        """What the commits say, by partition; for one without a commit, nothing from offset 0 on."""
        found = {**dict.fromkeys(range(len(self.counts)), _NOTHING), **await self.committed()}
        return {p: decode_offset_map(entry.offset, entry.metadata) for p, entry in found.items()}

    async def until(self, true: Callable[[], bool], what: str, alive: Callable[[], None]) -> None:
        """Wait until it is true; ``alive`` is asked meanwhile and may raise."""

        def looked() -> bool:
            alive()
            return true()

        await until(looked, DEADLINE, f"group {self.name}: {what}")

    async def committed_all_but(self, stuck: Collection[Place], alive: Callable[[], None] = lambda: None) -> None:
        """Wait until what is committed says exactly this; ``alive`` is asked meanwhile and may raise."""
        wanted = {p: map_of(count, offsets_in(stuck, p)) for p, count in enumerate(self.counts)}
        maps: dict[int, OffsetMap] = {}

        async def said() -> bool:
            nonlocal maps
            alive()
            maps = await self.maps()
            return maps == wanted

        def shown() -> str:
            aim, found = ({p: _brief(one) for p, one in some.items()} for some in (wanted, maps))
            return f"group {self.name} says {found} and not {aim}"

        await until(said, DEADLINE, shown)


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


def _brief(said: OffsetMap) -> str:
    return f"base {said.base_offset}, highest {said.highest_succeeded}, {len(said.incompletes)} incomplete"
