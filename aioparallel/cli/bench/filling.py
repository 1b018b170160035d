"""Fills a topic with a case's records, so that the offsets are those of the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition as Partition
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Start

from aioparallel.cli.bench.workload import Workload
from aioparallel.errors import AioparallelError, BrokerUnreachable

__all__ = ["CHUNK", "DEADLINE", "Filler", "end_offsets", "fill", "read_back"]

CHUNK: Final = 20_000
"""Records handed over at once."""
QUEUE: Final = 10 * CHUNK
"""Records waiting in the producer, at most."""
QUEUE_BYTES: Final = 512 * 1024 * 1024
"""Bytes of them, about; the producer itself refuses records at twice that."""
READ_BACK: Final = 10_000
"""Records read at once, when they are compared with the plan."""
FLUSH_TIMEOUT: Final = 120.0
DEADLINE: Final = 30.0
"""Seconds for one conversation with the broker."""

SETTINGS: Final = {
    # Without it about one new topic in fifty got a partition whose records stood in another order, even with one
    # request in flight at a time. Why was not found; hence also read_back().
    "enable.idempotence": True,
    "linger.ms": 50,
    # The embedded broker answers a fetch with one batch of each partition; Apache Kafka does with any size.
    "batch.size": 256 * 1024,
    "queue.buffering.max.messages": QUEUE + CHUNK,
    "queue.buffering.max.kbytes": 2 * QUEUE_BYTES // 1024,
    "message.timeout.ms": int(FLUSH_TIMEOUT * 1000),
    "log_level": 3,  # errors: its warnings would go into the middle of the progress
}


async def fill(bootstrap_servers: str, topic: str, workload: Workload) -> None:
    """Produce all records to a topic that is empty.

    Raises AioparallelError when the broker does not have exactly these afterwards, BrokerUnreachable when it does not
    answer.
    """
    await asyncio.to_thread(produce, bootstrap_servers, topic, workload)
    count = len(workload.partitions)
    beginnings, ends = await end_offsets(bootstrap_servers, topic, count)
    for partition, planned in enumerate(workload.partitions):
        kept = beginnings[partition], ends[partition]
        if kept != (0, planned.keys.size):
            raise AioparallelError(
                f"partition {partition} of {topic} has offsets {kept[0]} to {kept[1]} instead of 0 to "
                f"{planned.keys.size} (the embedded broker keeps 5 MiB a partition)"
            )
    await asyncio.to_thread(read_back, bootstrap_servers, topic, workload)


def produce(bootstrap_servers: str, topic: str, workload: Workload) -> None:
    """The partitions in turn."""
    filler = Filler(bootstrap_servers, topic)
    sources = {partition: workload.messages(partition) for partition in range(len(workload.partitions))}
    while sources:
        for partition in list(sources):
            if chunk := [message._asdict() for message in islice(sources[partition], CHUNK)]:
                filler.add(partition, chunk)
            else:
                del sources[partition]
    filler.finish()


def read_back(bootstrap_servers: str, topic: str, workload: Workload) -> None:
    """Compare the key of each record with the plan; about a second for 500,000. Raises AioparallelError.

    An order that is not the plan's would be held against every contestant.
    """
    keys = [[message.key for message in workload.messages(one)] for one in range(len(workload.partitions))]
    seen, left = [0] * len(keys), sum(map(len, keys))
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": topic, "enable.auto.commit": False, "log_level": 3}
    )
    consumer.assign([Start(topic, partition, 0) for partition in range(len(keys))])
    try:
        while left:
            found = consumer.consume(min(READ_BACK, left), DEADLINE)
            if not found:
                raise AioparallelError(f"{left} records of {topic} could not be read within {DEADLINE:g} s")
            for message in found:
                if error := message.error():
                    raise AioparallelError(f"{topic} could not be read: {error}")
                partition = message.partition()
                at = seen[partition]
                if message.offset() != at or message.key() != keys[partition][at]:
                    raise AioparallelError(f"partition {partition}, offset {at} of {topic} is not the record planned")
                seen[partition] = at + 1
            left -= len(found)
    except KafkaException as error:
        raise AioparallelError(f"{topic} could not be read: {error}") from error
    finally:
        consumer.close()


class Filler:
    """Hands records to librdkafka, about 350,000 small ones a second, so that each partition has them in the order in
    which they are given."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **SETTINGS})

    def add(self, partition: int, chunk: Sequence[dict[str, Any]]) -> None:
        """At most CHUNK records with a value, as ``Producer.produce_batch`` takes them, and less than QUEUE_BYTES.

        Raises AioparallelError.
        """
        # Never into a full queue: it would refuse some in the middle, and their order would be lost. What cannot be
        # delivered is dropped from the queue after a while, so this ends.
        size = sum(len(message["value"] or b"") for message in chunk)
        most = min(QUEUE, QUEUE_BYTES * len(chunk) // (size + 1))
        while len(self._producer) > most:
            self._producer.poll(0.01)
        # The partition of a record itself is ignored (confluent-kafka 2.16).
        if self._producer.produce_batch(self._topic, chunk, partition) != len(chunk):
            refused = next(message["_error"] for message in chunk if "_error" in message)
            raise AioparallelError(f"records for partition {partition} of {self._topic} cannot be produced: {refused}")

    def finish(self) -> None:
        """Wait until the broker has acknowledged them all. Raises AioparallelError after two minutes."""
        if left := self._producer.flush(FLUSH_TIMEOUT):
            raise AioparallelError(f"{left} records for {self._topic} were not acknowledged within {FLUSH_TIMEOUT:g} s")


async def end_offsets(bootstrap_servers: str, topic: str, partitions: int) -> tuple[list[int], list[int]]:
    """The first offset of each partition, and the one behind the last. Raises BrokerUnreachable."""
    places = [Partition(topic, partition) for partition in range(partitions)]
    try:
        async with asyncio.timeout(DEADLINE), AIOKafkaConsumer(bootstrap_servers=bootstrap_servers) as consumer:
            consumer.assign(places)
            first, end = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    except (KafkaError, TimeoutError) as error:
        raise BrokerUnreachable(bootstrap_servers, DEADLINE, type(error).__name__) from error
    return [first[place] for place in places], [end[place] for place in places]
