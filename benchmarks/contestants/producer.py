"""A plain producer: as many records of the same size as the others produce, as fast as ``AIOKafkaProducer`` accepts
them, waiting for acknowledgements at the end. It reads nothing, so only its output is checked."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer

from benchmarks.contestant import Job, serve
from benchmarks.contestants.reading import read_all, until_over


async def consume(job: Job) -> None:
    """One round. The records are those of the topic, read before the clock starts."""
    work, output = job.work, job.output
    assert output is not None  # the work has an output topic
    records = await read_all(job)

    async def produce(producer: AIOKafkaProducer) -> None:
        job.begin()
        await asyncio.gather(*[await producer.send(output, record.value, record.key) for record in records])
        job.finish(len(records))

    async with AIOKafkaProducer(
        bootstrap_servers=work.bootstrap_servers, acks="all", enable_idempotence=True
    ) as producer:
        await until_over(job, produce(producer))


if __name__ == "__main__":
    serve(consume)
