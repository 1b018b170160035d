"""Starting, stopping, and what cannot be delivered."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from aioparallel.records.errors import BrokerUnreachable, ProduceFailed
from aioparallel.records.record import Outgoing, TopicPartition
from tests.support.clusters.cluster import Cluster
from tests.support.clusters.sender import Sender

pytestmark = pytest.mark.needs("producers")


async def test_it_starts_and_stops(cluster: Cluster) -> None:
    """start() and stop() return in time. stop() may be repeated, also without start()."""
    producer = cluster.producer()
    async with asyncio.timeout(cluster.timing.deadline):
        await producer.start(cluster.timing.deadline)
        await producer.stop(1.0)
        await producer.stop(1.0)
        await cluster.producer().stop(1.0)


async def test_stopping_waits_for_what_is_outstanding(cluster: Cluster, topic: str) -> None:
    """Outputs sent before stop() are written, within its timeout. A send after it fails as transient."""
    await cluster.create_topic(topic, 2)
    sender = Sender(cluster.producer())
    waiting = [sender.send(Outgoing(topic, b"%d" % number)) for number in range(500)]
    await sender.producer.stop(cluster.timing.deadline)
    assert all(future.done() and not isinstance(future.result(), ProduceFailed) for future in waiting)
    assert len(await cluster.records(topic)) == 500
    late = await sender.failed(Outgoing(topic, b"late"))
    assert late.passing
    assert "closed" in late.reason


async def test_stopping_fails_what_cannot_be_delivered(cluster: Cluster, topic: str) -> None:
    """After its timeout stop() fails the rest, and returns within another second."""
    sender = Sender(cluster.unreachable_producer(delivery_timeout=60.0))
    waiting = [sender.send(Outgoing(topic, b"value")) for _ in range(3)]
    began = monotonic()
    await sender.producer.stop(0.3)
    assert monotonic() - began < 1.5
    await asyncio.sleep(0)
    for future in waiting:
        result = future.result()
        assert isinstance(result, ProduceFailed)
        assert result.passing
        assert "closed" in result.reason
    assert sender.calls == [1, 1, 1]


async def test_an_unreachable_cluster_is_reported_in_time(cluster: Cluster, topic: str) -> None:
    """start() raises BrokerUnreachable. Outputs sent nevertheless fail after the delivery timeout, one by one."""
    sender = Sender(cluster.unreachable_producer(delivery_timeout=2.0))
    began = monotonic()
    first = sender.send(Outgoing(topic, b"value"))
    with pytest.raises(BrokerUnreachable):
        await sender.producer.start(1.0)
    second = sender.send(Outgoing(topic, b"value"))
    failure = await first
    assert not second.done()
    assert isinstance(failure, ProduceFailed)
    assert failure.passing
    assert "delivery_timeout=2 s" in failure.reason
    assert isinstance(await second, ProduceFailed)
    assert 2.9 < monotonic() - began < 20.0


async def test_partitions_are_those_that_exist(cluster: Cluster, topic: str) -> None:
    """partitions() returns those of existing topics, with or without start(), and creates none."""
    await cluster.create_topic(topic, 3)
    producer = cluster.producer()
    every = {TopicPartition(topic, number) for number in range(3)}
    for _ in range(2):
        assert await producer.partitions([topic, f"{topic}-missing"], cluster.timing.deadline) == every
        assert await producer.partitions([f"{topic}-missing"], cluster.timing.deadline) == set()


async def test_partitions_of_an_unreachable_cluster(cluster: Cluster, topic: str) -> None:
    """partitions() raises TimeoutError if no broker answers."""
    began = monotonic()
    with pytest.raises(TimeoutError):
        await cluster.unreachable_producer(delivery_timeout=60.0).partitions([topic], 0.5)
    assert monotonic() - began < 15.0


async def test_a_missing_topic_fails_alone(cluster: Cluster, topic: str) -> None:
    """Outputs for a missing topic fail within the delivery timeout, with advice. Others are not delayed, and no topic
    is created."""
    await cluster.create_topic(topic)
    sender = Sender(cluster.producer(delivery_timeout=1.0 + cluster.timing.session_timeout))
    missing = sender.send(Outgoing(f"{topic}-missing", b"value"))
    await sender.written(Outgoing(topic, b"value"))
    assert not missing.done()
    async with asyncio.timeout(cluster.timing.deadline):
        failure = await missing
    assert isinstance(failure, ProduceFailed)
    assert failure.passing
    assert "topic not found: create it" in failure.reason
    assert await sender.producer.partitions([f"{topic}-missing"], cluster.timing.deadline) == set()


async def test_a_missing_partition_fails_alone(cluster: Cluster, topic: str) -> None:
    """Outputs for a missing partition fail as well, with the number of partitions."""
    await cluster.create_topic(topic, 2)
    sender = Sender(cluster.producer(delivery_timeout=1.0 + cluster.timing.session_timeout))
    missing = sender.send(Outgoing(topic, b"value", partition=7), Outgoing(topic, b"value", partition=0))
    await sender.written(Outgoing(topic, b"value", partition=1))
    async with asyncio.timeout(cluster.timing.deadline):
        failure = await missing
    assert isinstance(failure, ProduceFailed)
    assert failure.passing
    assert failure.partition == 7
    assert "no partition 7, it has 2 (0 to 1)" in failure.reason
    assert len(await cluster.records(topic)) == 2


async def test_a_topic_may_come_late(cluster: Cluster, topic: str) -> None:
    """Outputs wait, in order, for a topic that is created meanwhile."""
    sender = Sender(cluster.producer())
    await sender.producer.start(cluster.timing.deadline)
    waiting = [sender.send(Outgoing(topic, b"%d" % number)) for number in range(5)]
    done, _ = await asyncio.wait(waiting, timeout=0.3)
    assert not done
    await cluster.create_topic(topic)
    async with asyncio.timeout(cluster.timing.deadline):
        results = await asyncio.gather(*waiting)
    assert not any(isinstance(result, ProduceFailed) for result in results)
    assert [record.value for record in await cluster.records(topic)] == [b"%d" % number for number in range(5)]
