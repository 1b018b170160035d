"""The new consumer group protocol (KIP-848): what the listener hears, and what is committed, while partitions move."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster, Produced
from tests.support.clusters.member import Event, Member, values
from tests.support.waiting import until

pytestmark = pytest.mark.needs("consumer protocol")


def partitions(topic: str, count: int) -> set[TopicPartition]:
    """The partitions of a topic."""
    return {TopicPartition(topic, number) for number in range(count)}


def member_of(
    cluster: Cluster, group_id: str, *, rebalance: float | None = None, instance: str | None = None
) -> Member:
    """A member, not started. Its rebalance timeout is the deadline, if not given."""
    timing = cluster.timing
    client = cluster.client(group_id, rebalance_timeout=rebalance or timing.deadline, instance_id=instance)
    return Member(client, timing.deadline)


async def commit(member: Member, place: TopicPartition, offset: int, generation: Generation | None = None) -> object:
    """One commit of one partition; its fault, or None."""
    asked = {place: Committed(offset, "")}
    results = await member.client.commit(asked, generation or member.generation, member.deadline)
    return results[place]


async def commits(member: Member, place: TopicPartition, offset: int) -> None:
    """Commit as often as it is RETRIABLE."""

    async def taken() -> bool:
        fault = await commit(member, place, offset)
        assert fault in (None, CommitFault.RETRIABLE)
        return fault is None

    await until(taken, member.deadline, f"a commit of {place}")


async def share(members: Sequence[Member], every: set[TopicPartition]) -> None:
    """Wait until each has as many of these partitions, and none has others."""
    await until(
        lambda: (
            {len(one.held) for one in members} == {len(every) // len(members)}
            and set[TopicPartition]().union(*(one.held for one in members)) == every
        ),
        members[0].deadline,
        "as many partitions each",
    )


class Held:
    """A ``revoked`` that returns when the test says so."""

    def __init__(self, member: Member) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.release = asyncio.Event()
        member.on_revoked = self._hold

    async def _hold(self, gone: frozenset[TopicPartition]) -> None:
        self.partitions = gone
        await self.release.wait()


async def test_only_what_goes_is_revoked(cluster: Cluster, topic: str, group_id: str) -> None:
    """Each rebalance takes from each member what it must give up, and nothing else."""
    await cluster.create_topic(topic, 6)
    members = [member_of(cluster, group_id) for _ in range(3)]
    for count, member in enumerate(members, 1):
        await member.subscribe([topic])
        await share(members[:count], partitions(topic, 6))
    assert [len(gone) for gone in members[0].heard("revoked")] == [3, 1]
    assert [len(gone) for gone in members[1].heard("revoked")] == [1]
    assert [one.heard("lost") for one in members] == [[], [], []]
    assert members[2].heard("revoked") == []


async def test_the_others_are_read_and_committed_meanwhile(cluster: Cluster, topic: str, group_id: str) -> None:
    """While ``revoked`` runs, what is kept is fetched and committed. Afterwards it goes on from the same position, and
    is committed with the new epoch."""
    await cluster.create_topic(topic, 2)
    first, second = (member_of(cluster, group_id) for _ in range(2))
    held = Held(first)
    await first.join([topic])
    await first.holds(partitions(topic, 2))
    before = first.generation
    for number in range(2):
        await cluster.produce(topic, [Produced(b"before")], partition=number)
    first.seek_all()
    await first.read(2)
    await second.subscribe([topic])
    await until(lambda: held.partitions, cluster.timing.deadline, "the rebalance")
    [gone], [kept] = held.partitions, partitions(topic, 2) - held.partitions
    await cluster.produce(topic, [Produced(b"meanwhile")], partition=kept.partition)
    await first.read(3, {kept: 10})
    await commits(first, kept, 2)
    await commits(first, gone, 1)
    assert not second.held
    held.release.set()
    await second.holds({gone})
    await until(lambda: first.generation.id > before.id, cluster.timing.deadline, "the new epoch")
    await cluster.produce(topic, [Produced(b"after")], partition=kept.partition)
    await first.read(4, {kept: 10})
    assert values(first.records[kept]) == [b"before", b"meanwhile", b"after"]
    await commits(first, kept, 3)
    found = await second.client.committed([gone, kept], cluster.timing.deadline)
    assert {place: one.offset for place, one in found.items()} == {gone: 1, kept: 3}


async def test_a_given_away_partition_has_no_position(cluster: Cluster, topic: str, group_id: str) -> None:
    """As soon as ``revoked`` is called, nothing more is fetched of it, whatever the quota."""
    await cluster.create_topic(topic, 2)
    first, second = (member_of(cluster, group_id) for _ in range(2))
    held = Held(first)
    await first.join([topic])
    await first.holds(partitions(topic, 2))
    first.seek_all()
    await second.subscribe([topic])
    await until(lambda: held.partitions, cluster.timing.deadline, "the rebalance")
    for number in range(2):
        await cluster.produce(topic, [Produced(b"new")], partition=number)
    await first.read(1, dict.fromkeys(partitions(topic, 2), 10))
    held.release.set()
    [gone] = held.partitions
    await second.holds({gone})
    second.seek_all()
    await second.read(1)
    assert first.records.keys() == partitions(topic, 2) - {gone}


async def test_an_old_epoch_is_never_fenced_for_good(cluster: Cluster, topic: str, group_id: str) -> None:
    """A commit with an older epoch of this member is accepted (KIP-1251) or RETRIABLE, and takes nothing from it. One
    of an unknown member is FENCED."""
    await cluster.create_topic(topic, 2)
    first, second = (member_of(cluster, group_id) for _ in range(2))
    await first.join([topic])
    before = first.generation
    await second.subscribe([topic])
    await until(lambda: second.held, cluster.timing.deadline, "a partition for the second")
    await until(lambda: first.generation.id > before.id, cluster.timing.deadline, "the new epoch")
    [kept], [gone] = first.held, second.held
    assert await commit(first, kept, 1, before) in (None, CommitFault.RETRIABLE)
    assert await commit(first, gone, 1, before) is CommitFault.RETRIABLE
    assert await commit(first, kept, 1, Generation(before.id, "nobody")) is CommitFault.FENCED
    await commits(first, kept, 2)
    assert first.heard("lost") == []
    assert gone not in await first.client.committed([gone], cluster.timing.deadline)


async def test_a_slow_revoked_delays_only_what_moves(cluster: Cluster, topic: str, group_id: str) -> None:
    """A third member gets what the quick one gives up, while the slow one still holds its own."""
    await cluster.create_topic(topic, 6)
    slow, quick, third = (member_of(cluster, group_id) for _ in range(3))
    await slow.join([topic])
    await quick.subscribe([topic])
    await share([slow, quick], partitions(topic, 6))
    held = Held(slow)
    await third.subscribe([topic])
    await until(lambda: held.partitions and len(third.held) == 1, cluster.timing.deadline, "what the quick one gave up")
    assert third.held.isdisjoint(held.partitions)
    [mine] = third.held
    await commits(third, mine, 1)
    for place in sorted(quick.held):
        await commits(quick, place, 1)
    held.release.set()
    await third.holds({mine} | held.partitions)
    assert slow.heard("lost") == quick.heard("lost") == []


async def test_one_that_revokes_too_slowly_is_removed(cluster: Cluster, topic: str, group_id: str) -> None:
    """After the rebalance timeout the other one gets everything. What the slow one has kept is lost, and what it still
    gives away it cannot commit. Then it joins again; nothing that it still gives away is added."""
    await cluster.create_topic(topic, 2)
    timing = cluster.timing
    slow, quick = member_of(cluster, group_id, rebalance=timing.rebalance_timeout), member_of(cluster, group_id)
    held = Held(slow)
    await slow.join([topic])
    await slow.holds(partitions(topic, 2))
    await quick.subscribe([topic])
    await until(lambda: held.partitions, timing.deadline, "the rebalance")
    [gone], before = held.partitions, slow.generation
    await until(lambda: slow.heard("lost"), timing.deadline, "the loss")
    assert slow.heard("lost") == [frozenset(partitions(topic, 2) - {gone})]
    await until(lambda: gone in quick.held, timing.deadline, "the partition for the quick one")
    await commits(quick, gone, 9)
    assert await commit(slow, gone, 1, before) is not None
    assert gone in slow.held
    held.release.set()
    await share([slow, quick], partitions(topic, 2))
    assert (await quick.client.committed([gone], timing.deadline))[gone].offset == 9


@pytest.mark.needs("eviction")
async def test_lost_while_others_are_given_away(cluster: Cluster, topic: str, group_id: str) -> None:
    """The member is forgotten while ``revoked`` runs: the rest is lost at once, that one goes on, and the member joins
    again under the same id."""
    await cluster.create_topic(topic, 2)
    first, second = (member_of(cluster, group_id) for _ in range(2))
    held = Held(first)
    await first.join([topic])
    await first.holds(partitions(topic, 2))
    await second.subscribe([topic])
    await until(lambda: held.partitions, cluster.timing.deadline, "the rebalance")
    before = first.generation
    await cluster.evict(group_id, before.member_id)
    await until(lambda: first.heard("lost"), cluster.timing.deadline, "the loss")
    assert first.held == held.partitions
    await until(lambda: first.generation.id > before.id, cluster.timing.deadline, "the next epoch")
    assert first.generation.member_id == before.member_id
    assert first.held == held.partitions
    held.release.set()
    await share([first, second], partitions(topic, 2))

    async def each_commits() -> bool:
        # Brokers before Kafka 4.3 may move partitions once more.
        faults = [await commit(one, place, 1) for one in (first, second) for place in tuple(one.held)]
        return faults == [None, None]

    await until(each_commits, cluster.timing.deadline, "a commit of each partition")


@pytest.mark.needs("eviction")
async def test_lost_and_joined_again(cluster: Cluster, topic: str, group_id: str, member: Member) -> None:
    """A forgotten member hears that all is lost, and gets it again in a later epoch."""
    await cluster.create_topic(topic, 2)
    await member.join([topic])
    before = member.generation
    await cluster.evict(group_id, before.member_id)
    every = frozenset(partitions(topic, 2))
    await until(lambda: Event("assigned", every) in member.events[1:], cluster.timing.deadline, "the next assignment")
    assert [event for event in member.events if event.partitions] == [
        Event("assigned", every),
        Event("lost", every),
        Event("assigned", every),
    ]
    assert member.generation.id > before.id
    assert member.generation.member_id == before.member_id


async def test_reported_as_fenced(cluster: Cluster, topic: str, group_id: str, member: Member) -> None:
    """A report that another request was fenced in the current epoch lets the member join again, if the coordinator does
    not know a later one: all is lost and assigned anew. A report about an older generation changes nothing."""
    await cluster.create_topic(topic, 2)
    every = frozenset(partitions(topic, 2))
    await member.join([topic])
    await member.holds(every)
    member.client.fenced(Generation(member.generation.id - 1, member.generation.member_id))
    member.client.fenced(member.generation)
    await until(lambda: len(member.heard("lost")) == 1, cluster.timing.deadline, "the loss")
    await member.holds(every)
    await commits(member, TopicPartition(topic, 0), 1)
    assert member.heard("lost") == [every]


@pytest.mark.needs("static members")
async def test_a_static_member_returns_without_a_rebalance(cluster: Cluster, topic: str, group_id: str) -> None:
    """It has the partitions that it had, and can commit; the other one hears nothing."""
    await cluster.create_topic(topic, 2)
    first, again = (member_of(cluster, group_id, instance="one") for _ in range(2))
    other = member_of(cluster, group_id, instance="two")
    await first.join([topic])
    await other.subscribe([topic])
    await until(lambda: len(first.held) == len(other.held) == 1, cluster.timing.deadline, "one partition each")
    had, heard = set(first.held), [event for event in other.events if event.partitions]
    await first.client.stop(cluster.timing.deadline)
    await again.join([topic])
    await again.holds(had)
    for place in had:
        await commits(again, place, 1)
    assert [event for event in other.events if event.partitions] == heard


@pytest.mark.needs("static members")
async def test_an_instance_id_that_is_in_use(cluster: Cluster, topic: str, group_id: str) -> None:
    """A second process with the same ``group_instance_id`` fails, and the first goes on."""
    await cluster.create_topic(topic, 2)
    first, second = (member_of(cluster, group_id, instance="one") for _ in range(2))
    await first.join([topic])
    await first.holds(partitions(topic, 2))
    await second.subscribe([topic])

    async def fetch_on() -> None:
        while True:
            await second.fetch({})

    with pytest.raises(ClientError, match=f"'{group_id}'.*'one'.*its own group_instance_id"):
        await fetch_on()
    await second.client.stop(cluster.timing.deadline)
    await commits(first, TopicPartition(topic, 0), 1)
    assert second.events == []
    assert [event.kind for event in first.events if event.partitions] == ["assigned"]


async def test_leaving_releases_at_once(cluster: Cluster, topic: str, group_id: str) -> None:
    """Long before the session could end, even in the middle of ``revoked``."""
    await cluster.create_topic(topic, 2)
    deadline = cluster.timing.deadline
    first, second = (
        Member(cluster.client(group_id, session_timeout=deadline * 1.4, rebalance_timeout=deadline * 1.4), deadline)
        for _ in range(2)
    )
    held = Held(first)
    await first.join([topic])
    await first.holds(partitions(topic, 2))
    await second.subscribe([topic])
    await until(lambda: held.partitions, deadline, "the rebalance")
    await first.client.stop(deadline)
    await second.holds(partitions(topic, 2))
    assert second.heard("lost") == second.heard("revoked") == []


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 20])
async def test_stopped_at_any_moment(cluster: Cluster, topic: str, group_id: str, turns: int) -> None:
    """While it joins, gives up, or gets more: another member gets everything, and the listener hears no more."""
    await cluster.create_topic(topic, 4)
    first, second = (member_of(cluster, group_id) for _ in range(2))
    await first.join([topic])
    await second.subscribe([topic])
    for _ in range(turns):
        await asyncio.sleep(0)
    await second.client.stop(cluster.timing.deadline)
    heard = list(second.events)
    await first.holds(partitions(topic, 4))
    await commits(first, TopicPartition(topic, 0), 1)
    assert second.events == heard
    assert first.heard("lost") == []
