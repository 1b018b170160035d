"""The Kafka side of the demo: a broker, a topic of its own, the flights in it, and the offsets at the end."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition as Partition

from aioparallel.cli.demo.events import Place
from aioparallel.cli.demo.flights import Flight
from aioparallel.cli.demo.settings import BrokerKind, Settings
from aioparallel.clients.aiokafka.admin import create_topic
from aioparallel.errors import AioparallelError, BrokerUnreachable
from aioparallel.testing.brokers.broker import Broker
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from aioparallel.testing.brokers.local import LocalKafka

__all__ = ["Cluster", "PartitionOffsets", "open_cluster"]

log = logging.getLogger(__name__)

# The embedded broker answers a fetch with one batch of each partition. Batches of aiokafka's default size, 16 KiB,
# hold 40 flights: fetching would set the pace. These hold about 600.
BATCH_SIZE = 256 * 1024  # bytes
LINGER = 500  # milliseconds; the flush at the end does not wait for it

DEADLINE = 60.0  # seconds for each conversation with the broker


SHORTEST_SESSION = 6.0  # seconds; brokers refuse less unless told otherwise
# Seconds. Ours would allow less, but 500 handlers on a busy machine can hold a heartbeat up for more than a second.
SHORTEST_OWN_SESSION = 3.0


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where a group stands in one partition; ``committed`` is None when it has committed nothing."""

    partition: int
    committed: int | None
    end: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """A broker that answers, and the demo's topic on it.

    ``shortest_session``, in seconds: what this broker allows. After a SIGKILL the next consumer waits until the dead
    one's session is over.
    """

    name: str
    bootstrap_servers: str
    topic: str
    partitions: int
    shortest_session: float

    async def produce(self, flights: Iterable[Flight]) -> dict[Place, bytes | None]:
        """Produce the flights, keyed by tail number; where each is, with its key.

        Raises AioparallelError when the broker has not kept them all, BrokerUnreachable when it does not answer.
        """
        async with conversation(self.bootstrap_servers):
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap_servers, linger_ms=LINGER, max_batch_size=BATCH_SIZE
            )
            async with producer:
                sent = [(key, await producer.send(self.topic, value, key)) for key, value in flights]
                await producer.flush()
                acknowledged = [(key, await delivery) for key, delivery in sent]
            keys = {Place(found.partition, found.offset): key for key, found in acknowledged}
            await self._check_kept(len(keys))
        return keys

    async def _check_kept(self, produced: int) -> None:
        """The embedded broker drops the oldest records of a partition above 5 MiB without a word."""
        async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap_servers) as consumer:
            first = await consumer.beginning_offsets(self._all())
        if dropped := sum(first.values()):
            raise AioparallelError(
                f"the broker has dropped {dropped} of {produced} records before anyone read them (the embedded "
                "one keeps 5 MiB a partition); ask for more --partitions, fewer --records, or --broker kafka"
            )

    async def offsets(self, group_id: str) -> list[PartitionOffsets]:
        """Committed and end offset of every partition, as the broker has them now. Raises BrokerUnreachable."""
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
        return [Partition(self.topic, partition) for partition in range(self.partitions)]


@asynccontextmanager
async def open_cluster(settings: Settings, report: Callable[[str], None]) -> AsyncIterator[Cluster]:
    """Start the broker asked for, or connect to a running one, with a new topic for this demo.

    Everything is gone again afterwards: a broker of ours ends, on any other the topic is deleted. ``report`` is told
    in sentences what takes long. Raises AioparallelError when there is no such broker.
    """
    topic = f"aioparallel-demo-{uuid.uuid4().hex[:8]}"
    partitions = settings.partitions
    if settings.bootstrap_servers is not None:
        servers = settings.bootstrap_servers
        async with topic_on(servers, topic, partitions):
            yield Cluster(f"broker at {servers}", servers, topic, partitions, SHORTEST_SESSION)
        return
    async with new_broker(settings.broker, report) as broker:
        await broker.create_topic(topic, partitions)
        name = "embedded broker" if settings.broker is BrokerKind.EMBEDDED else "local Apache Kafka"
        yield Cluster(name, broker.bootstrap_servers, topic, partitions, SHORTEST_OWN_SESSION)


def new_broker(kind: BrokerKind, report: Callable[[str], None]) -> Broker:
    """A broker of ours, not started yet."""
    if kind is BrokerKind.EMBEDDED:
        return EmbeddedBroker()
    report("Starting Apache Kafka; the first time its jars are fetched.")
    return LocalKafka(report=report)


@asynccontextmanager
async def topic_on(bootstrap_servers: str, topic: str, partitions: int) -> AsyncIterator[None]:
    """The demo's topic on somebody's broker; deleted afterwards."""
    async with conversation(bootstrap_servers):
        await create_topic(bootstrap_servers, topic, partitions, None, DEADLINE)
    try:
        yield
    finally:
        try:
            async with conversation(bootstrap_servers):
                await delete_topic(bootstrap_servers, topic)
        except BrokerUnreachable:
            log.warning("topic not deleted, delete it by hand", extra={"topic": topic}, exc_info=True)


@asynccontextmanager
async def conversation(bootstrap_servers: str) -> AsyncIterator[None]:
    """Talk to the broker within a minute, or raise BrokerUnreachable."""
    try:
        async with asyncio.timeout(DEADLINE):
            yield
    except (KafkaError, TimeoutError) as error:
        raise BrokerUnreachable(bootstrap_servers, DEADLINE, type(error).__name__) from error


async def delete_topic(bootstrap_servers: str, topic: str) -> None:
    """Delete the demo's topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        await admin.delete_topics([topic])
    finally:
        await admin.close()
