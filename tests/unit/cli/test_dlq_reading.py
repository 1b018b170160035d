"""Reading a topic of letters: brokers that stop answering, records of old formats, and what cannot be read."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from aioparallel.cli.dlq.commands import Access
from aioparallel.cli.dlq.dead_letter_topic import OpenTopic
from aioparallel.cli.dlq.printing import details, json_details
from aioparallel.cli.dlq.replaying import Destination
from aioparallel.cli.dlq.selecting import DeadLetter
from aioparallel.clients.aiokafka import connecting
from aioparallel.clients.aiokafka import log_reading as reading
from aioparallel.delivery.letters import Letter, original_headers, read_letter, write_letter
from aioparallel.group.client import Span
from aioparallel.records.errors import BrokerUnreachable, ClientError, ConfigurationError, UnreadableBatch
from aioparallel.records.record import Failure, Origin, Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient

from .dead_letters import letter_record


class Silent:
    """A consumer whose broker answers nothing, from the start or once it is connected."""

    def __init__(self, *, starts: bool) -> None:
        self._starts = starts
        self._client = Mock(_conns={}, _sync_task=None, _bootstrap_servers="nowhere:1")
        self._coordinator = None
        self._subscription = SimpleNamespace(reassignment_in_progress=False, subscription=None)
        waiter = asyncio.get_running_loop().create_future
        connections = SimpleNamespace(send=None)
        self._fetcher = SimpleNamespace(_records={}, _create_fetch_waiter=waiter, _client=connections)

    async def start(self) -> None:
        if not self._starts:
            await asyncio.Event().wait()

    async def stop(self) -> None: ...

    def assign(self, partitions: object) -> None: ...

    def seek(self, partition: object, offset: int) -> None: ...


async def found(servers: str, _options: object, _timeout: float, _retry_backoff: float) -> str:
    """A broker that takes a connection."""
    return servers


@pytest.mark.parametrize("starts", [True, False])
async def test_a_silent_broker_ends_the_reading(monkeypatch: pytest.MonkeyPatch, starts: bool) -> None:
    """In time, wherever it falls silent: when connecting, or when the position is requested."""
    monkeypatch.setattr(reading, "STALLED", 0.1)
    monkeypatch.setattr(reading, "AIOKafkaConsumer", lambda **_options: Silent(starts=starts))
    monkeypatch.setattr(reading, "BrokerWatch", lambda *_of, **_options: SimpleNamespace(failure=None))
    monkeypatch.setattr(connecting, "find_broker", found)
    reads = reading.read_spans({TopicPartition("orders.dlq", 0): Span(0, 5)}, "nowhere:1", {})
    with pytest.raises(ClientError, match="is the cluster reachable"):
        await asyncio.wait_for(anext(reads), 5)


async def test_no_broker_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody takes a connection, the reading ends with the reason, in time."""
    monkeypatch.setattr(reading, "STALLED", 0.3)
    reads = reading.read_spans({TopicPartition("orders.dlq", 0): Span(0, 5)}, "127.0.0.1:1", {})
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1.*0\.3 s"):
        await asyncio.wait_for(anext(reads), 5)


def test_a_record_without_a_timestamp() -> None:
    """Of message format 0. It has the timestamp -1, as in Kafka's other clients, and can be sorted and shown."""
    record: Record = Record("orders.dlq", 0, 0, b"key", b"value", (), -1)
    dead = DeadLetter(record, None, settled=False)
    assert dead.age < DeadLetter(letter_record(0), None, settled=False).age
    assert json_details(dead)["timestamp"] is None


@pytest.mark.parametrize("timestamp", ["-1", "None"])
def test_a_letter_whose_origin_has_no_timestamp(timestamp: str) -> None:
    """It is read, shown and can be replayed; "None" is what such letters held before."""
    failure = Failure(1000.0, "app.Refused", "no")
    letter = Letter(Origin("orders", 0, 5, -1), "billing", 3, failure, failure, "Traceback: here")
    headers = write_letter((("trace", b"abc"),), letter)
    replaced = tuple(
        (name, timestamp.encode() if name == "aioparallel.origin.timestamp" else value) for name, value in headers
    )
    record = Record("orders.dlq", 0, 0, b"key", b"value", replaced, timestamp=7)
    read = read_letter(record)
    assert read == letter
    assert original_headers(record.headers) == (("trace", b"abc"),)
    assert "orders, partition 0, offset 5, without a timestamp" in details(
        DeadLetter(record, read, settled=False), 2000
    )


def test_a_letter_of_a_record_with_a_name_that_is_no_utf_8() -> None:
    """It is shown with a name that a terminal takes, and with its bytes for scripts; a replay writes the bytes."""
    name = b"na\xffme".decode("utf-8", "surrogateescape")
    failure = Failure(1000.0, "aioparallel.errors.UndecodableRecord", "no")
    letter = Letter(Origin("orders", 0, 5, 7), "billing", 1, failure, failure, "")
    headers = write_letter((("trace", b"abc"), (name, b"x")), letter)
    record = Record("orders.dlq", 0, 0, b"key", b"value", headers, timestamp=7)
    dead = DeadLetter(record, read_letter(record), settled=False)
    assert "na\\xffme: x" in details(dead, 2000)
    assert json_details(dead)["headers"] == [["trace", "abc"], [{"base64": "bmH/bWU="}, "x"]]
    outgoing = Destination(None, same_partition=False, exists={TopicPartition("orders", 0)}).outgoing(record)
    assert not isinstance(outgoing, str)
    assert outgoing.headers[:2] == (("trace", b"abc"), (name, b"x"))


@pytest.mark.parametrize("wrong", ["orders", "orders:1", "orders:1:x", ":1:2", "orders:1:2:3"])
def test_batches_to_be_passed_over_are_named_by_topic_partition_and_offset(wrong: str) -> None:
    """What is no such name is refused before anything is connected."""
    assert Access(skip_unreadable=("orders.dlq:3:4711", "x:0:0")).skipped == (("orders.dlq", 3, 4711), ("x", 0, 0))
    with pytest.raises(ConfigurationError, match="orders:3:4711"):
        _ = Access(skip_unreadable=(wrong,)).skipped


async def test_a_batch_that_is_named_is_passed_over() -> None:
    """By whatever reads the topic."""
    broker = InMemoryBroker()
    broker.create_topic("orders.dlq", 1)
    for number in range(6):
        broker.append("orders.dlq", b"%d" % number, partition=0)
    broker.corrupt(TopicPartition("orders.dlq", 0), 2, 4)
    client: Any = InMemoryClient(broker, "marks")
    await client.start(5)
    given: Any = None
    topic = OpenTopic("orders.dlq", client, {}, given, given, {0: 0}, {0: 6}, (("orders.dlq", 0, 2),))

    async def offsets(topic: OpenTopic) -> list[int]:
        async with topic.read({0: Span(0, 6)}) as reads:
            return [record.offset async for fetched in reads for record in fetched.records]

    assert await offsets(topic) == [0, 1, 4, 5]
    with pytest.raises(UnreadableBatch, match=r"--skip-unreadable orders\.dlq:0:2"):
        await offsets(dataclasses.replace(topic, skip=()))
    await client.stop(1)
