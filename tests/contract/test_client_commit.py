"""Commits: what is stored, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster
from tests.support.clusters.member import Member
from tests.support.waiting import until

DENSE_TEXT = "".join(chr(0x0800 + number * 7919 % 0x8000) for number in range(4096))
"""4,096 characters all over U+0800..U+87FF, as dense offset maps use them."""


async def test_commits_come_back(cluster: Cluster, topic: str, member: Member) -> None:
    """committed() returns offset and metadata of the last commit, without partitions that have none."""
    await cluster.create_topic(topic, 3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    await member.join([topic])
    deadline = cluster.timing.deadline
    assert await member.client.committed([first, second, third], deadline) == {}
    for commit in ({first: Committed(5, "map", 0), second: Committed(0, "", 0)}, {first: Committed(3, "back", 0)}):
        assert await member.client.commit(commit, member.generation, deadline) == dict.fromkeys(commit)
    assert await member.client.committed([first, second, third], deadline) == {
        first: Committed(3, "back", 0),
        second: Committed(0, "", 0),
    }


async def test_text_of_every_kind_comes_back_unchanged(cluster: Cluster, topic: str, member: Member) -> None:
    """4,096 characters of U+0800..U+87FF, of three bytes each, are stored unchanged."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await member.join([topic])
    for text in (DENSE_TEXT, "a" * 4096, "\u00e9\u0000~"):
        commit = {partition: Committed(1, text, 0)}
        assert await member.client.commit(commit, member.generation, cluster.timing.deadline) == {partition: None}
        assert await member.client.committed([partition], cluster.timing.deadline) == commit


@pytest.mark.needs("metadata limit")
async def test_text_too_long_is_refused_for_its_partition(cluster: Cluster, topic: str, member: Member) -> None:
    """Metadata above the limit (4,096 UTF-16 characters) is METADATA_TOO_LARGE for that partition; the others of the
    request are stored."""
    await cluster.create_topic(topic, 3)
    ascii_, astral, fine = (TopicPartition(topic, number) for number in range(3))
    await member.join([topic])
    commit = {
        ascii_: Committed(1, "a" * 4097, 0),
        astral: Committed(2, "\U0001f600" * 2049, 0),
        fine: Committed(3, "\U0001f600" * 2048, 0),
    }
    assert await member.client.commit(commit, member.generation, cluster.timing.deadline) == {
        ascii_: CommitFault.METADATA_TOO_LARGE,
        astral: CommitFault.METADATA_TOO_LARGE,
        fine: None,
    }
    assert await member.client.committed(commit, cluster.timing.deadline) == {fine: commit[fine]}


@pytest.mark.needs("classic protocol")
async def test_an_old_generation_is_fenced(cluster: Cluster, topic: str, member: Member) -> None:
    """A commit with another generation, or of an unknown member, is FENCED and changes nothing. The current generation
    can still commit."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await member.join([topic])
    deadline = cluster.timing.deadline
    now = member.generation
    good = {partition: Committed(7, "good", 0)}
    assert await member.client.commit(good, now, deadline) == {partition: None}
    for wrong in (
        Generation(now.id - 1, now.member_id),
        Generation(now.id + 1, now.member_id),
        Generation(now.id, "?"),
    ):
        assert await member.client.commit({partition: Committed(1, "bad", 0)}, wrong, deadline) == {
            partition: CommitFault.FENCED
        }
        assert await member.client.committed([partition], deadline) == good
    good = {partition: Committed(8, "better", 0)}
    assert await member.client.commit(good, now, deadline) == {partition: None}
    assert await member.client.committed([partition], deadline) == good


async def test_commits_do_not_disturb_fetching(cluster: Cluster, topic: str, member: Member) -> None:
    """A waiting fetch continues to wait during commits."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await member.join([topic])
    member.seek_all()
    waiting = asyncio.create_task(member.fetch())
    for offset in range(5):
        commit = {partition: Committed(offset, "", 0)}
        assert await member.client.commit(commit, member.generation, cluster.timing.deadline) == {partition: None}
    assert not waiting.done()
    member.client.wake()
    assert await waiting == 0


@pytest.mark.needs("eviction")
async def test_a_fenced_member_learns_of_it_at_once_and_joins_again(
    cluster: Cluster, topic: str, group_id: str
) -> None:
    """A commit refused under the member's own generation has the effect of a refused heartbeat: all partitions are
    lost, long before the next heartbeat, and the member joins again."""
    await cluster.create_topic(topic)
    partition, deadline = TopicPartition(topic, 0), cluster.timing.deadline
    client = cluster.client(group_id, session_timeout=6, heartbeat_interval=4)
    member = Member(client, deadline)
    await member.join([topic])
    before = member.generation
    await cluster.evict(group_id, before.member_id)
    loop = asyncio.get_running_loop()
    began = loop.time()
    commit = {partition: Committed(1, "", 0)}
    assert await client.commit(commit, before, deadline) == {partition: CommitFault.FENCED}
    await until(lambda: member.heard("lost"), deadline, "the loss")
    assert loop.time() - began < 3
    await until(lambda: len(member.heard("assigned")) == 2, deadline, "the second assignment")
    assert [event.kind for event in member.events] == ["assigned", "lost", "assigned"]
    assert await client.commit(commit, member.generation, deadline) == {partition: None}
