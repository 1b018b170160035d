"""FastStream as a contestant: a subscriber with as many workers as records may run at once.

More than one record at once on a partition is only to be had with ``AckPolicy.ACK_FIRST``: offsets are committed as
records are read, whatever becomes of their handlers, and no order of any kind is kept. What a handler without arguments
to be filled in does not need is switched off, as FastStream's documentation offers it: the log of every record, and
the injection of dependencies. The handler gets the record as it came; no attempt is made to decode its value. Without
injection and decoding it is about three times as fast as with them.
"""

from __future__ import annotations

from typing import Any

from aiokafka import ConsumerRecord
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage

from benchmarks.contestant import Job, serve


async def as_it_came(message: KafkaMessage) -> ConsumerRecord[Any, Any]:
    """The decoder: what a handler gets."""
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
