"""Apache Kafka as a JVM process: usable, killable, pausable, and gone in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import BrokerStartError, ClientError, ConfigurationError
from aioparallel.testing.brokers.cluster_view import answers
from aioparallel.testing.brokers.local import LocalKafka
from aioparallel.testing.brokers.ports import free_ports

real = pytest.mark.real


def reachable(kafka: LocalKafka) -> bool:
    """Whether the broker answers within a second."""
    host, port = kafka.bootstrap_servers.split(":")
    return answers(host, int(port), timeout=1.0)


async def produce(kafka: LocalKafka, topic: str, value: bytes) -> None:
    """Produce one record, with a key, to partition 0 and wait for the acknowledgement."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    await producer.start()
    try:
        await producer.send_and_wait(topic, value, key=b"key", partition=0)
    finally:
        await producer.stop()


async def read(kafka: LocalKafka, topic: str, count: int) -> list[bytes]:
    """The first ``count`` values of partition 0."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        return [(await asyncio.wait_for(consumer.getone(), 120)).value for _ in range(count)]
    finally:
        await consumer.stop()


@real
async def test_a_topic_can_be_used_at_once(local_kafka: LocalKafka) -> None:
    """A created topic takes and gives records, with its partitions and configs; to make it again is refused."""
    await local_kafka.create_topic("at-once", partitions=8, configs={"cleanup.policy": "compact"})
    await produce(local_kafka, "at-once", b"one")
    assert await read(local_kafka, "at-once", 1) == [b"one"]
    with pytest.raises(ClientError, match=r"'at-once'.*already exists"):
        await local_kafka.create_topic("at-once")


@real
async def test_a_wrong_topic_config_is_told(local_kafka: LocalKafka) -> None:
    """What the broker says against a config is in the error."""
    with pytest.raises(ClientError, match="tidy"):
        await local_kafka.create_topic("wrong-config", configs={"cleanup.policy": "tidy"})


@pytest.mark.slow
@real
async def test_a_topic_is_made_when_a_broker_that_was_not_heard_of_is_back() -> None:
    """A broker whose heartbeats come late is fenced between them, and nothing can be placed on it: we ask again."""
    late = {"broker.session.timeout.ms": "500", "broker.heartbeat.interval.ms": "2000"}
    with LocalKafka(compile_once=True, server_properties=late) as kafka:
        async with Admin(kafka.bootstrap_servers) as admin:
            for number in range(4):
                await admin.create_topic(f"late-{number}")
                await asyncio.sleep(0.3)  # longer in all than it counts as alive after a heartbeat
            assert {f"late-{number}" for number in range(4)} <= set(await admin.topics())


@real
async def test_topics_are_not_made_by_asking(local_kafka: LocalKafka) -> None:
    """A client that asks for a missing topic does not make it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=local_kafka.bootstrap_servers)
    await admin.start()
    try:
        (described,) = await admin.describe_topics(["never-made"])
        assert described["error_code"] == 3
        assert "never-made" not in await admin.list_topics()
    finally:
        await admin.close()


@real
async def test_a_killed_broker_comes_back_with_its_data(local_kafka: LocalKafka) -> None:
    """After SIGKILL and a restart the address is the same and acknowledged records are there."""
    await local_kafka.create_topic("survivor")
    await produce(local_kafka, "survivor", b"one")
    address, pid = local_kafka.bootstrap_servers, local_kafka.pid
    await asyncio.to_thread(local_kafka.kill)
    assert not reachable(local_kafka)
    await asyncio.to_thread(local_kafka.restart)
    assert (local_kafka.bootstrap_servers, local_kafka.pid != pid) == (address, True)
    await produce(local_kafka, "survivor", b"two")
    assert await read(local_kafka, "survivor", 2) == [b"one", b"two"]


@real
async def test_a_paused_broker_hangs_until_it_goes_on(local_kafka: LocalKafka) -> None:
    """A paused broker takes connections and answers nothing; resumed, it answers; restarted while paused, too."""
    local_kafka.pause()
    try:
        assert not reachable(local_kafka)
    finally:
        local_kafka.resume()
    assert reachable(local_kafka)
    local_kafka.pause()
    await asyncio.to_thread(local_kafka.restart)
    assert reachable(local_kafka)


@real
def test_a_failed_start_is_told_with_the_broker_s_words(
    local_kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not start raises with what Kafka said, and leaves no directory."""
    assert local_kafka.pid is not None  # so Apache Kafka can be started here
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broken = LocalKafka(server_properties={"num.io.threads": "many"})
    with pytest.raises(BrokerStartError, match=r"(?s)num\.io\.threads.*many|many.*num\.io\.threads"):
        broken.start()
    assert list(tmp_path.iterdir()) == []
    broken.stop()


def test_its_own_properties_cannot_be_set() -> None:
    """Where the broker listens and keeps its data is its own business."""
    with pytest.raises(ConfigurationError, match=r"listeners, log\.dirs"):
        LocalKafka(server_properties={"log.dirs": "/tmp", "listeners": "PLAINTEXT://:9092", "num.io.threads": "2"})


@pytest.mark.parametrize("brokers", [0, 10, -1, "3", 2.5, 3.0, True, None])
def test_a_wrong_number_of_brokers_is_refused(brokers: int) -> None:
    """One to nine brokers, a whole number."""
    with pytest.raises(ConfigurationError, match=f"brokers={brokers!r}: must be a whole number from 1 to 9"):
        LocalKafka(brokers=brokers)


@real
async def test_one_broker_needs_no_number(local_kafka: LocalKafka) -> None:
    """Where there is one broker it is number 1, and leads all; there is no second one."""
    assert local_kafka.numbers == (1,)
    assert local_kafka.pids == {1: local_kafka.pid}
    assert local_kafka.address() == local_kafka.address(1) == local_kafka.bootstrap_servers
    await local_kafka.create_topic("led", partitions=2)
    assert await local_kafka.leaders("led") == {0: 1, 1: 1}
    with pytest.raises(ConfigurationError, match="broker number=2: must be one of 1"):
        local_kafka.kill(2)


def test_before_the_start_it_says_so() -> None:
    """A broker that was not started says so; stopping it does nothing."""
    broker = LocalKafka()
    broker.stop()
    assert broker.pid is None
    for call in (lambda: broker.bootstrap_servers, broker.kill, broker.restart, broker.pause, broker.log_tail):
        with pytest.raises(BrokerStartError, match="not running"):
            call()


@real
@pytest.mark.parametrize("hang", [False, True])
async def test_a_broker_is_down_for_the_length_of_a_block(local_kafka: LocalKafka, hang: bool) -> None:
    """It does not answer inside the block, and does again after it, also where the block raises; its data are there."""
    topic = f"down-{hang}"
    await local_kafka.create_topic(topic)
    await produce(local_kafka, topic, b"before")

    async def fail_while_it_is_down() -> None:
        async with local_kafka.down(hang=hang):
            assert not await asyncio.to_thread(reachable, local_kafka)
            raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        await fail_while_it_is_down()
    assert await asyncio.to_thread(reachable, local_kafka)
    assert await read(local_kafka, topic, 1) == [b"before"]


@pytest.mark.slow
@real
@pytest.mark.parametrize("hang", [False, True])
async def test_a_broker_is_back_however_its_block_is_left(mortal_kafka: LocalKafka, hang: bool) -> None:
    """Cancelled on the way in, in the block, on the way out, and again while it comes back."""

    async def stay_down() -> None:
        async with mortal_kafka.down(hang=hang):
            await asyncio.sleep(600)

    for delay in (0.0, 0.001, 0.5):
        task = asyncio.create_task(stay_down())
        await asyncio.sleep(delay)
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=0.2)
        assert await asyncio.to_thread(reachable, mortal_kafka)


@real
async def test_a_start_that_is_cancelled_ends_soon() -> None:
    """At whatever moment, with nothing left; long before a broker would be up on a busy machine."""
    for delay in (0.2, 1.0):
        kafka = LocalKafka()
        task = asyncio.create_task(kafka.__aenter__())
        await asyncio.sleep(delay)
        pids = dict(kafka.pids)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)
        assert not any(psutil.pid_exists(pid) for pid in pids.values())


@real
def test_the_broker_of_tests_lives_for_minutes(local_kafka: LocalKafka) -> None:
    """Its Java compiles nothing twice; that of one which is started by itself does."""
    assert compiles_once(local_kafka)


def compiles_once(kafka: LocalKafka) -> bool:
    """Whether its Java was told so."""
    return "-XX:TieredStopAtLevel=1" in psutil.Process(kafka.pid).cmdline()


@real
def test_a_broker_listens_where_it_is_told() -> None:
    """``port`` says where; a second broker there is refused before anything is started."""
    (port,) = free_ports(1)
    with LocalKafka(port=port) as kafka:
        assert kafka.bootstrap_servers == f"127.0.0.1:{port}"
        assert not compiles_once(kafka)
        with pytest.raises(BrokerStartError, match=f"port {port} on 127.0.0.1 is taken"):
            LocalKafka(port=port).start()


@pytest.mark.parametrize("port", [0, 65_536, "9092", True])
def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    """It is named when the broker is constructed."""
    with pytest.raises(ConfigurationError, match="port"):
        LocalKafka(port=port)
