"""Options of a member of a share group, checked before anything connects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from aioparallel.clients.aiokafka.share_client import AiokafkaShareClient
from aioparallel.clients.aiokafka.share_settings import ShareSettings
from aioparallel.group.share_client import Acknowledged, AcknowledgeType, ShareClient
from aioparallel.observe.stats import Contact
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.records.record import TopicPartition


def settings(options: Mapping[str, object], max_wait: float = 0.5, servers: str = "localhost:9092") -> ShareSettings:
    return ShareSettings(servers, "group", client_options=options, max_wait=max_wait)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"isolation_level": "read_committed"}, "share.isolation.level"),
        ({"auto_offset_reset": "latest"}, "share.auto.offset.reset"),
        ({"group_instance_id": "one"}, "no static members"),
        ({"group_id": "group"}, "use group_id of the consumer"),
        ({"max_partition_fetch_bytes": 1}, "aiokafka has no such option"),
        ({"fetch_max_bytes": 0}, "bytes"),
        ({"client_rack": 3}, "a text"),
        ({"security_protocol": "TLS"}, "SASL_SSL"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        settings(options)


@pytest.mark.parametrize("seconds", [0, -1, 31])
def test_waits_that_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="max_wait"):
        settings({}, seconds)


def test_options_that_are_taken() -> None:
    found = settings({"client_rack": "a", "fetch_max_bytes": 1_000, "retry_backoff_ms": 50, "client_id": "me"}, 0.1)
    assert (found.max_wait, found.max_bytes, found.rack, found.retry_backoff) == (0.1, 1_000, "a", 0.05)
    assert settings({}).max_bytes == 4 * 1024 * 1024
    with pytest.raises(ConfigurationError, match="bootstrap_servers"):
        settings({}, servers="http://localhost")


async def test_a_client_that_does_not_run() -> None:
    """It can be stopped, and answers all that does not need a cluster."""
    client: ShareClient = AiokafkaShareClient("localhost:9092", "group")
    await client.stop(1.0)
    assert (client.lock_seconds, client.may_renew, client.contact()) == (None, True, Contact())
    results: list[Acknowledged] = []
    client.acknowledge(TopicPartition("t", 0), 1, AcknowledgeType.ACCEPT, lambda result, _: results.append(result))
    assert results == []
    await asyncio.sleep(0)
    assert results == [Acknowledged.NOT_SENT]
    with pytest.raises(ConsumerStateError):
        await client.fetch(1)
    with pytest.raises(ConsumerStateError):
        client.subscribe(["t"], lambda _partitions: None)
