"""Three brokers of Apache Kafka: led, killed, paused, restarted by number, and gone in the end. All:
``make more-tests``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import BrokerStartError, ConfigurationError
from aioparallel.testing import LocalKafka
from aioparallel.testing.brokers import local
from tests.support.kafka.brokers import restore, until_whole
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.waiting import until

pytestmark = pytest.mark.real

ALL = frozenset({1, 2, 3})

CALLER = """
import json, sys, psutil
from aioparallel.testing import LocalKafka

kafka = LocalKafka(brokers=3)
kafka.start()
pids = [child.pid for child in psutil.Process().children(recursive=True)]
print(json.dumps({"pids": pids, "directories": [str(node.directory) for node in kafka._nodes]}), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def cluster(kafka_cluster: LocalKafka) -> Iterator[LocalKafka]:
    """The session's cluster, with all its brokers again after the test, whatever it did."""
    yield kafka_cluster
    restore(kafka_cluster)


async def until_led_without(number: int, kafka: LocalKafka, topic: str) -> float:
    """Wait until every partition has a leader, and this broker leads none."""
    count = len(await kafka.in_sync(topic))

    async def moved() -> bool:
        leaders = await kafka.leaders(topic)
        return len(leaders) == count and number not in leaders.values()

    return await until(moved, what=lambda: kafka.log_tail(10))


def produce(kafka: LocalKafka, topic: str, value: bytes) -> None:
    """One record to each of six partitions, acknowledged by all replicas in sync; once, whatever is sent anew."""
    fill(kafka.bootstrap_servers, topic, [Message(None, value, partition=partition) for partition in range(6)])


async def values(kafka: LocalKafka, topic: str) -> list[bytes]:
    """Of all records of the topic, sorted."""
    return sorted([record.value or b"" for record in await read_all(kafka.bootstrap_servers, topic)])


async def test_a_topic_is_on_all_brokers(cluster: LocalKafka) -> None:
    """A topic just made has three replicas in sync, two of which must take a record, and a leader on each broker."""
    await cluster.create_topic("everywhere", partitions=6)
    assert await cluster.in_sync("everywhere") == dict.fromkeys(range(6), ALL)
    assert set((await cluster.leaders("everywhere")).values()) == ALL
    assert [cluster.address(number) for number in cluster.numbers] == cluster.bootstrap_servers.split(",")
    assert cluster.numbers == (1, 2, 3)
    assert cluster.pids.keys() == ALL


async def test_configs_of_a_topic_go_over_the_defaults(cluster: LocalKafka) -> None:
    """``min.insync.replicas`` is 2 where nothing is said, and what a topic says where it does."""
    await cluster.create_topic("strict", configs={"min.insync.replicas": "3"})
    await cluster.create_topic("plain")
    assert await min_in_sync(cluster, "strict") == "3"
    assert await min_in_sync(cluster, "plain") == "2"


async def min_in_sync(kafka: LocalKafka, topic: str) -> str:
    async with Admin(kafka.bootstrap_servers) as admin:
        return (await admin.configs(topic))["min.insync.replicas"]


async def test_a_killed_broker_is_replaced_and_comes_back(cluster: LocalKafka) -> None:
    """After SIGKILL of one the others lead its partitions and take records; restarted, it is in sync again."""
    await cluster.create_topic("killed", partitions=6)
    produce(cluster, "killed", b"before")
    address, pid = cluster.address(2), cluster.pids[2]
    await asyncio.to_thread(cluster.kill, 2)
    await until_led_without(2, cluster, "killed")
    produce(cluster, "killed", b"between")
    await asyncio.to_thread(cluster.restart, 2)
    await until_whole(cluster, "killed")
    assert (cluster.address(2), cluster.pids[2] != pid) == (address, True)
    assert await values(cluster, "killed") == [b"before"] * 6 + [b"between"] * 6


@pytest.mark.slow
async def test_two_killed_brokers_come_back(cluster: LocalKafka) -> None:
    """After SIGKILL of two of three the last one still knows all, and with them back nothing acknowledged is lost."""
    await cluster.create_topic("majority", partitions=6)
    produce(cluster, "majority", b"before")
    for number in (1, 3):
        await asyncio.to_thread(cluster.kill, number)
    await until_led_without(1, cluster, "majority")
    await asyncio.gather(*(asyncio.to_thread(cluster.restart, number) for number in (1, 3)))
    await until_whole(cluster, "majority")
    produce(cluster, "majority", b"after")
    assert await values(cluster, "majority") == [b"after"] * 6 + [b"before"] * 6


async def test_a_hung_broker_is_replaced_and_goes_on(cluster: LocalKafka) -> None:
    """While one hangs the others soon lead its partitions; asking who leads takes no time; resumed, it is in sync."""
    await cluster.create_topic("hung", partitions=6)
    cluster.pause(3)
    began = time.monotonic()
    await cluster.leaders("hung")
    assert time.monotonic() - began < 2.0
    await until_led_without(3, cluster, "hung")
    produce(cluster, "hung", b"between")
    cluster.resume(3)
    await until_whole(cluster, "hung")
    assert await values(cluster, "hung") == [b"between"] * 6


@pytest.mark.slow
async def test_a_rolling_restart_keeps_all(cluster: LocalKafka) -> None:
    """Each broker restarted in turn, cleanly, the last one paused before: all replicas are in sync again each time."""
    await cluster.create_topic("rolling", partitions=6)
    for number in cluster.numbers:
        if number == 3:
            cluster.pause(number)
        await asyncio.to_thread(cluster.restart, number)
        await until_whole(cluster, "rolling")
        produce(cluster, "rolling", b"%d" % number)
    assert await values(cluster, "rolling") == [b"1"] * 6 + [b"2"] * 6 + [b"3"] * 6


async def test_a_broker_killed_just_now_is_not_in_sync(cluster: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was created before the controller has noticed a kill is not ready, though metadata say so."""
    await cluster.create_topic("before")

    async def created(*_: object) -> None:
        """``before`` stands already."""

    monkeypatch.setattr(local, "create_topic", created)
    monkeypatch.setattr(local, "TOPIC_TIMEOUT", 0.5)
    await asyncio.to_thread(cluster.kill, 2)
    with pytest.raises(TimeoutError, match=r"replicas of topic 'before' in sync.*; broker 2 was killed$"):
        await cluster.create_topic("before")


@pytest.mark.slow
async def test_who_is_down_is_named(cluster: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed broker cannot be paused, which is said at once; a topic that does not become ready because of killed and
    paused brokers names them, and with nobody left there is no waiting."""
    monkeypatch.setattr(local, "TOPIC_TIMEOUT", 3.0)
    await asyncio.to_thread(cluster.kill, 2)
    began = time.monotonic()
    with pytest.raises(BrokerStartError, match=r"broker 2.* was killed.*; restart it"):
        cluster.pause(2)
    assert time.monotonic() - began < 1.0
    cluster.pause(3)
    cluster.pause(3)  # again: nothing happens
    with pytest.raises(TimeoutError, match=r"'crippled'.*; broker 2 was killed, broker 3 is paused$"):
        await cluster.create_topic("crippled")
    cluster.pause(1)
    with pytest.raises(BrokerStartError, match="'nobody': broker 1 is paused, broker 2 was killed, broker 3 is paused"):
        await cluster.create_topic("nobody")


def test_brokers_are_named_by_number(cluster: LocalKafka) -> None:
    """With several brokers each call says which; one that does not exist is refused with those that do."""
    calls: list[Callable[..., object]] = [cluster.kill, cluster.restart, cluster.pause, cluster.resume, cluster.address]
    for call in calls:
        for number in (None, 0, 4):
            with pytest.raises(ConfigurationError, match=f"broker number={number}: must be one of 1, 2, 3"):
                call(number)
    with pytest.raises(ConfigurationError, match="use pids"):
        _ = cluster.pid


@pytest.mark.slow
def test_nothing_is_left_of_a_killed_caller(kafka_cluster: LocalKafka) -> None:
    """SIGKILL of the process that started three brokers: they, the controller and all data go."""
    assert kafka_cluster.pids  # so Apache Kafka can be started here
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert caller.stdout is not None
        said = json.loads(caller.stdout.readline())
        processes = [psutil.Process(pid) for pid in said["pids"]]
        directories = [Path(directory) for directory in said["directories"]]
        assert (len(processes), len(directories)) == (8, 4)  # three brokers, a controller, a guard for each
        assert all(directory.is_dir() for directory in directories)
    finally:
        caller.kill()
        caller.communicate()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    deadline = time.monotonic() + 15
    while any(directory.exists() for directory in directories):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_wrong_property_is_told_with_the_words_of_the_node_that_ended(
    kafka_cluster: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that cannot start ends the start, says why, and leaves no directory of any node."""
    assert kafka_cluster.pids
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broken = LocalKafka(brokers=3, server_properties={"num.io.threads": "many"})
    with pytest.raises(BrokerStartError, match=r"(?s)num\.io\.threads.*many|many.*num\.io\.threads"):
        broken.start()
    assert list(tmp_path.iterdir()) == []


def test_before_the_start_several_say_so_too() -> None:
    """Brokers that were not started say so, whatever they are asked; stopping them does nothing."""
    brokers = LocalKafka(brokers=3)
    brokers.stop()
    assert brokers.pids == {}
    for call in (brokers.kill, brokers.restart, brokers.pause, brokers.resume, brokers.address):
        with pytest.raises(BrokerStartError, match="not running"):
            call(1)
