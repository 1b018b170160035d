"""A bare producer: as many records of the same size as the others produce, as fast as ``AIOKafkaProducer`` takes them,
with acknowledgements waited for at the end. It reads nothing, so only its output is checked."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.contestant import Job, serve
from benchmarks.contestants.reading import until_over


async def consume(job: Job) -> None:
    """One round. The records are those of the topic, read before the clock starts."""
    work, output = job.work, job.output
    assert output is not None  # the work is to produce
    messages: list[tuple[bytes | None, bytes | None]] = []
    async with AIOKafkaConsumer(
        work.topic, bootstrap_servers=work.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        while len(messages) < work.records:
            for found in (await consumer.getmany(timeout_ms=1_000)).values():
                messages += ((record.key, record.value) for record in found)

    async def produce(producer: AIOKafkaProducer) -> None:
        job.begin()
        await asyncio.gather(*[await producer.send(output, value, key) for key, value in messages])
        job.finish(len(messages))

    async with AIOKafkaProducer(
        bootstrap_servers=work.bootstrap_servers, acks="all", enable_idempotence=True
    ) as producer:
        await until_over(job, produce(producer))


if __name__ == "__main__":
    serve(consume)
