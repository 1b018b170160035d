"""Partitions that are added while records flow, on Apache Kafka: their first records are written before any member
knows of them."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from aioparallel import Outgoing, ParallelConsumer, Record, Transactions
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consuming
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed
from tests.support.waiting import until

pytestmark = pytest.mark.real

EACH = 100


async def add_partitions(kafka: LocalKafka, topic: str, total: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_partitions({topic: NewPartitions(total)})
    finally:
        await admin.close()


def messages(text: bytes, partitions: range) -> list[Message]:
    return [Message(None, text, partition=number) for number in partitions for _ in range(EACH)]


@pytest.mark.parametrize(("members", "transactional"), [(1, False), (2, False), (2, True)])
async def test_all_records_of_added_partitions_are_handled(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, members: int, transactional: bool
) -> None:
    """With "latest", by one member and by two that start at the same time; of what was there before them, nothing."""
    topic, out, group = await kafka_topic(3), await kafka_topic(), uuid.uuid4().hex
    servers = local_kafka.bootstrap_servers
    fill(servers, topic, messages(b"old", range(3)))
    seen: Counter[tuple[bytes | None, int]] = Counter()

    async def handle(record: Record) -> Outgoing | None:
        seen[record.value, record.partition] += 1
        return Outgoing(out, record.value) if transactional else None

    def member() -> ParallelConsumer[Any, Any]:
        options: dict[str, Any] = {"commits": Transactions()} if transactional else {"commit_interval": 0.1}
        return ParallelConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="latest",
            heartbeat_interval=0.3,
            client_options={"metadata_max_age_ms": 3000},
            **options,
        )

    async def first_positions() -> bool:
        return len(await committed(servers, group)) == 3

    async with AsyncExitStack() as stack:
        await asyncio.gather(*[stack.enter_async_context(consuming(member(), handle)) for _ in range(members)])
        await until(first_positions)
        fill(servers, topic, messages(b"flow", range(3)))
        await add_partitions(local_kafka, topic, 6)
        fill(servers, topic, messages(b"new", range(3, 6)))
        fill(servers, topic, messages(b"flow", range(3)))
        expected = {(b"flow", number): 2 * EACH for number in range(3)} | {(b"new", n): EACH for n in range(3, 6)}
        await until(lambda: all(seen[one] >= count for one, count in expected.items()), what=lambda: str(seen))
    assert set(seen) == set(expected)
    positions = await committed(servers, group)
    assert [positions[number].offset for number in range(6)] == [3 * EACH] * 3 + [EACH] * 3
