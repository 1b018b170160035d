"""Pauses of topics, partitions and keys, and another number of handlers, on Apache Kafka."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import Any

import pytest

from aioparallel import ParallelConsumer, Record, TopicPartition
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consume, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = pytest.mark.real

EACH = 600


async def test_what_is_paused_waits_and_all_else_goes_on(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Two topics, one member that gets a partition of another one: a topic, a partition and a key are paused, resumed,
    and all records are handled once; a key that is still paused at the end runs in the next process only."""
    servers, group = local_kafka.bootstrap_servers, uuid.uuid4().hex
    broken, fine = await kafka_topic(2), await kafka_topic(2)
    runs: Counter[tuple[str, int, bytes]] = Counter()

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.001)
        assert record.key is not None
        runs[record.topic, record.partition, record.key] += 1

    def member(**options: Any) -> ParallelConsumer[Any, Any]:
        topics = [broken, fine]
        return ParallelConsumer(
            topics, bootstrap_servers=servers, group_id=group, commit_interval=0.1, max_buffered=500, **options
        )

    def of(topic: str, partition: int | None = None, key: bytes | None = None) -> int:
        return sum(
            count
            for (name, number, its_key), count in runs.items()
            if name == topic and partition in (None, number) and key in (None, its_key)
        )

    messages = [Message(b"%d" % (number % 3), b"", partition=number % 2) for number in range(2 * EACH)]
    one = member(max_concurrency=4)
    one.pause(broken)
    one.pause_keys(fine, b"0")
    async with consuming(one, handle):
        fill(servers, broken, messages)
        fill(servers, fine, messages)
        await until(lambda: of(fine) == 2 * EACH * 2 // 3, what=lambda: str(one.stats()))
        assert not of(broken)
        assert not of(fine, key=b"0")
        assert one.health().ready
        async with consuming(member(), handle):  # paused nowhere: it runs what its partitions have left
            await until(lambda: len(one.stats().partitions) == 2)
        await until(lambda: len(one.stats().partitions) == 4)
        one.max_concurrency = 50
        one.pause(TopicPartition(broken, 1))
        one.resume(broken)
        await until(lambda: of(broken, 0) == EACH, what=lambda: str(one.stats()))
        one.resume(TopicPartition(broken, 1))
        await until(lambda: of(broken, 1) == EACH)
        await until(lambda: one.stats().lag == EACH * 2 // 3 - of(fine, key=b"0"), what=lambda: str(one.stats()))
    left = EACH * 2 // 3 - of(fine, key=b"0")
    rest = member(until="end")
    stats = await consume(rest, handle)
    assert stats.admitted == left
    assert (of(broken), of(fine)) == (2 * EACH, 2 * EACH)
    async with Admin(servers) as admin:
        assert [one.offset for one in (await admin.committed(group)).values()] == [EACH] * 4
