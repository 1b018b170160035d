"""Filling and reading topics in the tests of Spark, with a client that is not Spark's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

READ_TIMEOUT = 60.0


class Raw(NamedTuple):
    """A record as it stands in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


async def fill(
    servers: str,
    topic: str,
    records: Sequence[tuple[bytes | None, bytes, Sequence[tuple[str, bytes]]]],
    transaction: str | None = None,
) -> None:
    """Write records: key, value, headers; keys decide the partition. With the name of a transaction they are aborted."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=transaction)
    await producer.start()
    try:
        if transaction:
            await producer.begin_transaction()
        sent = [
            await producer.send(topic, value, key=key, headers=list(headers)) for key, value, headers in records
        ]
        await producer.flush()
        await asyncio.gather(*sent)
        if transaction:
            await producer.abort_transaction()
    finally:
        await producer.stop()


async def read_all(servers: str, topic: str) -> list[Raw]:
    """Everything that is in a topic now, by partition and offset."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        if not partitions:
            await consumer._client.force_metadata_update()
            partitions = [
                TopicPartition(topic, number) for number in sorted(await _partitions(consumer, topic))
            ]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        read: list[Raw] = []
        async with asyncio.timeout(READ_TIMEOUT):
            for partition in partitions:
                while await consumer.position(partition) < ends[partition]:
                    for record in (await consumer.getmany(partition, timeout_ms=200))[partition]:
                        read.append(Raw(record.partition, record.offset, record.key, record.value, record.headers))
        return sorted(read)
    finally:
        await consumer.stop()


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    cluster = await consumer._client.fetch_all_metadata()
    return cluster.partitions_for_topic(topic) or set()
