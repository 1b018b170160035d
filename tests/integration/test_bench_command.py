"""``aioparallel bench`` on Apache Kafka: what it made is gone afterwards, and what is yours is not."""

from __future__ import annotations

import io

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from rich.console import Console

from aioparallel.cli.bench.command import BenchSettings
from aioparallel.cli.bench.measuring import measure
from aioparallel.clients.aiokafka.share_admin import ShareAdmin
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


@pytest.mark.slow
async def test_a_share_group_is_measured(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Its own topic and one of yours, each record once; afterwards no group is left, and none of its configs."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2)
    fill(servers, topic, [(serial % 2, Message(key=b"key", value=b"value")) for serial in range(300)])
    shown = io.StringIO()
    console = Console(file=shown, width=160)
    for more in ({"records": 500, "keys": 20}, {"records": 200, "topic": topic}):
        settings = BenchSettings(bootstrap_servers=servers, handler_ms=1.0, share=True, **more)
        assert await measure(settings, console), shown.getvalue()
    assert "ShareConsumer" in shown.getvalue()
    assert "ParallelConsumer" not in shown.getvalue()
    assert "passed: each record once, all acknowledged" in shown.getvalue()
    async with ShareAdmin(servers) as admin:
        assert not [name for name in await admin.share_groups() if name.startswith("aioparallel-bench")]
