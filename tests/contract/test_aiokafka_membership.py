"""Rebalances and lost sessions on Apache Kafka that need several members or private state."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.records.record import TopicPartition
from aioparallel.testing.brokers.local import LocalKafka
from tests.support.clusters.aiokafka_cluster import AiokafkaCluster, serving
from tests.support.clusters.aiokafka_member import Member, consumer_of, coordinator_of, unique
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

PATIENT = 20.0
"""A heartbeat interval (seconds) so long that no heartbeat comes in a test: what is found out, is found out without."""


@pytest_asyncio.fixture
async def kafka(local_kafka: LocalKafka) -> AsyncIterator[AiokafkaCluster]:
    """Apache Kafka."""
    async with serving(local_kafka) as opened:
        yield opened


async def test_a_forgotten_member_gets_lost_and_joins_again(kafka: AiokafkaCluster) -> None:
    """A heartbeat that is refused because the member is unknown means lost, not revoked. The next assignment
    follows."""
    topic, group = unique("topic"), unique("group")
    await kafka.create_topic(topic, 2)
    member = Member(kafka.client(group))
    await member.join(topic)
    first = member.generation
    await kafka.evict(group, first.member_id)
    await until(lambda: member.count("assigned") == 2, what="the second assignment")
    assert [name for name, _ in member.events] == ["assigned", "lost", "assigned"]
    assert member.events[1][1] == member.events[0][1]
    assert member.generation.member_id != first.member_id
    assert member.generation.id > 0


async def test_a_fenced_commit_means_lost_before_the_heartbeat(kafka: AiokafkaCluster) -> None:
    """When a commit of the current generation is refused, the session counts as lost at once."""
    topic, group = unique("topic"), unique("group")
    await kafka.create_topic(topic)
    member = Member(kafka.client(group, session_timeout=60, heartbeat_interval=PATIENT))
    await member.join(topic)
    partition = TopicPartition(topic, 0)
    await kafka.evict(group, member.generation.member_id)
    result = await member.client.commit({partition: Committed(1, "")}, member.generation, 5.0)
    assert result == {partition: CommitFault.FENCED}
    assert member.events[1:] == [("lost", frozenset({partition}))]
    await until(lambda: member.count("assigned") == 2, what="the second assignment")


async def test_a_fenced_commit_of_an_old_generation_spares_the_new_one(kafka: AiokafkaCluster) -> None:
    """A late answer for an older generation neither resets the member nor calls the listener."""
    topic = unique("topic")
    await kafka.create_topic(topic)
    member = Member(kafka.client(unique("group"), session_timeout=60, heartbeat_interval=PATIENT))
    await member.join(topic)
    partition = TopicPartition(topic, 0)
    old = Generation(member.generation.id - 1, member.generation.member_id)
    assert await member.client.commit({partition: Committed(1, "")}, old, 5.0) == {partition: CommitFault.FENCED}
    assert coordinator_of(member.client).generation == member.generation.id
    assert await member.client.commit({partition: Committed(2, "")}, member.generation, 5.0) == {partition: None}
    assert member.count("lost") == 0


async def test_a_session_lost_while_partitions_are_given_away_ends_as_revoked(kafka: AiokafkaCluster) -> None:
    """The listener never has two calls at a time, nor two for the same partitions. Late commits are fenced."""
    topic, group = unique("topic"), unique("group")
    await kafka.create_topic(topic, 2)
    first, second = Member(kafka.client(group)), Member(kafka.client(group))
    await first.join(topic)
    generation, partitions = first.generation, first.held
    results: list[object] = []

    async def evicted_meanwhile(held: frozenset[TopicPartition]) -> None:
        await kafka.evict(group, generation.member_id)
        await until(lambda: coordinator_of(first.client).generation == -1, what="the reset generation")
        results.append(await first.client.commit(dict.fromkeys(held, Committed(1, "")), generation, 5.0))

    first.on_revoked = evicted_meanwhile
    await second.join(topic)
    await until(lambda: results, what="the commit while giving away")
    first.on_revoked = None
    await until(lambda: len(first.held) == len(second.held) == 1, what="a partition for each")
    assert first.held | second.held == partitions
    assert results == [dict.fromkeys(partitions, CommitFault.FENCED)]
    assert first.count("lost") == 0
    assert not first.concurrent
    assert not second.concurrent


@pytest.mark.parametrize("event", ["assigned", "revoked", "lost"])
async def test_an_error_of_the_listener_comes_out_of_fetch(kafka: AiokafkaCluster, event: str) -> None:
    """aiokafka would only log it. Here the next fetch raises it, once."""
    topic, group = unique("topic"), unique("group")
    await kafka.create_topic(topic)
    member = Member(kafka.client(group))
    member.fail_in = event
    await member.join(topic)
    if event == "revoked":
        await Member(kafka.client(group)).join(topic)
    if event == "lost":
        await kafka.evict(group, coordinator_of(member.client).member_id)
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(120):
            await member.client.fetch({})
    member.client.wake()
    assert await member.client.fetch({}) == []


async def test_a_new_topic_of_a_pattern_revokes_what_was_held(kafka: AiokafkaCluster) -> None:
    """aiokafka drops its assignment when a topic appears. Still the right partitions are revoked, with a commit."""
    prefix, group = unique("pattern"), unique("group")
    one, two = f"{prefix}-one", f"{prefix}-two"
    await kafka.create_topic(one, 2)
    await kafka.create_topic(f"not-{one}")
    member = Member(kafka.client(group))
    results: list[object] = []

    async def commit(held: frozenset[TopicPartition]) -> None:
        results.append(await member.client.commit(dict.fromkeys(held, Committed(7, "text")), member.generation, 5.0))

    member.on_revoked = commit
    await member.client.start(5.0)
    member.client.subscribe(re.compile(f"{prefix}-(one|two)"), member)
    await until(lambda: len(member.held) == 2, what="the first topic")
    held = member.held
    await kafka.create_topic(two)
    await until(lambda: len(member.held) == 3, what="the second topic")
    assert member.held == held | {TopicPartition(two, 0)}
    assert [partitions for name, partitions in member.events if name == "revoked" and partitions] == [held]
    assert results == [dict.fromkeys(held, None)]
    assert await member.client.committed(held, 5.0) == dict.fromkeys(held, Committed(7, "text"))


async def test_asking_for_an_unknown_partition_does_not_narrow_a_pattern(kafka: AiokafkaCluster) -> None:
    """aiokafka would then request only that topic, and the group would rebalance to no partitions."""
    prefix = unique("pattern")
    await kafka.create_topic(prefix)
    member = Member(kafka.client(unique("group")))
    await member.client.start(5.0)
    member.client.subscribe(re.compile(prefix), member)
    await until(lambda: member.held, what="the assignment")
    with pytest.raises(TimeoutError, match="unknown-0"):
        await member.client.end_offsets([TopicPartition("unknown", 0)], 0.5)
    assert member.client._running is not None
    await consumer_of(member.client)._client.force_metadata_update()
    assert [name for name, _ in member.events] == ["assigned"]


async def test_a_member_that_stops_while_joining_leaves_at_once(kafka: AiokafkaCluster) -> None:
    """Its join is answered only when a slow member is ready. Neither may the group wait for it, nor it for the
    group."""
    topic, group = unique("topic"), unique("group")
    await kafka.create_topic(topic, 4)
    members = [Member(kafka.client(group, session_timeout=60.0, rebalance_timeout=50.0)) for _ in range(3)]
    stopping, slow, newcomer = members
    ready = asyncio.Event()

    async def wait(_held: frozenset[TopicPartition]) -> None:
        await ready.wait()

    await stopping.join(topic)
    await slow.join(topic)
    await until(lambda: len(stopping.held) == len(slow.held) == 2, what="two members")
    slow.on_revoked = wait
    await newcomer.client.start(5.0)
    newcomer.client.subscribe({topic}, newcomer)
    await until(lambda: not stopping.held and slow.busy, what="one joining, one giving away")
    began = time.monotonic()
    await stopping.client.stop(60.0)
    assert time.monotonic() - began < SLACK
    slow.on_revoked = None
    ready.set()
    await until(lambda: len(slow.held) == len(newcomer.held) == 2, what="a group of the two others", deadline=120.0)
