"""The compacted topic of the deduplication memories.

Partition *n* holds the memory of partition *n* of each input topic. A key names group, topic, partition and chunk. Each
write is a whole chunk, so the newest record of a key is the complete chunk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing

from aioparallel.delivery.producer import Producer
from aioparallel.group.client import Client, Span
from aioparallel.group.unreadable import read_past
from aioparallel.persistence.dedup.chunks import ChunkKey, decode_chunk, decode_key, encode_chunk, encode_key
from aioparallel.persistence.dedup.remembered import Changes, Memory
from aioparallel.records.errors import ConfigurationError, ProduceFailed
from aioparallel.records.record import Outgoing, Produced, Record, TopicPartition

__all__ = ["Restore", "SeenTopic"]

logger = logging.getLogger(__name__)


class Restore:
    """What was read of one partition's memory so far. A read that timed out is continued."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.bytes = 0
        self.chunks: dict[ChunkKey, bytes] = {}


class SeenTopic:
    """Reads and writes memories for one group. ``skip``: unreadable batches that are skipped."""

    def __init__(
        self,
        topic: str,
        group_id: str,
        client: Client,
        producer: Producer,
        skip: Collection[tuple[str, int, int]] = (),
    ) -> None:
        self.topic = topic
        self._skip = skip
        self._partitions = 0
        self.group_id = group_id
        self._client = client
        self._producer = producer

    async def check(self, read: Collection[TopicPartition], timeout: float) -> None:
        """Check that the topic can hold the memories of these partitions. Call :meth:`count` first.

        Raises ConfigurationError.
        """
        policy = await self._client.cleanup_policy(self.topic, timeout)
        if policy is not None and policy != "compact":
            raise ConfigurationError(
                "Deduplicate topic",
                self.topic,
                f"must be compacted, and its cleanup.policy is {policy}: it would grow with every commit, or lose the "
                "memory. kafka-configs.sh --alter --entity-type topics --entity-name "
                f"{self.topic} --add-config cleanup.policy=compact --bootstrap-server ...",
            )
        self._check_numbers(partition.partition for partition in read)

    async def count(self, timeout: float) -> int:
        """Look up and return how many partitions the topic has."""
        self._partitions = len(await self._client.partitions([self.topic], timeout))
        return self._partitions

    def _check_numbers(self, numbers: Iterable[int]) -> None:
        largest = max(numbers, default=-1)
        if largest >= self._partitions:
            raise ConfigurationError(
                "Deduplicate topic",
                self.topic,
                f"has {self._partitions} partitions, and an input topic has {largest + 1}: the memory of a partition "
                "is stored in the partition of its number. Add partitions: kafka-topics.sh --alter --topic "
                f"{self.topic} --partitions {largest + 1} --bootstrap-server ...",
            )

    # -- reading ----------------------------------------------------------------------------------------

    async def read(self, restores: Mapping[TopicPartition, Restore], timeout: float) -> None:
        """Read the memories of these partitions, up to the current end of the topic.

        Raises TimeoutError after ``timeout`` seconds, ClientError, and ConfigurationError if the topic has too few
        partitions.
        """
        numbers = {partition.partition for partition in restores}
        async with asyncio.timeout(timeout):
            if max(numbers) >= self._partitions:
                await self.count(timeout)  # the topics may have new partitions
                self._check_numbers(numbers)
            places = [TopicPartition(self.topic, number) for number in sorted(numbers)]
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
                    self.topic,
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
            made.append(Outgoing(self.topic, value, key, partition=partition.partition))
            if entries:
                await asyncio.sleep(0)
        return made

    def write(self, outputs: Sequence[Outgoing]) -> asyncio.Future[ProduceFailed | None]:
        """Write records in order. The future has the first failure, or None when all are acknowledged."""
        written: asyncio.Future[ProduceFailed | None] = asyncio.get_running_loop().create_future()

        def delivered(result: Sequence[Produced] | ProduceFailed) -> None:
            if not written.done():
                written.set_result(result if isinstance(result, ProduceFailed) else None)

        self._producer.send(outputs, delivered)
        return written
