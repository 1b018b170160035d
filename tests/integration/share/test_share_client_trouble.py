"""Brokers of Apache Kafka that die, hang, or give up what they lead, and members of share groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from tests.support.kafka.brokers import coordinator, restore
from tests.support.kafka.share_members import (
    Delivery,
    ShareMember,
    configured,
    member_of,
    new_group,
    produce,
    share_member,
)
from tests.support.waiting import until

pytestmark = pytest.mark.real

ACCEPT = AcknowledgeType.ACCEPT
DONE, NOT_HELD, NOT_SENT, UNKNOWN = (
    Acknowledged.DONE,
    Acknowledged.NOT_HELD,
    Acknowledged.NOT_SENT,
    Acknowledged.UNKNOWN,
)


@pytest_asyncio.fixture
async def cluster(kafka_cluster: LocalKafka) -> AsyncIterator[LocalKafka]:
    """Three brokers that all run again at the end."""
    yield kafka_cluster
    await asyncio.to_thread(restore, kafka_cluster)
    await kafka_cluster.create_topic(new_group(), 3)  # all of them are in sync again


async def topic_with(kafka: LocalKafka, partitions: int, each: int) -> str:
    topic = new_group()
    await kafka.create_topic(topic, partitions)
    for partition in range(partitions):
        await produce(kafka, topic, each, partition)
    return topic


async def take_all(member: ShareMember, wanted: set[tuple[int, int]]) -> dict[tuple[int, int], Delivery]:
    """Accept what comes until all of these partitions and offsets have come."""
    found: dict[tuple[int, int], Delivery] = {}
    async with asyncio.timeout(120):
        while not wanted <= found.keys():
            some = await member.take(1, most=100)
            found |= {(one.record.partition, one.offset): one for one in some}
            await member.end(some)
    return found


@pytest.mark.slow
async def test_a_leader_dies_and_leads_again(cluster: LocalKafka) -> None:
    """What the member held there is delivered again by the next leader, also when a leader gives way to one that lives.
    Locks of other partitions are not affected."""
    topic = await topic_with(cluster, 6, 10)
    leaders = await cluster.leaders(topic)
    dead = leaders[0]
    async with member_of(cluster, topic) as member:
        some = await member.take(60)
        before = [one for one in some if one.offset < 5]
        assert set(await member.end(before)) == {DONE}
        await asyncio.to_thread(cluster.kill, dead)
        later = [one for one in some if one.offset >= 5]
        results = await member.end(later)
        lost = {
            (one.record.partition, one.offset)
            for one, result in zip(later, results, strict=True)
            if leaders[one.record.partition] == dead
        }
        for one, result in zip(later, results, strict=True):
            if leaders[one.record.partition] == dead:
                assert result in {NOT_HELD, UNKNOWN, NOT_SENT}
            else:
                assert result is DONE
        again = await take_all(member, lost)
        assert again.keys() == lost

        for partition in range(6):
            await produce(cluster, topic, 10, partition, first=10)
        some = await member.take(60)
        assert len({one.partition for one in some}) == 6
        await asyncio.to_thread(cluster.restart, dead)
        await until(lambda: moved(cluster, topic, leaders), what="the first leaders lead again")
        results = await member.end(some)
        for one, result in zip(some, results, strict=True):
            assert result is (NOT_HELD if leaders[one.record.partition] == dead else DONE), one
        moved_ones = {(one.record.partition, one.offset) for one in some if leaders[one.record.partition] == dead}
        assert (await take_all(member, moved_ones)).keys() == moved_ones


async def moved(cluster: LocalKafka, topic: str, leaders: dict[int, int]) -> bool:
    return await cluster.leaders(topic) == leaders


@pytest.mark.slow
async def test_the_coordinator_dies(cluster: LocalKafka) -> None:
    """The member finds the next one, and goes on. What it has locked elsewhere stays locked."""
    topic = await topic_with(cluster, 6, 10)
    group = await configured(cluster.bootstrap_servers, new_group(), {})
    async with share_member(cluster.bootstrap_servers, group, topic) as member:
        some = await member.take(60)
        dead = await coordinator(cluster, group)
        leaders = await cluster.leaders(topic)
        await asyncio.to_thread(cluster.kill, dead)
        results = await member.end([one for one in some if leaders[one.record.partition] != dead])
        assert set(results) == {DONE}
        async with share_member(cluster.bootstrap_servers, group, topic) as other:
            await until(lambda: other.assigned)
            await until(lambda: len(member.assigned | other.assigned) == 6)
        # The other one has left, which only the next coordinator can have told this one.
        await until(lambda: len(member.assigned) == 6)


@pytest.mark.slow
async def test_a_leader_hangs(cluster: LocalKafka) -> None:
    """Acknowledgements at the others succeed; they take half a minute if the state of the group is stored at the hung
    one. Its own partitions have another leader after a while. A stop takes no longer than it may, also while one
    hangs."""
    topic = await topic_with(cluster, 6, 10)
    leaders = await cluster.leaders(topic)
    hung = leaders[0]
    async with member_of(cluster, topic) as member:
        some = await member.take(60)
        await asyncio.to_thread(cluster.pause, hung)
        good = [one for one in some if leaders[one.record.partition] != hung]
        bad = [member.acknowledge(one, ACCEPT) for one in some if leaders[one.record.partition] == hung]
        assert set(await member.end(good)) == {DONE}
        lost = {(one.record.partition, one.offset) for one in some if leaders[one.record.partition] == hung}
        assert lost <= (await take_all(member, lost)).keys()
        assert {(await one)[0] for one in bad} <= {UNKNOWN, NOT_HELD, NOT_SENT}
        await produce(cluster, topic, 10, 0, first=10)
        last = await member.take(10)
        assert set(await member.end(last)) == {DONE}
        began = time.monotonic()
        await member.client.stop(4)
        assert time.monotonic() - began < 4.5


@pytest.mark.slow
async def test_a_stop_while_the_only_broker_hangs(mortal_kafka: LocalKafka) -> None:
    """It ends in time, and each acknowledgement has its answer."""
    topic = await topic_with(mortal_kafka, 2, 10)
    async with member_of(mortal_kafka, topic) as member:
        some = await member.take(20)
        fetching = asyncio.create_task(member.client.fetch(10))
        async with mortal_kafka.down(hang=True):
            ended = [member.acknowledge(one, ACCEPT) for one in some]
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await member.client.stop(3)
            assert time.monotonic() - began < 3.3
            assert {one.result()[0] for one in ended} <= {UNKNOWN, NOT_SENT}
            assert await fetching == []


async def test_the_only_broker_dies_and_comes_back(mortal_kafka: LocalKafka) -> None:
    """The member goes on as before. Records that it held come again, and what was done stays done."""
    topic = await topic_with(mortal_kafka, 2, 10)
    async with member_of(mortal_kafka, topic) as member:
        some = await member.take(20)
        assert set(await member.end(some[:4])) == {DONE}
        fetching = asyncio.create_task(member.take(16, most=100))
        async with mortal_kafka.down():
            ended = [member.acknowledge(one, ACCEPT) for one in some[4:8]]
            await asyncio.sleep(1)
        again = await fetching
        assert {one.offset for one in again} <= set(range(10))
        assert len({(one.partition, one.offset) for one in again}) == 16
        assert {(await one)[0] for one in ended} <= {UNKNOWN, NOT_HELD, NOT_SENT}
        assert set(await member.end(again)) == {DONE}
        assert {one.partition for one in again} <= {TopicPartition(topic, 0), TopicPartition(topic, 1)}
