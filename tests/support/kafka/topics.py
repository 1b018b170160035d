"""Topics for the failure and produce tests: numbered values, so that whoever reads them sees order and completeness."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from aioparallel import Record
from aioparallel.event_loop import loop_factory, quick_collections
from tests.support.kafka.filling import Message, fill

__all__ = ["fill_numbered", "number_of", "on_uvloop", "read_all"]

T = TypeVar("T")


def on_uvloop(work: Coroutine[Any, Any, T]) -> T:
    """Run as ``run_sync`` would."""
    quick_collections()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


def fill_numbered(servers: str, topic: str, records: int, keys: int, partitions: int, size: int = 100) -> None:
    """Record ``n`` has key ``k<n % keys>`` and a value that begins with ``n``; a key's partition is always the same."""

    def messages() -> Iterator[tuple[int, Message]]:
        for n in range(records):
            key = b"k%d" % (n % keys)
            yield zlib.crc32(key) % partitions, Message(key=key, value=(b"%d " % n).ljust(size, b"x"))

    fill(servers, topic, messages())


def number_of(record: Record) -> int:
    """The ``n`` of :func:`fill_numbered`."""
    assert record.value is not None
    return int(record.value.partition(b" ")[0])


async def read_all(servers: str, topic: str) -> list[Record]:
    """Every record of the topic, each partition in its order."""
    found: list[Record] = []
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        await consumer._client._wait_on_metadata(topic)
        parts = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        async with asyncio.timeout(60):
            while any([await consumer.position(part) < ends[part] for part in parts]):
                for tp, batch in (await consumer.getmany(timeout_ms=200)).items():
                    found += [
                        Record(topic, tp.partition, one.offset, one.key, one.value, tuple(one.headers), one.timestamp)
                        for one in batch
                    ]
    finally:
        await consumer.stop()
    return found
