"""Members of share groups on Apache Kafka, through the package's client."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aioparallel.clients.aiokafka.share_client import AiokafkaShareClient
from aioparallel.group.share_client import Acknowledged, AcknowledgeType, Acquired
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing import LocalKafka
from tests.support.kafka.asking import asking
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import DEADLINE

__all__ = ["Delivery", "ShareMember", "member_of", "new_group", "produce", "share_member"]


@dataclass(frozen=True)
class Delivery:
    """A record that a member has acquired."""

    record: Record
    count: int
    locked_until: float

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.record.topic, self.record.partition)

    @property
    def offset(self) -> int:
        return self.record.offset


@dataclass
class ShareMember:
    """A client, and what it has got."""

    client: AiokafkaShareClient
    assignments: list[set[TopicPartition]] = field(default_factory=list)

    @property
    def assigned(self) -> set[TopicPartition]:
        return self.assignments[-1] if self.assignments else set()

    async def take(self, count: int, most: int | None = None, deadline: float = DEADLINE) -> list[Delivery]:
        """Fetch until this many records have come, ``most`` at a time."""
        found: list[Delivery] = []
        async with asyncio.timeout(deadline):
            while len(found) < count:
                found += deliveries(await self.client.fetch(most or count - len(found)))
        return found

    def acknowledge(self, delivery: Delivery, kind: AcknowledgeType) -> asyncio.Future[tuple[Acknowledged, float]]:
        """What has become of it, and when its lock ends."""
        ended: asyncio.Future[tuple[Acknowledged, float]] = asyncio.get_running_loop().create_future()

        def report(result: Acknowledged, until: float) -> None:
            assert not ended.done(), "answered twice"
            ended.set_result((result, until))

        self.client.acknowledge(delivery.partition, delivery.offset, kind, report)
        return ended

    async def end(self, some: Sequence[Delivery], kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> list[Acknowledged]:
        """Acknowledge them all, and wait for the results."""
        async with asyncio.timeout(DEADLINE):
            return [result for result, _ in await asyncio.gather(*[self.acknowledge(one, kind) for one in some])]


def deliveries(acquired: Sequence[Acquired]) -> list[Delivery]:
    return [
        Delivery(record, count, one.locked_until)
        for one in acquired
        for record, count in zip(one.records, one.delivery_counts, strict=True)
    ]


def new_group() -> str:
    return f"share-{uuid.uuid4().hex[:12]}"


async def configured(servers: str, group: str, configs: Mapping[str, str]) -> str:
    """The group reads from the beginning, with these settings."""
    async with asking(servers) as asked:
        await asked.configure(group, {"share.auto.offset.reset": "earliest"} | dict(configs))
    return group


@asynccontextmanager
async def share_member(
    servers: str, group: str, *topics: str, stop: float = 5.0, **options: Any
) -> AsyncIterator[ShareMember]:
    """A member that has joined."""
    client = AiokafkaShareClient(servers, group, **options)
    await client.start(30)
    try:
        member = ShareMember(client)
        client.subscribe(topics, lambda partitions: member.assignments.append(set(partitions)))
        yield member
    finally:
        await client.stop(stop)


@asynccontextmanager
async def member_of(
    kafka: LocalKafka, topic: str, configs: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[ShareMember]:
    """The only member of a new group, which reads the topic from its beginning."""
    group = await configured(kafka.bootstrap_servers, new_group(), configs or {})
    async with share_member(kafka.bootstrap_servers, group, topic, **options) as member:
        yield member


async def produce(kafka: LocalKafka, topic: str, count: int, partition: int = 0, first: int = 0) -> None:
    """Records with the values ``v0``, ``v1``, ..."""
    messages = [Message(b"k", b"v%d" % number, partition=partition) for number in range(first, first + count)]
    await asyncio.to_thread(fill, kafka.bootstrap_servers, topic, messages)
