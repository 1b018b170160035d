"""Membership: assignments, rebalances, lost sessions."""

from __future__ import annotations

import asyncio
import re
from typing import Literal

import pytest

from aioparallel.group.client import CommitFault, Committed
from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster, Produced
from tests.support.clusters.member import Event, Member, values
from tests.support.waiting import until

How = Literal["eager", "cooperative", "incremental"]
each_way = pytest.mark.parametrize(
    "how",
    [
        pytest.param("eager", marks=pytest.mark.needs("classic protocol")),
        pytest.param("cooperative", marks=pytest.mark.needs("cooperative")),
        pytest.param("incremental", marks=pytest.mark.needs("consumer protocol")),
    ],
)


def partitions(topic: str, count: int) -> set[TopicPartition]:
    """The partitions of a topic."""
    return {TopicPartition(topic, number) for number in range(count)}


async def test_a_member_is_assigned_everything(cluster: Cluster, topic: str, member: Member) -> None:
    """A single member gets all partitions in one call, with a generation for its commits."""
    await cluster.create_topic(topic, 4)
    await member.join([topic])
    assert member.events == [Event("assigned", frozenset(partitions(topic, 4)))]
    assert member.generation.id >= 0
    assert member.generation.member_id


@pytest.mark.needs("pattern")
async def test_a_pattern_takes_in_new_topics(cluster: Cluster, topic: str, member: Member) -> None:
    """A pattern matches whole names, also of topics created later. In the meantime, revoked() can commit the previous
    partitions."""
    results: list[object] = []

    async def commit(gone: frozenset[TopicPartition]) -> None:
        offsets = dict.fromkeys(gone, Committed(1, "on the way out"))
        results.extend((await member.client.commit(offsets, member.generation, member.deadline)).values())

    member.on_revoked = commit
    await cluster.create_topic(f"{topic}-a")
    await cluster.create_topic(f"not-{topic}-a")
    await member.join(re.compile(re.escape(topic) + "-.*"))
    await member.holds(partitions(f"{topic}-a", 1))
    await cluster.create_topic(f"{topic}-b", 2)
    await member.holds(partitions(f"{topic}-a", 1) | partitions(f"{topic}-b", 2))
    assert set(results) == ({None} if member.heard("revoked") else set())


@pytest.mark.needs("added partitions")
async def test_added_partitions_are_assigned(cluster: Cluster, topic: str, member: Member) -> None:
    """New partitions of a topic are assigned, and can be read. A partition that was revoked has no position until the
    next seek."""
    await cluster.create_topic(topic, 1)
    old, new = TopicPartition(topic, 0), TopicPartition(topic, 2)
    await member.join([topic])
    member.seek_all()
    await cluster.add_partitions(topic, 3)
    await member.holds(partitions(topic, 3))
    was_revoked = old in frozenset().union(*member.heard("revoked"))
    for partition in (old, new):
        await cluster.produce(topic, [Produced(b"new")], partition=partition.partition)
    member.client.seek(new, 0)
    await member.read(1, {old: 1, new: 1} if was_revoked else {new: 1})
    assert values(member.records[new]) == [b"new"]
    assert old not in member.records
    member.client.seek(old, 0)
    await member.read(2)


@pytest.mark.needs("several members")
@each_way
async def test_two_members_share(cluster: Cluster, topic: str, group_id: str, how: How) -> None:
    """When a second member joins, the first gives up partitions and can commit them in revoked(). Each is assigned to
    one of them, and the second sees the commit. Unless it is eager, the first keeps what stays."""
    await cluster.create_topic(topic, 4)
    every = partitions(topic, 4)
    first, second = (
        Member(cluster.client(group_id, cooperative=how == "cooperative"), cluster.timing.deadline) for _ in range(2)
    )
    results: list[object] = []

    async def commit(gone: frozenset[TopicPartition]) -> None:
        offsets = {partition: Committed(partition.partition, "handed over") for partition in gone}
        answer = await first.client.commit(offsets, first.generation, cluster.timing.deadline)
        results.extend(answer.values())

    first.on_revoked = commit
    await first.join([topic])
    await first.holds(every)
    await second.join([topic])
    await until(
        lambda: (
            len(first.held) == len(second.held) == 2
            and first.held | second.held == every
            and first.generation.id == second.generation.id
        ),
        cluster.timing.deadline,
        "two partitions each, in the same generation",
    )
    assert set(results) == {None}
    [gone] = first.heard("revoked")
    assert gone == (every if how == "eager" else second.held)
    assert first.heard("lost") == second.heard("lost") == []
    assert await second.client.committed(second.held, cluster.timing.deadline) == {
        partition: Committed(partition.partition, "handed over") for partition in second.held
    }


@pytest.mark.needs("cooperative", "several members")
async def test_kept_partitions_are_read_through_a_rebalance(cluster: Cluster, topic: str, group_id: str) -> None:
    """Cooperatively, kept partitions are fetched from their position without another seek, and committed under the
    newest generation."""
    await cluster.create_topic(topic, 2)
    first, second = (Member(cluster.client(group_id, cooperative=True), cluster.timing.deadline) for _ in range(2))
    await first.join([topic])
    for number in range(2):
        await cluster.produce(topic, [Produced(b"before")], partition=number)
    first.seek_all()
    await first.read(2)
    before = first.generation
    await second.join([topic])
    await until(lambda: len(second.held) == 1, cluster.timing.deadline, "one partition each")
    [kept] = first.held
    await cluster.produce(topic, [Produced(b"after")], partition=kept.partition)
    await first.read(3)
    assert values(first.records[kept]) == [b"before", b"after"]
    assert first.generation.id > before.id
    commit = {kept: Committed(2, "")}
    deadline = cluster.timing.deadline
    assert await first.client.commit(commit, before, deadline) == {kept: CommitFault.FENCED}
    assert await first.client.commit(commit, first.generation, deadline) == {kept: None}


@pytest.mark.needs("several members")
@each_way
async def test_leaving_gives_all_to_the_other(cluster: Cluster, topic: str, group_id: str, how: How) -> None:
    """stop() leaves the group: the other member gets everything long before a session could expire."""
    await cluster.create_topic(topic, 4)
    first, second = (
        Member(
            cluster.client(group_id, cooperative=how == "cooperative", session_timeout=cluster.timing.deadline * 1.4),
            cluster.timing.deadline,
        )
        for _ in range(2)
    )
    await first.join([topic])
    await second.join([topic])
    await until(lambda: len(second.held) == 2, cluster.timing.deadline, "two partitions each")
    await first.client.stop(cluster.timing.deadline)
    await second.holds(partitions(topic, 4))
    assert second.heard("lost") == []


@pytest.mark.needs("eviction")
@each_way
async def test_a_lost_session_is_reported_as_lost(cluster: Cluster, topic: str, group_id: str, how: How) -> None:
    """When the coordinator has forgotten the member, its commits are FENCED, lost() is called with its partitions (and
    revoked() is not), and it joins again under a new generation."""
    await cluster.create_topic(topic, 2)
    partition = TopicPartition(topic, 0)
    member = Member(cluster.client(group_id, cooperative=how == "cooperative"), cluster.timing.deadline)
    await member.join([topic])
    await member.holds(partitions(topic, 2))
    before = member.generation
    await cluster.evict(group_id, before.member_id)
    stale = {partition: Committed(1, "stale")}
    answer = await member.client.commit(stale, before, cluster.timing.deadline)
    assert answer == {partition: CommitFault.FENCED}
    await until(lambda: len(member.heard("assigned")) == 2, cluster.timing.deadline, "the next assignment")
    assert member.events[1:] == [
        Event("lost", frozenset(partitions(topic, 2))),
        Event("assigned", frozenset(partitions(topic, 2))),
    ]
    assert member.generation != before
    answer = await member.client.commit(stale, before, cluster.timing.deadline)
    assert answer[partition] in (CommitFault.FENCED, CommitFault.RETRIABLE)
    assert await member.client.committed([partition], cluster.timing.deadline) == {}


@pytest.mark.needs("eviction")
async def test_nothing_is_fetched_again_before_seek(
    cluster: Cluster, topic: str, group_id: str, member: Member
) -> None:
    """A partition that was lost and assigned again has no position until the next seek."""
    await cluster.create_topic(topic, 2)
    left, right = (TopicPartition(topic, number) for number in range(2))
    await member.join([topic])
    member.seek_all()
    await cluster.produce(topic, [Produced(b"0")], partition=0)
    await member.read(1)
    await cluster.evict(group_id, member.generation.member_id)
    await until(lambda: len(member.heard("assigned")) == 2, cluster.timing.deadline, "the next assignment")
    for number in range(2):
        await cluster.produce(topic, [Produced(b"1")], partition=number)
    member.client.seek(right, 0)
    await member.read(2)
    assert values(member.records[right]) == [b"1"]
    assert values(member.records[left]) == [b"0"]
    member.client.seek(left, 1)
    await member.read(3)
    assert values(member.records[left]) == [b"0", b"1"]


@pytest.mark.needs("classic protocol", "several members")
async def test_a_member_that_revokes_too_slowly_is_fenced(cluster: Cluster, topic: str, group_id: str) -> None:
    """revoked() may take until the rebalance timeout, with heartbeats running. A member that takes longer is removed:
    the other gets everything, and the slow one's commits are FENCED and change nothing."""
    await cluster.create_topic(topic, 2)
    every = partitions(topic, 2)
    slow, quick = (Member(cluster.client(group_id), cluster.timing.deadline) for _ in range(2))
    results: list[CommitFault | None] = []

    async def wait_too_long(gone: frozenset[TopicPartition]) -> None:
        await quick.holds(every)
        new = dict.fromkeys(every, Committed(9, "new owner"))
        await quick.client.commit(new, quick.generation, cluster.timing.deadline)
        old = dict.fromkeys(gone, Committed(1, "old owner"))
        answer = await slow.client.commit(old, slow.generation, cluster.timing.deadline)
        results.extend(answer.values())

    slow.on_revoked = wait_too_long
    await slow.join([topic])
    await slow.holds(every)
    await quick.subscribe([topic])
    await until(lambda: results, cluster.timing.deadline, "the late commit")
    assert set(results) == {CommitFault.FENCED}
    assert await quick.client.committed(every, cluster.timing.deadline) == dict.fromkeys(
        every, Committed(9, "new owner")
    )
    await until(lambda: len(slow.held) == len(quick.held) == 1, cluster.timing.deadline, "one partition each")
    assert slow.heard("lost") == []


@pytest.mark.needs("several members")
async def test_heartbeats_run_during_revoked(cluster: Cluster, topic: str, group_id: str) -> None:
    """revoked() may take longer than the session timeout, and the member is not removed."""
    await cluster.create_topic(topic, 2)
    session = cluster.timing.session_timeout
    first, second = (
        Member(cluster.client(group_id, rebalance_timeout=session * 4), cluster.timing.deadline) for _ in range(2)
    )
    results: list[object] = []

    async def drain(gone: frozenset[TopicPartition]) -> None:
        # What this waits for is time itself: more of it than a session without heartbeats lasts.
        await asyncio.sleep(session * 1.3)
        offsets = dict.fromkeys(gone, Committed(1, ""))
        answer = await first.client.commit(offsets, first.generation, cluster.timing.deadline)
        results.extend(answer.values())

    first.on_revoked = drain
    await first.join([topic])
    await second.join([topic])
    await until(lambda: second.held, cluster.timing.deadline, "a partition for the second")
    assert set(results) == {None}
    assert first.heard("lost") == []


@pytest.mark.needs("several members")
@each_way
async def test_members_come_and_go(cluster: Cluster, topic: str, group_id: str, how: How) -> None:
    """Whichever members join and leave, in the end each partition is assigned once. The members check the calls of
    their listeners: no partition twice, none of others, never two calls at a time."""
    await cluster.create_topic(topic, 6)
    every = partitions(topic, 6)
    members: list[Member] = []
    for _ in range(3):
        members.append(Member(cluster.client(group_id, cooperative=how == "cooperative"), cluster.timing.deadline))
        await members[-1].subscribe([topic])
    await members[0].client.stop(cluster.timing.deadline)
    staying = members[1:]
    await until(
        lambda: (
            [len(member.held) for member in staying] == [3, 3]
            and set().union(*(member.held for member in staying)) == every
        ),
        cluster.timing.deadline,
        "three partitions each",
    )
