"""Reading from a follower in the client's rack (KIP-392), on three brokers with the time-outs of real clusters: the
follower stands still, is restarted, the leader moves. ``make load-brokers``."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from aioparallel import Ordering, Record
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.testing import LocalKafka
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(420)]

Tell = Callable[[str], None]

FOLLOWER, LEADER = 2, 1
PARTITIONS = 4
LATER = 5.0
"""Seconds after librdkafka by which each record must have been read."""


@pytest.fixture(scope="module")
def racks() -> Iterator[LocalKafka]:
    """Broker n is in rack-n. A broker counts as alive for 9 s, and as in sync for 30 s, as by default."""
    properties = {
        "broker.session.timeout.ms": "9000",
        "broker.heartbeat.interval.ms": "2000",
        "replica.lag.time.max.ms": "30000",
        "min.insync.replicas": "1",
    }
    with LocalKafka(brokers=3, server_properties=properties) as kafka:
        yield kafka


class Librdkafka:
    """Beside it in the same run: when each value was read."""

    def __init__(self, servers: str, topic: str, rack: str) -> None:
        self.read: dict[bytes, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(servers, topic, rack))
        self._thread.start()

    def _run(self, servers: str, topic: str, rack: str) -> None:
        settings = {
            "bootstrap.servers": servers,
            "group.id": f"{topic}-librdkafka",
            "client.rack": rack,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        while not self._closing.is_set():
            for message in consumer.consume(500, 0.1):
                if not message.error():
                    self.read.setdefault(message.value(), time.monotonic())
        consumer.close()

    def close(self) -> None:
        """Leave the group."""
        self._closing.set()
        self._thread.join()


@contextlib.asynccontextmanager
async def writing(servers: str, topic: str, acks: str) -> AsyncIterator[list[bytes]]:
    """200 records a second to all partitions; what was acknowledged, in the list."""
    producer = Producer({"bootstrap.servers": servers, "acks": acks, "linger.ms": 5})
    written: list[bytes] = []

    async def write() -> None:
        number = 0
        while True:
            for _ in range(10):
                producer.produce(
                    topic,
                    b"%d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=lambda error, message: None if error else written.append(message.value()),
                )
                number += 1
            producer.poll(0)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(write())
    try:
        yield written
    finally:
        task.cancel()
        await asyncio.wait([task])
        await asyncio.to_thread(producer.flush, 30)


async def stand_still(kafka: LocalKafka) -> None:
    """The follower, for 8 s: shorter than its assignment."""
    kafka.pause(FOLLOWER)
    await asyncio.sleep(8)
    kafka.resume(FOLLOWER)


async def stand_still_for_long(kafka: LocalKafka) -> None:
    """The follower, until the cluster has counted it out."""
    kafka.pause(FOLLOWER)
    await asyncio.sleep(14)
    kafka.resume(FOLLOWER)


async def restart(kafka: LocalKafka) -> None:
    """The follower, as in a rolling restart."""
    await asyncio.to_thread(kafka.kill, FOLLOWER)
    await asyncio.sleep(3)
    await asyncio.to_thread(kafka.restart, FOLLOWER)


async def move_the_leader(kafka: LocalKafka) -> None:
    """The leader goes; one of the others leads."""
    await asyncio.to_thread(kafka.kill, LEADER)
    await asyncio.sleep(12)
    await asyncio.to_thread(kafka.restart, LEADER)


async def nothing(kafka: LocalKafka) -> None:
    """No broker is in the client's rack."""
    await asyncio.sleep(3)


async def known_to_all(servers: str, topic: str) -> bool:
    """Whether each broker has the topic: not all know it at once when it was created."""
    for server in servers.split(","):
        async with Admin(server) as admin:
            if topic not in await admin.topics():
                return False
    return True


@pytest.mark.parametrize(
    ("trouble", "rack"),
    [
        (stand_still, f"rack-{FOLLOWER}"),
        (stand_still_for_long, f"rack-{FOLLOWER}"),
        (restart, f"rack-{FOLLOWER}"),
        (move_the_leader, f"rack-{FOLLOWER}"),
        (nothing, "rack-of-nobody"),
    ],
)
async def test_reading_goes_on(
    racks: LocalKafka, tell: Tell, trouble: Callable[[LocalKafka], object], rack: str
) -> None:
    """Each record is read no later than librdkafka reads it by five seconds, and each of them once in order."""
    servers, topic = racks.bootstrap_servers, f"followed-{trouble.__name__}"
    layout = [[LEADER, FOLLOWER, 3]] * PARTITIONS
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, replica_assignment=layout)])[topic].result(30)
    await until(lambda: known_to_all(servers, topic), what="the topic at each broker")
    read: dict[bytes, float] = {}
    last = dict.fromkeys(range(PARTITIONS), -1)

    async def handle(record: Record) -> None:
        assert record.offset == last[record.partition] + 1, record
        last[record.partition] = record.offset
        read[record.value or b""] = time.monotonic()

    consumer = consumer_of(
        servers, topic, ordering=Ordering.PARTITION, client_options={"client_rack": rack}, commit_interval=0.5
    )
    # A leader that goes takes with it what only it has.
    acks = "all" if trouble is move_the_leader else "1"
    beside = Librdkafka(servers, topic, rack)
    try:
        async with consuming(consumer, handle), writing(servers, topic, acks) as written:
            await until(lambda: len(read) > 400 and len(beside.read) > 400)
            before = len(written)
            await trouble(racks)  # type: ignore[misc]
            count = len(written) + 200
            await until(lambda: len(written) > count, deadline=60)
            wanted = set(written)
            await until(lambda: wanted <= beside.read.keys(), deadline=90)
            await until(lambda: wanted <= read.keys(), deadline=90)
    finally:
        beside.close()
    behind = max(read[value] - beside.read[value] for value in wanted)
    tell(f"{len(wanted) - before} records written meanwhile; at most {behind:.1f} s behind librdkafka")
    assert behind < LATER
