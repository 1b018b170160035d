"""What a client knows of its cluster, and reports."""

from __future__ import annotations

from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster, Produced
from tests.support.clusters.member import Member
from tests.support.waiting import until

RECENT = 6.0
"""Seconds: of a broker that answers, with a busy machine beside it."""


async def test_answers_are_reported(cluster: Cluster, topic: str, member: Member) -> None:
    """A broker has an address, owes no answer for long, and has the time of each kind of answer. All partitions have a
    leader."""
    await cluster.create_topic(topic, 2)
    await cluster.produce(topic, [Produced(b"x")] * 5)
    await member.join([topic])
    assert member.client.since_end_seen(TopicPartition(topic, 0)) is None
    member.seek_all()
    await member.read(5)
    await until(lambda: member.client.contact().heartbeat is not None)
    contact = member.client.contact()
    assert contact.fetch is not None
    assert contact.fetch < RECENT
    assert contact.commit is None
    assert contact.leaderless == ()
    assert contact.brokers
    assert all(one.address and (one.owes or 0) < RECENT for one in contact.brokers)
    assert any(one.answered is not None and one.answered < RECENT for one in contact.brokers)


async def test_the_end_is_known_although_nothing_is_taken(cluster: Cluster, topic: str, member: Member) -> None:
    """Without a quota, nothing is fetched once there is data. Still the end of the log is reported, with its age."""
    await cluster.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, [Produced(b"x")] * 5)
    await member.join([topic])
    member.seek_all()
    await member.read(1, {partition: 1})
    assert member.client.end_offset_seen(partition) == 5
    await cluster.produce(topic, [Produced(b"x")] * 5)
    await until(lambda: member.client.end_offset_seen(partition) == 10)
    since = member.client.since_end_seen(partition)
    assert since is not None
    assert since < RECENT


async def test_nothing_is_known_before_start_and_after_stop(cluster: Cluster, group_id: str) -> None:
    """Before start and after stop there is nothing to report."""
    client = cluster.client(group_id)
    assert client.contact().fetch is None
    await client.start(cluster.timing.deadline)
    await client.stop(cluster.timing.deadline)
    assert client.since_end_seen(TopicPartition("t", 0)) is None
