"""The compacted topic of the deduplication memories.

Partition *n* holds the memory of partition *n* of each input topic. A key names group, topic, partition and chunk. Each
write is a whole chunk, so the newest record of a key is the complete chunk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing

from aioparallel.delivery.producer import Producer, sent
from aioparallel.group.client import Client, Span
from aioparallel.group.unreadable import read_past
from aioparallel.persistence.compacted_topic import CompactedTopic
from aioparallel.persistence.dedup.chunks import ChunkKey, decode_chunk, decode_key, encode_chunk, encode_key
from aioparallel.persistence.dedup.remembered import Changes, Memory
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, Record, TopicPartition

__all__ = ["Restore", "SeenTopic", "Written"]

logger = logging.getLogger(__name__)

Written = asyncio.Future[Sequence[Produced] | ProduceFailed]


class Restore:
    """What was read of one partition's memory so far. A read that timed out is continued."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.bytes = 0
        self.chunks: dict[ChunkKey, bytes] = {}


class SeenTopic(CompactedTopic):
    """Reads and writes memories for one group. ``skip``: unreadable batches that are skipped."""

    def __init__(
        self,
        topic: str,
        group_id: str,
        client: Client,
        producer: Producer,
        skip: Collection[tuple[str, int, int]] = (),
    ) -> None:
        super().__init__(topic, "Deduplicate topic", "memory", client)
        self._skip = skip
        self.group_id = group_id
        self._producer = producer

    # -- reading ----------------------------------------------------------------------------------------

    async def read(self, restores: Mapping[TopicPartition, Restore], timeout: float) -> None:
        """Read the memories of these partitions, up to the current end of the topic.

        Raises TimeoutError after ``timeout`` seconds, ClientError, and ConfigurationError if the topic has too few
        partitions.
        """
        numbers = {partition.partition for partition in restores}
        async with asyncio.timeout(timeout):
            await self.check_partitions(restores, timeout)
            places = [TopicPartition(self.name, number) for number in sorted(numbers)]
            begins = await self._client.beginning_offsets(places, timeout)
            ends = await self._client.end_offsets(places, timeout)
            spans = {}
            for place in places:
                first = begins.get(place, 0)
                # Partitions of the same number are read together, from the first unread offset of any of them. Reading
                # a record twice changes nothing.
                starts = [one.position for p, one in restores.items() if p.partition == place.partition]
                start = max(first, min((first if at is None else at) for at in starts))
                if start < (end := ends.get(place, first)):
                    spans[place] = Span(start, end)
            async with aclosing(read_past(self._client, spans, self._skip)) as reads:
                async for fetched in reads:
                    self._take(fetched.records, fetched.partition.partition, fetched.next_offset, restores)

    def _take(
        self,
        records: Iterable[Record],
        number: int,
        next_offset: int,
        restores: Mapping[TopicPartition, Restore],
    ) -> None:
        for record in records:
            key = decode_key(record.key)
            restore = None if key is None or key.group_id != self.group_id else restores.get(key.partition)
            if key is None or restore is None:
                continue
            restore.bytes += len(record.value or b"")
            if record.value is None:
                restore.chunks.pop(key, None)
            else:
                restore.chunks[key] = record.value
        for partition, restore in restores.items():
            if partition.partition == number:
                restore.position = next_offset

    async def remembered(self, restore: Restore, most: int) -> Memory:
        """Returns the memory that these chunks hold."""
        memory = Memory(most)
        for key in sorted(restore.chunks, key=lambda key: key.number):
            try:
                entries = decode_chunk(restore.chunks[key])
            except ValueError as error:
                logger.warning(
                    "%s: a part of the memory of %s cannot be read (%s): copies of its records are handled again",
                    self.name,
                    key.partition,
                    error,
                    extra={"action": "seen_unreadable"},
                )
                continue
            memory.restore(key.name, key.number, entries)
            await asyncio.sleep(0)  # decoding a chunk takes a millisecond
        return memory

    # -- writing ----------------------------------------------------------------------------------------

    async def outputs(self, partition: TopicPartition, changes: Changes) -> list[Outgoing]:
        """Returns the records of these changes."""
        made = []
        for name, number, entries in changes.changes:
            key = encode_key(ChunkKey(self.group_id, partition, name, number))
            value = None if entries is None else encode_chunk(entries)
            made.append(Outgoing(self.name, value, key, partition=partition.partition))
            if entries:
                await asyncio.sleep(0)
        return made

    def write(self, outputs: Sequence[Outgoing]) -> Written:
        """Write records in order."""
        return sent(self._producer, outputs)
