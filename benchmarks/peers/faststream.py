"""FastStream as a contestant: a subscriber with as many workers as records may run at once.

Several concurrent records of a partition need ``AckPolicy.ACK_FIRST``: offsets are committed as records are read,
whatever becomes of their handlers, and no order is kept. The log of each record and dependency injection are switched
off, as FastStream's documentation describes for handlers that do not need them. The handler gets the raw record without
decoding. Without injection and decoding it is about three times as fast.
"""

from __future__ import annotations

from typing import Any

from aiokafka import ConsumerRecord
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage

from benchmarks.contestant import Job, serve


async def as_it_came(message: KafkaMessage) -> ConsumerRecord[Any, Any]:
    """The decoder: handlers get the raw record."""
    return message.raw_message


async def consume(job: Job) -> None:
    """One round."""
    work = job.work
    if work.ordering == "partition":
        raise ValueError("FastStream's workers keep no order of partitions; it takes no part in this case")
    broker = KafkaBroker(work.bootstrap_servers, logger=None, apply_types=False)
    subscriber = broker.subscriber(
        work.topic,
        group_id=job.group,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.ACK_FIRST,
        max_workers=work.concurrency,
        decoder=as_it_came,
    )

    @subscriber
    async def handler(record: ConsumerRecord[Any, Any]) -> None:
        await job.handle(record)

    async with broker:
        await broker.start()
        await job.wait()


if __name__ == "__main__":
    serve(consume)
