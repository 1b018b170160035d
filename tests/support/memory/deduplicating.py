"""A topic with copies, the compacted topic beside it, and consumers that deduplicate, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Unpack

from aioparallel.config.options import OptionFields
from aioparallel.config.policies import Deduplicate
from aioparallel.consumer import ParallelConsumer
from aioparallel.persistence.dedup.chunks import ChunkKey, decode_chunk, decode_key
from aioparallel.persistence.dedup.identities import Mark, Position, RecordIdentity, joined
from aioparallel.records.record import Headers, Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import T0, consumer_of

SEEN = "seen"


def broker_of(partitions: int = 1) -> InMemoryBroker:
    """With topic "t", and the compacted one."""
    broker = InMemoryBroker()
    broker.create_topic("t", partitions)
    broker.create_topic(SEEN, partitions)
    broker.make_compacted(SEEN)
    return broker


def deduplicating(
    broker: InMemoryBroker, *, cooperative: bool = False, **options: Unpack[OptionFields]
) -> ParallelConsumer[Any, Any]:
    """A consumer of "t"; by record by default."""
    options.setdefault("deduplicate", Deduplicate(SEEN))
    return consumer_of(broker, cooperative=cooperative, **options)


def place(source: int, partition: int = 0) -> Headers:
    """Headers of a record made of the one at this offset."""
    return (
        ("src-topic", b"raw"),
        ("src-partition", b"%d" % partition),
        ("src-offset", b"%d" % source),
    )


def write(
    broker: InMemoryBroker, *sources: int, key: bytes | None = None, partition: int = 0, topic: str = "t"
) -> None:
    """A record for each of these sources, the value says which; of ten keys, unless one is given."""
    for source in sources:
        broker.append(
            topic,
            b"%d" % source,
            key=b"k%d" % (source % 10) if key is None else key,
            partition=partition,
            headers=place(source),
        )


def remembered(broker: InMemoryBroker, partition: TopicPartition = T0) -> set[int]:
    """Whose records the compacted topic says were seen; of parts of one, which the digest says."""
    chunks: dict[ChunkKey, bytes | None] = {}
    for record in broker.records(SEEN):
        key = decode_key(record.key)
        if key is not None and key.partition == partition:
            chunks[key] = record.value
    entries = [decode_chunk(value) for value in chunks.values() if value is not None]
    identities = [one for chunk in entries for one in chunk if isinstance(one, RecordIdentity)]
    return {int(one.digest) if one.digest else one.offset for one in identities}


def marks(broker: InMemoryBroker, partition: TopicPartition = T0) -> dict[bytes, Position]:
    """How far each key was seen, as the compacted topic says."""
    found: dict[bytes, Position] = {}
    for record in broker.records(SEEN):
        key = decode_key(record.key)
        if key is not None and key.partition == partition and record.value is not None:
            for one, position in decode_chunk(record.value).items():
                if isinstance(one, Mark):
                    found[one.key] = joined(found.get(one.key), position)
    return found


@asynccontextmanager
async def consuming(
    consumer: ParallelConsumer[Any, Any], handler: Callable[[Record], Awaitable[object]]
) -> AsyncIterator[ParallelConsumer[Any, Any]]:
    """The consumer while it runs; it is stopped at the end, which is waited for."""
    async with asyncio.timeout(600), consumer:
        running = asyncio.create_task(consumer.run(handler))  # type: ignore[arg-type]
        yield consumer
        consumer.stop()
        await running


class Handled:
    """A handler that notes whose records it was given."""

    def __init__(self, delay: float = 0.0) -> None:
        self.sources: list[int] = []
        self._delay = delay

    async def __call__(self, record: Record) -> None:
        await asyncio.sleep(self._delay)
        self.sources.append(int(record.value or b"-1"))
