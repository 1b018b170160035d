"""The Kafka side of the demo: a broker, a new topic with the flights, and the offsets at the end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition as Partition

from aioparallel import AioparallelError, BrokerUnreachable
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.testing import EmbeddedBroker, LocalKafka
from examples.flights.flights import Flight

__all__ = ["Keys", "PartitionOffsets", "Place", "Topic", "open_topic"]

# The embedded broker answers a fetch with one batch of each partition. aiokafka's default of 16 KiB holds 40 flights,
# so that fetching would limit the rate. These hold about 600.
BATCH_SIZE = 256 * 1024  # bytes
LINGER = 500  # milliseconds; the flush at the end does not wait for it
DEADLINE = 60.0  # seconds for each connection to the broker


class Place(NamedTuple):
    """A record's place in the demo's topic."""

    partition: int
    offset: int


Keys = dict[Place, bytes | None]
"""Keys of the produced records by their places."""


class PartitionOffsets(NamedTuple):
    """A group's offset in one partition; ``committed`` is None if there is none."""

    partition: int
    committed: int | None
    end: int


@dataclass(frozen=True, slots=True)
class Topic:
    """The demo's topic."""

    broker: str
    bootstrap_servers: str
    name: str
    partitions: int

    async def produce(self, flights: Iterable[Flight]) -> Keys:
        """Produce the flights, keyed by tail number.

        Raises AioparallelError if the broker has not kept them all, BrokerUnreachable if it does not answer.
        """
        async with conversation(self.bootstrap_servers):
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap_servers, linger_ms=LINGER, max_batch_size=BATCH_SIZE
            )
            async with producer:
                sent = [(key, await producer.send(self.name, value, key)) for key, value in flights]
                await producer.flush()
                acknowledged = [(key, await delivery) for key, delivery in sent]
            async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap_servers) as consumer:
                dropped = sum((await consumer.beginning_offsets(self._all())).values())
        if dropped:
            raise AioparallelError(
                f"the broker has dropped {dropped} of {len(sent)} records before anyone read them (the embedded one "
                "keeps 5 MiB a partition); ask for more --partitions, fewer --records, or --broker kafka"
            )
        return {Place(found.partition, found.offset): key for key, found in acknowledged}

    async def offsets(self, group_id: str) -> list[PartitionOffsets]:
        """Committed and end offsets of all partitions. Raises BrokerUnreachable."""
        async with (
            conversation(self.bootstrap_servers),
            AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap_servers, group_id=group_id, enable_auto_commit=False
            ) as consumer,
        ):
            consumer.assign(self._all())
            ends = await consumer.end_offsets(self._all())
            return [PartitionOffsets(at.partition, await consumer.committed(at), ends[at]) for at in self._all()]

    def _all(self) -> list[Partition]:
        return [Partition(self.name, partition) for partition in range(self.partitions)]


@asynccontextmanager
async def open_topic(
    broker: str, bootstrap_servers: str | None, partitions: int, report: Callable[[str], None]
) -> AsyncIterator[Topic]:
    """A new topic on the given broker, or on one that is started: ``broker`` is ``"embedded"`` or ``"kafka"``.

    Everything is deleted afterwards. ``report`` is called before slow steps. Raises AioparallelError if there is no
    such broker.
    """
    topic = f"aioparallel-demo-{uuid.uuid4().hex[:8]}"
    if bootstrap_servers is not None:
        async with Admin(bootstrap_servers) as admin:
            await admin.create_topic(topic, partitions)
            try:
                yield Topic(f"broker at {bootstrap_servers}", bootstrap_servers, topic, partitions)
            finally:
                await admin.delete_topics(topic)
        return
    if broker == "kafka":
        report("Starting Apache Kafka; the first time its jars are downloaded.")
    async with LocalKafka(report=report) if broker == "kafka" else EmbeddedBroker() as own:
        await own.create_topic(topic, partitions)
        name = "local Apache Kafka" if broker == "kafka" else "embedded broker"
        yield Topic(name, own.bootstrap_servers, topic, partitions)


@asynccontextmanager
async def conversation(bootstrap_servers: str) -> AsyncIterator[None]:
    """Fail with BrokerUnreachable after a minute."""
    try:
        async with asyncio.timeout(DEADLINE):
            yield
    except (KafkaError, TimeoutError) as error:
        raise BrokerUnreachable(bootstrap_servers, DEADLINE, type(error).__name__) from error
