"""Dead letters that the brokers of a share group write themselves (KIP-1191, Kafka 4.4), and what ``dlq`` makes of
them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from aioparallel import Record, Reject
from aioparallel.clients.aiokafka.share_admin import ShareAdmin
from aioparallel.delivery.first_places import first_place
from aioparallel.queues.share import ShareConsumer
from aioparallel.records.errors import BrokerStartError
from aioparallel.records.record import Origin
from aioparallel.testing import LocalKafka
from tests.interop.conftest import give_up
from tests.support.command_line import Ran, invoke
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.other_versions import kafka_of

pytestmark = pytest.mark.real

ENABLED = {"errors.deadletterqueue.group.enable": "true"}


@pytest.fixture(scope="module")
def newest_kafka() -> Iterator[LocalKafka]:
    """Apache Kafka 4.4.0."""
    try:
        with kafka_of("4.4.0") as kafka:
            yield kafka
    except BrokerStartError as error:
        give_up(str(error), os.environ)


async def dlq(kafka: LocalKafka, *arguments: str) -> Ran:
    environment = {"AIOPARALLEL_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    ran = await asyncio.to_thread(invoke, "dlq", *arguments, environment=environment)
    assert ran.exit_code == 0, ran.output
    return ran


async def objects(kafka: LocalKafka, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await dlq(kafka, *arguments, "--json")).stdout.splitlines()]


async def given_up(kafka: LocalKafka, name: str, configs: dict[str, str]) -> str:
    """A topic whose two bad records were given up by the brokers: rejected, and delivered too often. Returns the topic
    of the dead letters."""
    dead = f"dlq.{name}"
    await kafka.create_topic(name, 1)
    await kafka.create_topic(dead, 1, ENABLED)
    servers = kafka.bootstrap_servers
    async with ShareAdmin(servers) as admin:
        await admin.set_group_configs(
            name,
            {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": "2",
                "errors.deadletterqueue.topic.name": dead,
                **configs,
            },
        )
    values = (b"good", b"rejected", b"failing")
    fill(servers, name, [Message(b"key", value, (("trace", b"abc"),), partition=0) for value in values])

    async def handle(record: Record) -> None:
        if record.value == b"rejected":
            raise Reject("no")
        if record.value == b"failing":
            raise ValueError("no")

    async with ShareConsumer(name, bootstrap_servers=servers, group_id=name, until="end") as consumer:
        await consumer.run(handle)
    return dead


async def test_letters_without_their_records_are_completed_and_replayed(
    newest_kafka: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """By default brokers write headers only. Key, value and headers are read from the topic, and so is the time. A
    member logs where the brokers write."""
    caplog.set_level("INFO", "aioparallel.clients.aiokafka.share_group_configs")
    dead = await given_up(newest_kafka, "headers-only", {})
    assert f"it rejects or gives up to {dead}, without key and value" in caplog.text
    rejected, failing = await objects(newest_kafka, "list", dead)
    assert (rejected["state"], rejected["group"], rejected["attempts"]) == ("open", "headers-only", 1)
    assert (failing["attempts"], failing["origin"]["offset"]) == (2, 2)
    assert failing["error"] == {"type": "broker", "message": "Offset delivery count exceeded the threshold."}
    whole, _ = await objects(newest_kafka, "show", dead, "--limit", "2")
    assert (whole["key"], whole["value"], whole["headers"]) == ("key", "rejected", [["trace", "abc"]])
    assert whole["completed"] is True
    assert whole["origin"]["timestamp"] > 0
    shown = (await dlq(newest_kafka, "show", dead, "--offset", "0", "--partition", "0")).stdout
    assert "deliveries  1 in group headers-only" in shown
    assert "not in it   its key, value and headers, read from its origin" in shown
    assert (await dlq(newest_kafka, "show", dead, "--offset", "1", "--partition", "0", "--raw")).stdout == "failing"
    assert "Replayed 2, failed 0" in (await dlq(newest_kafka, "replay", dead, "--yes")).output
    found: list[Record] = []

    async def handle(record: Record) -> None:
        found.append(record)

    servers = newest_kafka.bootstrap_servers
    async with ShareConsumer("headers-only", bootstrap_servers=servers, group_id="headers-only", until="end") as again:
        await again.run(handle)
    assert sorted((record.value or b"", record.key) for record in found) == [
        (b"failing", b"key"),
        (b"rejected", b"key"),
    ]
    by_value = {record.value: record for record in found}
    origin = whole["origin"]
    assert first_place(by_value[b"rejected"]) == Origin("headers-only", 0, 1, origin["timestamp"])
    assert ("trace", b"abc") in by_value[b"rejected"].headers
    assert not [name for name, _ in by_value[b"rejected"].headers if name.startswith("__dlq")]
    assert await objects(newest_kafka, "list", dead) == []


@pytest.mark.slow
async def test_copied_records_lack_their_headers_only(newest_kafka: LocalKafka) -> None:
    """Key and value are in the letter, if the group is configured so; the record's own headers never are."""
    dead = await given_up(newest_kafka, "copied", {"errors.deadletterqueue.copy.record.enable": "true"})
    (listed, _) = await objects(newest_kafka, "list", dead)
    assert listed["key"] == "key"
    assert listed["left_out"] == {"value": None, "kept": 0, "key": None, "headers": -1, "checksum": None}
    (whole, _) = await objects(newest_kafka, "show", dead, "--limit", "2")
    assert (whole["value"], whole["headers"]) == ("rejected", [["trace", "abc"]])


@pytest.mark.slow
async def test_a_record_that_is_gone_is_not_replayed(newest_kafka: LocalKafka) -> None:
    """The letter stays open, and says why."""
    dead = await given_up(newest_kafka, "gone", {})
    async with ShareAdmin(newest_kafka.bootstrap_servers) as admin:
        await admin.delete_topics("gone")
    shown = (await dlq(newest_kafka, "show", dead, "--limit", "1")).stdout
    assert "its key, value and headers, and cannot be read: the record is gone" in shown
    environment = {"AIOPARALLEL_BOOTSTRAP_SERVERS": newest_kafka.bootstrap_servers}
    ran = await asyncio.to_thread(invoke, "dlq", "replay", dead, "--yes", environment=environment)
    assert ran.exit_code == 1
    assert "Replayed 0, failed 2" in ran.output
    assert len(await objects(newest_kafka, "list", dead)) == 2
