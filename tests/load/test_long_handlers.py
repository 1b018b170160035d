"""A handler that takes much longer than the session: the group notices nothing. Three minutes:
``make load-long-handler``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter

import pytest

from aioparallel import Record
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("seconds", "session"), [(12.0, 6.0), pytest.param(180.0, 10.0, marks=pytest.mark.slow)], ids=["short", "long"]
)
async def test_a_long_handler_causes_no_rebalance(
    local_kafka: LocalKafka,
    kafka_topic: TopicMaker,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    session: float,
) -> None:
    """While one handler runs for that long, other records go on; partitions are assigned once and never lost, each
    record is handled once, and the long one's offset is committed at the end."""
    caplog.set_level(logging.DEBUG, logger="aioparallel.clients.aiokafka")
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2)
    runs: Counter[bytes] = Counter()
    ended: set[bytes] = set()

    async def handle(record: Record) -> None:
        assert record.value is not None
        runs[record.value] += 1
        if record.value == b"long":
            await asyncio.sleep(seconds)
        ended.add(record.value)

    written = [b"long"]
    fill(servers, topic, [Message(b"k", b"long", partition=0)])
    consumer = consumer_of(servers, topic, session_timeout=session, heartbeat_interval=session / 4)
    began = time.monotonic()
    async with consuming(consumer, handle):
        await until(lambda: runs[b"long"])
        while time.monotonic() - began < seconds:
            batch = [b"%d" % (len(written) + number) for number in range(20)]
            await asyncio.to_thread(fill, servers, topic, [Message(one, one, partition=len(one) % 2) for one in batch])
            written += batch
            await until(lambda batch=batch: ended.issuperset(batch))  # type: ignore[misc]
            await asyncio.sleep(0.2)
        with contextlib.suppress(AssertionError):
            await until(lambda: b"long" in ended, deadline=seconds)
        epochs = {one.partition: one.epoch for one in consumer.stats().partitions}
        failed = consumer.stats().failed_commits
    actions = Counter(str(getattr(record, "action", "")) for record in caplog.records)
    print(f"{len(written):,} records, {seconds:g} s in one handler, session {session:g} s: {dict(actions)}, {epochs}")
    assert set(runs.values()) == {1}
    assert set(runs) == set(written)
    assert ended == set(written)
    assert epochs == {0: 1, 1: 1}
    assert failed == 0
    assert actions["assigned"] == 1
    assert not actions.keys() & {"lost", "partitions_lost", "settle_uncommitted"}
