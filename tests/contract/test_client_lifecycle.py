"""Starting, stopping, and finding topics."""

from __future__ import annotations

import asyncio
import re
from time import monotonic

import pytest

from aioparallel.records.errors import BrokerUnreachable
from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster, Produced
from tests.support.clusters.member import Member


async def test_a_client_starts_and_stops(cluster: Cluster, group_id: str) -> None:
    """start() and stop() return within their timeouts, and stop() may be repeated."""
    client = cluster.client(group_id)
    async with asyncio.timeout(cluster.timing.deadline):
        await client.start(cluster.timing.deadline)
        await client.stop(cluster.timing.deadline)
        await client.stop(cluster.timing.deadline)


async def test_a_client_that_never_started_can_be_stopped(cluster: Cluster, group_id: str) -> None:
    """stop() without start() returns."""
    async with asyncio.timeout(cluster.timing.deadline):
        await cluster.client(group_id).stop(cluster.timing.deadline)


async def test_an_unreachable_cluster_is_reported_in_time(cluster: Cluster, group_id: str) -> None:
    """start() at an address without a server raises BrokerUnreachable within its timeout; stop() returns."""
    client = cluster.unreachable_client(group_id)
    began = monotonic()
    with pytest.raises(BrokerUnreachable):
        await client.start(1.0)
    assert monotonic() - began < 3.0
    await client.stop(1.0)


async def test_partitions_are_those_that_exist(cluster: Cluster, topic: str, group_id: str) -> None:
    """partitions() returns every partition of existing topics, by name or by a pattern for the whole name. It leaves
    out missing topics and does not create them."""
    await cluster.create_topic(topic, 3)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    every = {TopicPartition(topic, number) for number in range(3)}
    missing = f"{topic}-missing"
    for _ in range(2):
        assert await client.partitions([topic, missing], cluster.timing.deadline) == every
        assert await client.partitions([missing], cluster.timing.deadline) == set()
        assert await client.partitions(re.compile(topic + ".*"), cluster.timing.deadline) == every
        assert await client.partitions(re.compile(topic[:-1]), cluster.timing.deadline) == set()


async def test_stop_calls_no_listener(cluster: Cluster, topic: str, member: Member) -> None:
    """The partitions of a member that is stopped are neither revoked nor lost."""
    await cluster.create_topic(topic, 2)
    await member.join([topic])
    heard = list(member.events)
    await member.client.stop(cluster.timing.deadline)
    assert member.events == heard


@pytest.mark.needs("several members")
async def test_stopping_hands_over_at_once(cluster: Cluster, topic: str, group_id: str) -> None:
    """stop() leaves the group: the next member gets everything, although the first one's session would last longer than
    the deadline."""
    await cluster.create_topic(topic, 2)
    every = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    for _ in range(2):
        client = cluster.client(group_id, session_timeout=cluster.timing.deadline * 1.4)
        member = Member(client, cluster.timing.deadline)
        await member.join([topic])
        await member.holds(every)
        await client.stop(cluster.timing.deadline)


async def test_a_fetch_that_waits_does_not_outlive_stop(cluster: Cluster, topic: str, member: Member) -> None:
    """stop() returns although a fetch waits, and the fetch ends in some way."""
    await cluster.create_topic(topic)
    await member.join([topic])
    member.seek_all()
    await cluster.produce(topic, [Produced(b"0")])
    await member.read(1)
    waiting = asyncio.create_task(member.client.fetch(dict.fromkeys(member.held, 1)))
    await member.client.end_offsets(member.held, cluster.timing.deadline)
    async with asyncio.timeout(cluster.timing.deadline):
        await member.client.stop(cluster.timing.deadline)
        member.client.wake()
        await asyncio.wait({waiting})
    assert waiting.exception() is not None or waiting.result() == []
