"""A real cluster comes back with all brokers at other ports, or as another cluster at the same one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from aioparallel import ClusterChanged, Outgoing, Record, Transactions
from aioparallel.clients import AiokafkaClient, AiokafkaProducer
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.group.client import Span
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Produced, TopicPartition
from aioparallel.spark.group_offsets import GroupCommitter
from aioparallel.testing import LocalKafka
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import fill_numbered, number_of
from tests.support.kafka.moving import another_cluster, come_back, stop_all
from tests.support.kafka.reading import check_numbers, committed, read_all
from tests.support.network import network_to
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

WITHIN = 10.0
"""Seconds after the cluster is back, for what depends on nothing else."""
KEYS = 50
QUERY = uuid.UUID(int=1)

Result = Sequence[Produced] | ProduceFailed


@pytest.fixture(scope="module")
def moving() -> Iterator[LocalKafka]:
    """A broker of this module's own."""
    with LocalKafka(compile_once=True) as kafka:
        yield kafka


@contextlib.asynccontextmanager
async def producing(servers: str) -> AsyncIterator[AiokafkaProducer]:
    """The one for outputs, by itself."""
    producer = AiokafkaProducer(servers, delivery_timeout=120, consumer_options={}, producer_options={})
    try:
        yield producer
    finally:
        await producer.stop(1.0)


class Feed:
    """Numbered records for a topic, some each moment, until :meth:`end`."""

    def __init__(self, producer: AiokafkaProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._task = asyncio.create_task(self._run())
        self.count = 0
        self.results: list[Result] = []

    async def _run(self) -> None:
        while True:
            for _ in range(20):
                output = Outgoing(self._topic, b"%d " % self.count, b"k%d" % (self.count % KEYS))
                self._producer.send([output], self.results.append)
                self.count += 1
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        """No more of them; each is acknowledged."""
        self._task.cancel()
        await until(lambda: len(self.results) == self.count, what=lambda: f"{len(self.results)} of {self.count}")
        assert not [one for one in self.results if isinstance(one, ProduceFailed)][:1]


@pytest.mark.slow
async def test_all_brokers_come_back_at_other_ports(moving: LocalKafka) -> None:
    """Under load: consumers (with transactions, too), a producer by itself, an admin, a reader beside the group and
    Spark's listener go on by themselves within seconds, by the address that was configured. Nothing is lost, nothing is
    out of order, and with transactions nothing is there twice."""
    topic, plain, exact, old = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("in", "plain", "exact", "old"))
    for name in (topic, plain, exact, old):
        await moving.create_topic(name, 2)
    await asyncio.to_thread(fill_numbered, moving.bootstrap_servers, old, 2_000, KEYS, 1_000)
    groups, done = [f"group-{uuid.uuid4().hex}" for _ in range(2)], [set[int](), set[int]()]

    def handler(number: int, target: str) -> object:
        async def handle(record: Record) -> Outgoing:
            await asyncio.sleep(0.01)
            done[number].add(number_of(record))
            return Outgoing(target, record.value, record.key)

        return handle

    async with contextlib.AsyncExitStack() as stack:
        network = await stack.enter_async_context(network_to(moving._broker(1).port))
        servers = network.address
        consumers = [
            consumer_of(servers, topic, group_id=groups[0]),
            consumer_of(servers, topic, group_id=groups[1], commits=Transactions(id_prefix=f"tx-{topic}")),
        ]
        producer = await stack.enter_async_context(producing(servers))
        admin = await stack.enter_async_context(Admin(servers))
        beside = AiokafkaClient(servers, f"beside-{topic}")
        await beside.start(30)
        stack.push_async_callback(beside.stop, 5.0)
        reading = beside.read({TopicPartition(old, number): Span(0, 700) for number in range(2)})
        read = len((await anext(reading)).records)
        spark = GroupCommitter(servers, {}, interval=0.2)
        stack.callback(spark.close, 5.0)
        spark.offer(f"lag-{topic}", QUERY, {TopicPartition(topic, 0): 1})
        feed = Feed(producer, topic)
        for consumer, handle in zip(consumers, (handler(0, plain), handler(1, exact)), strict=True):
            await stack.enter_async_context(consuming(consumer, handle))  # type: ignore[arg-type]
        await until(lambda: min(map(len, done)) > 500)
        await until(lambda: feed.count > 1_500)

        await asyncio.to_thread(stop_all, moving)
        before = moving.bootstrap_servers
        lost_at = feed.count
        await until(lambda: feed.count > lost_at + 500)  # all of this waits
        spark.offer(f"lag-{topic}", QUERY, {TopicPartition(topic, 0): 7})
        await asyncio.to_thread(come_back, moving)
        assert moving.bootstrap_servers != before
        network.target = moving._broker(1).port
        began, sent, handled = time.monotonic(), len(feed.results), [max(one, default=0) for one in done]

        def goes_on() -> bool:
            return len(feed.results) > sent and all(
                max(one) > lost_at and max(one) > before for one, before in zip(done, handled, strict=True)
            )

        await until(goes_on, WITHIN + SLACK)
        took = time.monotonic() - began
        assert topic in await admin.topics()
        async for fetched in reading:
            read += len(fetched.records)
        assert read == 1_400
        await feed.end()
        await until(lambda: min(map(len, done)) == feed.count, what=lambda: f"{[len(one) for one in done]}")
        assert (await committed(moving.bootstrap_servers, f"lag-{topic}"))[0].offset == 7
        assert all(not consumer.health().problems for consumer in consumers)
    assert took < WITHIN + SLACK, f"{took:.1f} s"
    numbers = range(feed.count)
    check_numbers(await read_all(moving.bootstrap_servers, plain), numbers, None)
    check_numbers(await read_all(moving.bootstrap_servers, exact, is_committed=True), numbers)


@pytest.mark.slow
async def test_another_cluster_is_left_alone(
    moving: LocalKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the very port, with topics of the same names: the run ends with an error that names both ids; outputs that
    wait fail, as what passes; an admin and a reader say the same; Spark's listener refuses. Nothing is written there,
    nor committed."""
    topic, out, group, lag = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("in", "out", "group", "lag"))
    servers, port = moving.bootstrap_servers, moving._broker(1).port
    for name in (topic, out):
        await moving.create_topic(name, 1)
    await asyncio.to_thread(fill_numbered, servers, topic, 100, KEYS)
    results: list[Result] = []

    async def handle(record: Record) -> Outgoing:
        return Outgoing(out, record.value, record.key)

    consumer = consumer_of(servers, topic, group_id=group)
    async with contextlib.AsyncExitStack() as stack:
        producer = await stack.enter_async_context(producing(servers))
        producer.send([Outgoing(out, b"-1 ", b"by itself")], results.append)
        admin = await stack.enter_async_context(Admin(servers, timeout=WITHIN + SLACK))
        beside = AiokafkaClient(servers, f"beside-{topic}")
        await beside.start(30)
        stack.push_async_callback(beside.stop, 5.0)
        await beside.partitions([topic], 30)
        reading = beside.read({TopicPartition(topic, 0): Span(0, 100)})
        spark = GroupCommitter(servers, {}, interval=0.2)
        stack.callback(spark.close, 5.0)
        spark.offer(lag, QUERY, {TopicPartition(topic, 0): 1})
        await stack.enter_async_context(consumer)
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: results)
        await until(lambda: consumer.stats().succeeded == 100)

        async def is_committed() -> bool:
            return bool(await committed(servers, lag))

        await until(is_committed)
        await asyncio.to_thread(stop_all, moving)
        producer.send([Outgoing(out, b"-2 ", b"by itself")], results.append)
        # Nobody here looks before it is there with all its topics.
        other = stack.enter_context(another_cluster(monkeypatch, port))
        creating = threading.Thread(target=lambda: asyncio.run(create(other, topic, out)))
        creating.start()
        creating.join()
        began = time.monotonic()
        with pytest.raises(ClusterChanged) as ended:
            await asyncio.wait_for(running, WITHIN + SLACK)
        took = time.monotonic() - began
        assert ended.value.before != ended.value.found
        assert all(repr(one) in str(ended.value) for one in (ended.value.before, ended.value.found))
        await until(lambda: len(results) == 2, WITHIN + SLACK)
        assert isinstance(results[1], ProduceFailed)
        assert results[1].passing
        assert "another Kafka cluster" in str(results[1])
        assert "another Kafka cluster" in producer.problems()[0].message
        with pytest.raises(ClusterChanged):
            await admin.topics()
        with pytest.raises(ClusterChanged):
            await anext(reading)
        spark.offer(lag, QUERY, {TopicPartition(topic, 0): 2})
        await until(lambda: [one for one in caplog.messages if one.startswith("Spark's offsets are not committed")])
        assert await committed(servers, lag) == {}
        assert await committed(servers, group) == {}
        assert await read_all(servers, out) == []
    assert took < WITHIN + SLACK, f"{took:.1f} s"


async def create(kafka: LocalKafka, *topics: str) -> None:
    """With one partition each."""
    for topic in topics:
        await kafka.create_topic(topic, 1)
