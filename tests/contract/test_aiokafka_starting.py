"""Starting and stopping: in time whatever the broker does, and nothing is left open. Warnings are errors here."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import struct
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aioparallel.clients import AiokafkaClient
from aioparallel.clients.aiokafka import metadata_updates
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import BrokerUnreachable, ConsumerStateError
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from aioparallel.testing.brokers.local import LocalKafka
from tests.support.clusters.aiokafka_cluster import AiokafkaCluster, serving
from tests.support.clusters.aiokafka_member import Member, unique
from tests.support.waiting import SLACK, until


@pytest_asyncio.fixture
async def kafka(local_kafka: LocalKafka) -> AsyncIterator[AiokafkaCluster]:
    """Apache Kafka."""
    async with serving(local_kafka) as opened:
        yield opened


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[str]:
    """An address that accepts connections and sends nothing."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    yield "{}:{}".format(*server.sockets[0].getsockname())
    server.close()
    await server.wait_closed()


@pytest.fixture(autouse=True)
def nothing_left_open() -> None:
    """Collect garbage after each test, so that a warning about an unclosed object belongs to its test."""
    gc.collect()


def others() -> set[asyncio.Task[object]]:
    """All tasks but this one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_a_silent_broker_is_unreachable(silent: str) -> None:
    """A connection alone is no answer. The timeout is kept, and no task remains."""
    client, before, began = AiokafkaClient(silent, "group"), others(), time.monotonic()
    with pytest.raises(BrokerUnreachable, match=rf"no Kafka broker answered at {silent} within 0.5 s"):
        await client.start(0.5)
    assert time.monotonic() - began < 0.5 + SLACK
    await until(lambda: others() <= before, what="the end of all tasks")
    await client.stop(1.0)


async def test_the_reason_is_in_the_message() -> None:
    """A refused connection says so."""
    with pytest.raises(BrokerUnreachable, match=r"127.0.0.1:1: .*Connect call failed|refused"):
        await AiokafkaClient("127.0.0.1:1", "group").start(1.0)


async def test_one_answering_server_is_enough(silent: str, embedded_broker: EmbeddedBroker) -> None:
    """The other servers, which hang or refuse, are not waited for."""
    servers = f"{silent},127.0.0.1:1,{embedded_broker.bootstrap_servers}"
    client, began = AiokafkaClient(servers, unique("group")), time.monotonic()
    await client.start(60.0)
    assert time.monotonic() - began < SLACK
    await client.stop(5.0)


@pytest.mark.parametrize("beside_a_silent_one", [False, True])
async def test_a_broker_that_starts_a_little_later_is_waited_for(silent: str, beside_a_silent_one: bool) -> None:
    """Containers start in any order, so the client retries until its timeout. A server that hangs delays no other."""
    with EmbeddedBroker() as broker:
        broker.stop_broker()
        servers = f"{silent},{broker.bootstrap_servers}" if beside_a_silent_one else broker.bootstrap_servers
        client = AiokafkaClient(servers, unique("group"))
        starting = asyncio.create_task(client.start(60.0))
        await until(lambda: len(others()) > 1, what="the first attempt")
        broker.start_broker()
        await starting
        await client.stop(5.0)


async def test_the_message_says_why_the_first_metadata_do_not_come(caplog: pytest.LogCaptureFixture) -> None:
    """The broker answers, so "no answer" would be wrong. It is logged as well."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while size := int.from_bytes(await reader.readexactly(4)):
                request = await reader.readexactly(size)
                if request[:2] == b"\0\x12":  # ApiVersions: 0 of itself, 0 and 1 of Metadata
                    body = struct.pack(">hi6h", 0, 2, 18, 0, 0, 3, 0, 1)
                else:
                    body = struct.pack(">3i", 0, -1, 0)  # no brokers, no controller, no topics
                writer.write(struct.pack(">i", 4 + len(body)) + request[4:8] + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    before = others()
    with pytest.raises(BrokerUnreachable, match=rf"within 3 s \({address}: it knows no brokers yet\)"):
        await AiokafkaClient(address, "group").start(3.0)
    assert [f"{address}: it knows no brokers yet" in one.getMessage() for one in caplog.records] == [True]
    server.close()
    await server.wait_closed()
    await until(lambda: others() <= before, what="the end of all tasks")


async def test_an_unreachable_broker_is_logged_occasionally(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its address and the time since the last metadata. Metadata is requested ten times a second, but not logged
    as often."""
    monkeypatch.setattr(metadata_updates, "_LOG_INTERVAL", 1.0)

    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "no_metadata"]

    with EmbeddedBroker() as broker:
        address = broker.bootstrap_servers
        client = AiokafkaClient(address, unique("group"))
        await client.start(60.0)
        try:
            broker.stop_broker()
            looking = asyncio.create_task(client.partitions(["missing"], 60.0))
            await until(lambda: len(told()) > 2, what="the third time")
            looking.cancel()
            await asyncio.wait([looking])
        finally:
            await client.stop(1.0)
    seconds = [int(re.findall(r"No metadata for (\d+) s", line)[0]) for line in told()]
    assert seconds[0] == 0
    assert seconds == sorted(seconds)
    assert address in told()[0]


async def test_a_cancelled_start_leaves_nothing_behind(silent: str) -> None:
    """The cancellation is raised, and the consumer that was being started is closed."""
    client, before = AiokafkaClient(silent, "group"), others()
    starting = asyncio.create_task(client.start(30.0))
    await until(lambda: len(others() - before) > 1, what="the first attempt")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: others() <= before, what="the end of all tasks")
    await client.stop(1.0)


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_stop_ends_a_start(silent: str, embedded_broker: EmbeddedBroker, hangs: bool) -> None:
    """At any moment of it. The start raises, unless it ends as the stop begins, and nothing remains."""
    before = others()
    for step in range(20):
        client = AiokafkaClient(silent if hangs else embedded_broker.bootstrap_servers, unique("group"))
        starting = asyncio.create_task(client.start(30.0))
        await asyncio.wait({starting}, timeout=step / 1_000)
        has_started, began = starting.done(), time.monotonic()
        await asyncio.gather(client.stop(20.0), client.stop(20.0))
        assert time.monotonic() - began < SLACK
        assert has_started or step == 0 or starting.done()
        if not has_started and starting.done() and (hangs or starting.exception() is not None):
            with pytest.raises(ConsumerStateError, match="stopped while it started"):
                await starting
        starting.cancel()
        await asyncio.wait({starting})
        await until(lambda: others() <= before, what="the end of all tasks")


async def test_two_starts_at_once_open_one_client(embedded_broker: EmbeddedBroker) -> None:
    """The second is refused at once: its connections would be left open."""
    client, before = AiokafkaClient(embedded_broker.bootstrap_servers, unique("group")), others()
    one, two = await asyncio.gather(client.start(30.0), client.start(30.0), return_exceptions=True)
    assert one is None
    assert isinstance(two, ConsumerStateError)
    await client.stop(5.0)
    await until(lambda: others() <= before, what="the end of all tasks")


async def test_a_start_cancelled_at_any_moment_leaves_no_connection(embedded_broker: EmbeddedBroker) -> None:
    """aiokafka's leaves one open between connecting and the first metadata. Its warning would fail this test."""
    servers, before = embedded_broker.bootstrap_servers, others()
    began = time.monotonic()
    async with Admin(servers):
        took = time.monotonic() - began
    for step in range(60):
        admin = Admin(servers)
        starting = asyncio.create_task(admin.__aenter__())
        await asyncio.wait({starting}, timeout=took * step / 50)
        starting.cancel()
        await asyncio.wait({starting})
        await admin.__aexit__(None, None, None)
        await until(lambda: others() <= before, what="the end of all tasks")
        gc.collect()


@pytest.mark.real
@pytest.mark.parametrize("hang", [True, False], ids=["hangs", "is gone"])
async def test_stop_keeps_its_time_without_a_broker(mortal_kafka: LocalKafka, hang: bool) -> None:
    """With a broker that hangs or is gone it ends in time, raises nothing, and leaves no task and no connection."""
    topic = unique("topic")
    await mortal_kafka.create_topic(topic, 3)
    before = others()
    member = Member(AiokafkaClient(mortal_kafka.bootstrap_servers, unique("group")))
    await member.join(topic)
    member.read_from(0)
    fetch = asyncio.create_task(member.client.fetch(dict.fromkeys(member.held, 1)))
    await until(lambda: member.client._waiter, what="the waiting fetch")
    async with mortal_kafka.down(hang=hang):
        began = time.monotonic()
        await member.client.stop(2.0)
        assert time.monotonic() - began < 2.0 + SLACK
        assert await fetch == []
        assert others() == before


@pytest.mark.real
async def test_a_cancelled_stop_still_closes_everything(kafka: AiokafkaCluster, local_kafka: LocalKafka) -> None:
    """The cancellation is raised at once, and what was open is cut off."""
    topic = unique("topic")
    await kafka.create_topic(topic)
    member = Member(kafka.client(unique("group")))
    before = others()
    await member.join(topic)
    local_kafka.pause()
    try:
        stopping = asyncio.create_task(member.client.stop(30.0))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await until(lambda: others() <= before, what="the end of all tasks")
    finally:
        local_kafka.resume()


async def test_calls_out_of_order_say_so(embedded_broker: EmbeddedBroker) -> None:
    """Before start and after stop there is no connection. stop may be called at any time."""
    client = AiokafkaClient(embedded_broker.bootstrap_servers, unique("group"))
    await client.stop(1.0)
    for is_new in (True, False):
        with pytest.raises(ConsumerStateError, match=r"start\(\) it first"):
            await client.fetch({})
        with pytest.raises(ConsumerStateError):
            client.subscribe({"topic"}, Member(client))
        assert client.end_offset_seen(("topic", 0)) is None  # type: ignore[arg-type]
        if is_new:
            await client.start(5.0)
            with pytest.raises(ConsumerStateError, match="started already"):
                await client.start(5.0)
            await client.stop(5.0)
    await client.stop(1.0)


@pytest.mark.real
async def test_a_first_start_logs_no_warning(kafka: AiokafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A new group on a new topic, with a rebalance, logs nothing at WARNING or above."""
    caplog.set_level(logging.INFO)
    topic, group = unique("topic"), unique("group")
    await kafka.create_topic(topic, 2)
    one, two = Member(kafka.client(group)), Member(kafka.client(group))
    await one.join(topic)
    await two.join(topic)
    await until(lambda: len(one.held) == len(two.held) == 1, what="a partition for each")
    await one.client.stop(5.0)
    await until(lambda: len(two.held) == 2, what="both for the second")
    await two.client.stop(5.0)
    assert [f"{r.levelname} {r.name} {r.getMessage()}" for r in caplog.records if r.levelno >= logging.WARNING] == []
