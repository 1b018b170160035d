"""Static members: two with one ``group_instance_id``, and one that restarts with its own."""

from __future__ import annotations

import pytest

from aioparallel.group.client import CommitFault, Committed
from aioparallel.persistence.transactions import NO_ANSWER, Epoch
from aioparallel.records.error_codes import RETRIABLE, ErrorCode
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster
from tests.support.clusters.member import Event, Member
from tests.support.waiting import until

pytestmark = pytest.mark.needs("static members")

LONG = 20.0
"""A heartbeat interval (seconds) so long that no heartbeat comes in a test."""
ONE = 5.0
"""Seconds for one request."""


def partitions(topic: str, count: int = 2) -> frozenset[TopicPartition]:
    """The partitions of a topic."""
    return frozenset(TopicPartition(topic, number) for number in range(count))


def static(cluster: Cluster, group_id: str, instance_id: str = "one", *, heartbeat: float | None = None) -> Member:
    """A member with this instance id, not started."""
    client = cluster.client(
        group_id,
        instance_id=instance_id,
        heartbeat_interval=heartbeat,
        session_timeout=None if heartbeat is None else 3 * heartbeat,
        rebalance_timeout=LONG,
    )
    return Member(client, cluster.timing.deadline)


async def raises_fenced(member: Member, group_id: str) -> None:
    """Its fetch raises the error."""

    async def fetch_on() -> None:
        while True:
            await member.fetch({})

    with pytest.raises(
        InstanceFenced, match=f"'{group_id}'.*'one'.*its own group_instance_id.*or stop the other one"
    ) as raised:
        await fetch_on()
    assert (raised.value.group_id, raised.value.instance_id) == (group_id, "one")


@pytest.mark.needs("classic protocol")
async def test_fenced_by_a_heartbeat(cluster: Cluster, topic: str, group_id: str) -> None:
    """The second member replaces the first one, which ends: it neither commits nor joins again."""
    await cluster.create_topic(topic, 2)
    first, second = (static(cluster, group_id) for _ in range(2))
    await first.join([topic])
    await first.holds(partitions(topic))
    await second.join([topic])
    await until(lambda: first.heard("fenced"), cluster.timing.deadline, "the end of the first")
    assert first.events[1:] == [Event("lost", partitions(topic)), Event("fenced", frozenset())]
    assert second.events == [Event("assigned", partitions(topic))]
    await raises_fenced(first, group_id)
    late, news = (
        dict.fromkeys(partitions(topic), Committed(9, "late")),
        dict.fromkeys(partitions(topic), Committed(2, "")),
    )
    results = await first.client.commit(late, first.generation, cluster.timing.deadline)
    assert results == dict.fromkeys(late, CommitFault.FENCED)
    results = await second.client.commit(news, second.generation, cluster.timing.deadline)
    assert results == dict.fromkeys(news, None)
    assert await second.client.committed(news, cluster.timing.deadline) == news
    await first.client.stop(cluster.timing.deadline)
    assert [one.heard("fenced") for one in (first, second)] == [[frozenset()], []]
    assert second.held == partitions(topic)


@pytest.mark.needs("classic protocol")
async def test_fenced_by_a_commit_at_once(cluster: Cluster, topic: str, group_id: str) -> None:
    """Without waiting for a heartbeat: when the commit is answered, the listener was called."""
    await cluster.create_topic(topic, 2)
    first, second = static(cluster, group_id, heartbeat=LONG), static(cluster, group_id)
    await first.join([topic])
    await second.join([topic])
    commit = dict.fromkeys(partitions(topic), Committed(1, ""))
    results = await first.client.commit(commit, first.generation, cluster.timing.deadline)
    assert results == dict.fromkeys(commit, CommitFault.FENCED)
    await until(lambda: first.heard("fenced"), cluster.timing.deadline, "the end of the first")
    assert first.events[1:] == [Event("lost", partitions(topic)), Event("fenced", frozenset())]
    await raises_fenced(first, group_id)
    assert second.heard("lost") == second.heard("fenced") == []


@pytest.mark.needs("classic protocol", "exactly once")
async def test_fenced_by_a_commit_in_a_transaction(cluster: Cluster, topic: str, group_id: str) -> None:
    """TxnOffsetCommit contains the instance id, and is refused because of it. The report of its caller ends the member
    at once."""
    await cluster.create_topic(topic, 2)
    first, second = static(cluster, group_id, heartbeat=LONG), static(cluster, group_id)
    producer = cluster.transactional_producer(group_id, instance_id="one")
    await first.join([topic])
    await producer.start(cluster.timing.deadline)
    producer.identify_as(f"{group_id}-one")
    await second.join([topic])
    commit = dict.fromkeys(partitions(topic), Committed(1, ""))
    epochs: list[Epoch] = []
    codes: set[int] = set()

    async def initialized() -> bool:
        found = (await producer.initialize(None, LONG, ONE)).epoch
        epochs.extend([] if found is None else [found])
        return found is not None

    async def answered() -> bool:
        answer = await producer.commit_offsets(epochs[0], commit, first.generation, ONE)
        codes.update(set(answer.values()) - RETRIABLE - {NO_ANSWER})
        return bool(codes)

    await until(initialized, cluster.timing.deadline, "the producer's epoch")
    await until(answered, cluster.timing.deadline, "the commit's answer")
    assert codes == {ErrorCode.FENCED_INSTANCE_ID}
    first.client.fenced(first.generation, instance_fenced=True)
    assert first.events[1:] == [Event("lost", partitions(topic)), Event("fenced", frozenset())]
    await producer.end(epochs[0], ONE, commit=False)
    assert await second.client.committed(commit, cluster.timing.deadline) == {}


@pytest.mark.needs("classic protocol", "several members")
async def test_fenced_by_a_join(cluster: Cluster, topic: str, group_id: str) -> None:
    """A member that gives up its partitions is fenced when it joins again, at the latest. These partitions end as
    revoked."""
    await cluster.create_topic(topic, 2)
    first, second, third = static(cluster, group_id), static(cluster, group_id), static(cluster, group_id, "other")

    async def replaced_meanwhile(gone: frozenset[TopicPartition]) -> None:
        await second.subscribe([topic])
        await until(lambda: first.heard("fenced") or second.held, cluster.timing.deadline, "the second one's join")

    first.on_revoked = replaced_meanwhile
    await first.join([topic])
    await third.subscribe([topic])
    await until(lambda: first.heard("fenced"), cluster.timing.deadline, "the end of the first")
    await until(
        lambda: second.held | third.held == partitions(topic) and second.held and third.held,
        cluster.timing.deadline,
        "a partition for each",
    )
    await until(lambda: not first.held, cluster.timing.deadline, "the end of revoked()")
    assert first.heard("revoked") == [partitions(topic)]
    assert first.heard("lost") == []
    await raises_fenced(first, group_id)
    assert second.heard("fenced") == third.heard("fenced") == []


@pytest.mark.needs("several members")
async def test_one_that_comes_back_has_its_partitions_again(cluster: Cluster, topic: str, group_id: str) -> None:
    """The former member has ended: nobody is fenced, and the other member is not disturbed."""
    await cluster.create_topic(topic, 2)
    first, again, other = static(cluster, group_id), static(cluster, group_id), static(cluster, group_id, "other")
    await first.join([topic])
    await other.join([topic])
    await until(lambda: len(first.held) == len(other.held) == 1, cluster.timing.deadline, "a partition for each")
    held, heard = set(first.held), list(other.events)
    await first.client.stop(cluster.timing.deadline)
    await again.join([topic])
    await again.holds(held)
    assert again.generation.member_id != first.generation.member_id
    commit = dict.fromkeys(held, Committed(1, ""))
    results = await again.client.commit(commit, again.generation, cluster.timing.deadline)
    assert results == dict.fromkeys(held, None)
    assert other.events == heard
    assert first.heard("fenced") == again.heard("fenced") == []


@pytest.mark.needs("classic protocol", "eviction")
async def test_a_lost_session_is_no_fenced_one(cluster: Cluster, topic: str, group_id: str) -> None:
    """The group has forgotten the member, and nobody else has its id, so it joins as a new one. A late answer for the
    former member is ignored."""
    await cluster.create_topic(topic, 2)
    member = static(cluster, group_id)
    await member.join([topic])
    before = member.generation
    await cluster.evict(group_id, before.member_id)
    await until(lambda: len(member.heard("assigned")) == 2, cluster.timing.deadline, "the next assignment")
    assert member.generation.member_id != before.member_id
    late = dict.fromkeys(partitions(topic), Committed(1, ""))
    results = await member.client.commit(late, before, cluster.timing.deadline)
    assert results == dict.fromkeys(late, CommitFault.FENCED)
    member.client.fenced(before, instance_fenced=True)
    results = await member.client.commit(late, member.generation, cluster.timing.deadline)
    assert results == dict.fromkeys(late, None)
    assert [event.kind for event in member.events] == ["assigned", "lost", "assigned"]
