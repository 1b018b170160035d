"""``aioparallel bench`` on Apache Kafka: what it made is gone afterwards, and what is yours is not."""

from __future__ import annotations

import io

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from rich.console import Console

from aioparallel.cli.bench.command import BenchSettings
from aioparallel.cli.bench.measuring import measure
from aioparallel.testing import LocalKafka
from aioparallel.testing.filling import Message, fill
from aioparallel.testing.pytest_plugin import TopicMaker

pytestmark = pytest.mark.real


async def test_a_topic_of_yours_stays(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """It is read as far as asked, in order; afterwards it is there, and of the benchmark no topic or group is. Neither
    is after one that filled its own."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2)
    message = Message(key=b"key", value=b"value")
    fill(servers, topic, [(serial % 2, message) for serial in range(300)])
    shown = io.StringIO()
    console = Console(file=shown, width=160)
    assert await measure(BenchSettings(bootstrap_servers=servers, topic=topic, records=200, handler_ms=1.0), console), (
        shown.getvalue()
    )
    assert await measure(BenchSettings(bootstrap_servers=servers, records=500, keys=20, handler_ms=1.0), console), (
        shown.getvalue()
    )
    assert "passed: once, keys in order" in shown.getvalue()
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        topics = await admin.list_topics()
        groups = [found[0] for found in await admin.list_consumer_groups()]
    finally:
        await admin.close()
    assert topic in topics
    assert not [name for name in [*topics, *groups] if name.startswith("aioparallel-bench")]
