"""The embedded broker against aiokafka, and how it starts and ends."""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import multiprocessing
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from aioparallel.records.errors import BrokerStartError, ClientError, ConfigurationError
from aioparallel.testing.brokers import librdkafka
from aioparallel.testing.brokers.cluster_view import answers
from aioparallel.testing.brokers.embedded import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """One of its own for each test: it takes a millisecond."""
    with EmbeddedBroker() as embedded:
        yield embedded


def reachable(broker: EmbeddedBroker) -> bool:
    """Whether it answers now. Blocks: the broker must not need the event loop of the test."""
    host, port = broker.bootstrap_servers.split(":")
    return answers(host, int(port), timeout=2.0)


async def round_trip(bootstrap_servers: str, topic: str, group: str) -> tuple[bytes, str]:
    """Produce a record, read it as a member of a group, commit with metadata, read the metadata back."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers)
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        await producer.start()
        await producer.send_and_wait(topic, b"value", partition=2)
        await consumer.start()
        record = await asyncio.wait_for(consumer.getone(), 120)
        partition = TopicPartition(record.topic, record.partition)
        await consumer.commit({partition: (record.offset + 1, "\u0800map")})
        committed = await consumer._coordinator.fetch_committed_offsets([partition])
        return record.value, committed[partition].metadata
    finally:
        await consumer.stop()
        await producer.stop()


async def test_a_record_goes_round(broker: EmbeddedBroker) -> None:
    """What aiokafka produces a member of a group reads, and commit metadata comes back unchanged."""
    await broker.create_topic("round", partitions=8)
    assert await round_trip(broker.bootstrap_servers, "round", "g") == (b"value", "\u0800map")


async def test_a_topic_has_the_partitions_asked_for(broker: EmbeddedBroker) -> None:
    """A created topic has exactly its partitions, and creating it again is refused by name."""
    await broker.create_topic("eight", partitions=8)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    try:
        assert await producer.partitions_for("eight") == set(range(8))
    finally:
        await producer.stop()
    with pytest.raises(ClientError, match=r"'eight'.*already exists"):
        await broker.create_topic("eight", partitions=8)


async def test_topic_configs_are_refused(broker: EmbeddedBroker) -> None:
    """The embedded broker knows no topic configs, and says so instead of ignoring them."""
    with pytest.raises(ConfigurationError, match="use LocalKafka"):
        await broker.create_topic("compacted", configs={"cleanup.policy": "compact"})


async def test_it_goes_down_and_comes_back(broker: EmbeddedBroker) -> None:
    """Down, it refuses connections; up again, it answers at the same address and has kept its topics."""
    await broker.create_topic("kept", partitions=3)
    before = broker.bootstrap_servers
    broker.stop_broker()
    assert not reachable(broker)
    broker.start_broker()
    assert reachable(broker)
    assert broker.bootstrap_servers == before
    with pytest.raises(ClientError, match="already exists"):
        await broker.create_topic("kept", partitions=3)


async def elapsed(call: Callable[[], Awaitable[object]]) -> float:
    """Seconds that one call takes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await call()
    return loop.time() - began


async def test_a_round_trip_time_delays_answers(broker: EmbeddedBroker) -> None:
    """With a round trip of 1 s an acknowledgement takes at least that long; set to 0 it does not any more."""
    await broker.create_topic("far")
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    try:
        await producer.send_and_wait("far", b"first")
        broker.set_round_trip_time(1.0)
        assert await elapsed(lambda: producer.send_and_wait("far", b"slow")) >= 1.0
        broker.set_round_trip_time(0)
        assert await elapsed(lambda: producer.send_and_wait("far", b"quick")) < 1.0
    finally:
        await producer.stop()


def test_a_wrong_round_trip_time_is_refused(broker: EmbeddedBroker) -> None:
    """Seconds are meant, so a value that can only be milliseconds is refused."""
    with pytest.raises(ConfigurationError, match="seconds=300"):
        broker.set_round_trip_time(300)


def test_nothing_stays_after_it_ends() -> None:
    """Twenty brokers, one after the other, leave no thread and no open file behind."""
    process = psutil.Process()
    with EmbeddedBroker():
        pass  # the library's own first-time set-up stays
    before = process.num_threads(), process.num_fds()
    for _ in range(20):
        with EmbeddedBroker() as broker:
            assert reachable(broker)
    assert (process.num_threads(), process.num_fds()) == before


def test_two_live_side_by_side() -> None:
    """Two brokers of one process have addresses and topics of their own."""
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        assert one.bootstrap_servers != other.bootstrap_servers
        asyncio.run(one.create_topic("same"))
        asyncio.run(other.create_topic("same"))


def _stop_as_a_forked_child(broker: EmbeddedBroker) -> None:
    broker.stop()
    os._exit(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads: that it is risky is the point
def test_a_forked_child_does_not_end_it(broker: EmbeddedBroker) -> None:
    """A forked child that runs our exit handlers neither hangs in the library nor ends its parent's broker."""
    child = multiprocessing.get_context("fork").Process(target=_stop_as_a_forked_child, args=(broker,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert reachable(broker)


def test_start_and_stop_may_be_repeated() -> None:
    """A second start changes nothing, a second stop neither, and a stopped broker says that it is stopped."""
    broker = EmbeddedBroker()
    broker.start()
    address = broker.bootstrap_servers
    broker.start()
    assert broker.bootstrap_servers == address
    broker.stop()
    broker.stop()
    with pytest.raises(BrokerStartError, match="not running"):
        _ = broker.bootstrap_servers


@pytest.fixture
def fresh_library() -> Iterator[None]:
    """The library is looked for anew in the test, and again after it."""
    librdkafka._library.cache_clear()
    yield
    librdkafka._library.cache_clear()


@pytest.mark.usefixtures("fresh_library")
def test_without_the_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without confluent-kafka the error names the extra to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BrokerStartError, match=r"pip install .*aioparallel\[testing\]"):
        EmbeddedBroker().start()


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize(
    "wheel", ["confluent_kafka.libs/librdkafka-1.so.1", "confluent_kafka/.dylibs/librdkafka.1.dylib"]
)
def test_a_library_without_the_mock_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: str) -> None:
    """In the layouts of Linux and macOS wheels, a library that cannot be used is named in the error."""
    library = tmp_path / wheel
    library.parent.mkdir(parents=True)
    library.write_bytes(b"not a library")
    spec = importlib.machinery.ModuleSpec("confluent_kafka", None, origin=str(tmp_path / "confluent_kafka/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(BrokerStartError, match=library.name):
        EmbeddedBroker().start()
