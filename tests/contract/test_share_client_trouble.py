"""What every client of share groups promises when its cluster is in trouble."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.errors import BrokerUnreachable, ClientError, NotAuthorized
from aioparallel.records.record import TopicPartition
from tests.support.clusters.share_cluster import TroubledCluster
from tests.support.clusters.share_member import ShareMember
from tests.support.clusters.share_steps import configured, filled, joined, numbered
from tests.support.waiting import until

ACCEPT = AcknowledgeType.ACCEPT
DONE, NOT_HELD, NOT_SENT = Acknowledged.DONE, Acknowledged.NOT_HELD, Acknowledged.NOT_SENT
UNKNOWN = Acknowledged.UNKNOWN


def cut_off_for_a_moment(shared: TroubledCluster) -> None:
    shared.cut_off()
    shared.reconnect()


@pytest.mark.needs("no share groups")
async def test_a_cluster_without_share_groups(shared: TroubledCluster, group_id: str) -> None:
    """start() raises ClientError that says so."""
    shared.without_share_groups()
    client = shared.client(group_id)
    with pytest.raises(ClientError, match="share"):
        await client.start(shared.timing.deadline)
    await client.stop(1.0)


@pytest.mark.needs("denial")
async def test_a_group_that_is_denied(shared: TroubledCluster, group_id: str) -> None:
    """start() raises NotAuthorized."""
    shared.deny_group(group_id)
    client = shared.client(group_id)
    with pytest.raises(NotAuthorized, match=group_id):
        await client.start(shared.timing.deadline)
    await client.stop(1.0)


@pytest.mark.needs("denial")
async def test_a_group_that_is_denied_later(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """fetch() raises NotAuthorized."""
    await filled(shared, topic, group_id, 1)
    member = await joined(shared, topic, group_id)
    await member.take(1)
    waiting = asyncio.create_task(member.fetch())
    shared.deny_group(group_id)
    with pytest.raises(NotAuthorized, match=group_id):
        await waiting


@pytest.mark.needs("denial")
async def test_a_topic_that_is_denied(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """fetch() raises NotAuthorized, which names it."""
    await filled(shared, topic, group_id, 2)
    member = await joined(shared, topic, group_id)
    await member.take(1, 1)
    shared.deny_topic(topic)
    with pytest.raises(NotAuthorized, match=topic):
        await member.fetch()


@pytest.mark.needs("group types")
async def test_a_group_that_becomes_another_type(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """fetch() raises ClientError."""
    await filled(shared, topic, group_id, 0)
    member = await joined(shared, topic, group_id)
    waiting = asyncio.create_task(member.fetch())
    await shared.replace_group(group_id, topic)
    with pytest.raises(ClientError, match=group_id):
        await waiting


@pytest.mark.needs("silence")
async def test_start_is_over_in_time(shared: TroubledCluster, group_id: str) -> None:
    """Although the cluster answers nothing. So is stop()."""
    shared.silence()
    client = shared.client(group_id)
    time = asyncio.get_running_loop().time
    began = time()
    with pytest.raises(BrokerUnreachable):
        await client.start(1.0)
    await client.stop(1.0)
    assert time() - began < 4.0


@pytest.mark.needs("silence")
async def test_all_calls_are_over_in_time(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """Although the cluster answers nothing any more. Acknowledgements are answered before stop() returns."""
    await filled(shared, topic, group_id, 3)
    member = await joined(shared, topic, group_id)
    taken = await member.take(3)
    shared.silence()
    answers = member.acknowledge(taken[:1], ACCEPT)
    time = asyncio.get_running_loop().time
    began = time()
    with pytest.raises(TimeoutError):
        await member.client.partitions([topic], 0.2)
    answers += member.acknowledge(taken[1:2], ACCEPT)
    await member.client.stop(0.5)
    assert time() - began < 3.0
    assert [answer.outcome for answer in answers] in ([UNKNOWN, NOT_SENT], [UNKNOWN, UNKNOWN])


@pytest.mark.needs("lost answers")
async def test_an_answer_that_is_lost(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """The acknowledgement ends as UNKNOWN. What was not carried out comes again."""
    await filled(shared, topic, group_id, 3)
    member = await joined(shared, topic, group_id)
    one, two, three = await member.take(3)
    shared.lose_answer()
    assert await member.settle([one], ACCEPT) == [UNKNOWN]
    again = await member.take(2)
    assert [(each.record.offset, each.times) for each in again] == [(1, 2), (2, 2)]
    assert await member.settle(again, ACCEPT) == [DONE] * 2
    assert await member.settle([two, three], ACCEPT) == [NOT_HELD] * 2


@pytest.mark.needs("cut")
async def test_a_leader_that_cannot_be_reached(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """Until the locks end: NOT_SENT."""
    await filled(shared, topic, group_id, 2)
    member = await joined(shared, topic, group_id)
    taken = await member.take(2)
    shared.cut_off()
    assert await member.settle(taken, ACCEPT) == [NOT_SENT] * 2
    shared.reconnect()
    assert [each.times for each in await member.take(2)] == [2, 2]


@pytest.mark.needs("cut", "eviction", "nodes", "lost answers")
@pytest.mark.parametrize("trouble", ["cut", "expel", "forget", "move", "lose", "nothing"])
async def test_temporary_trouble_is_not_raised(
    shared: TroubledCluster, topic: str, group_id: str, trouble: str
) -> None:
    """Every record is accepted in the end, and every acknowledgement is answered once. What is not DONE comes again,
    but for what is UNKNOWN."""
    await shared.create_topic(topic, 2)
    await configured(shared, group_id, delivery_count_limit=10)
    member = await joined(shared, topic, group_id, 2)
    ways: dict[str, Callable[[], None]] = {
        "cut": lambda: cut_off_for_a_moment(shared),
        "expel": lambda: shared.expel(group_id),
        "forget": lambda: shared.forget_sessions(group_id),
        "move": lambda: shared.move_leader(topic),
        "lose": shared.lose_answer,
        "nothing": lambda: None,
    }
    outcomes: dict[tuple[TopicPartition, int], list[Acknowledged]] = {}
    for number in range(6):
        for partition in range(2):
            await shared.produce(topic, numbered(4, number * 4), partition)
        taken = await member.fetch(5)
        ways[trouble]()
        for each, outcome in zip(taken, await member.settle(taken, ACCEPT), strict=True):
            outcomes.setdefault((each.partition, each.record.offset), []).append(outcome)

    def left() -> int:
        return 48 - sum(1 for found in outcomes.values() if DONE in found or UNKNOWN in found)

    while left():
        taken = await member.fetch(5)
        for each, outcome in zip(taken, await member.settle(taken, ACCEPT), strict=True):
            outcomes.setdefault((each.partition, each.record.offset), []).append(outcome)
    assert all(found.count(DONE) <= 1 for found in outcomes.values())
    if trouble in ("forget", "expel", "nothing"):
        assert Counter(outcome for found in outcomes.values() for outcome in found) == {DONE: 48}


@pytest.mark.needs("eviction")
async def test_a_member_that_was_removed_joins_again(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """It hears that it has nothing, and then of its new assignment."""
    await filled(shared, topic, group_id, 0)
    member = await joined(shared, topic, group_id, 1)
    heard: list[bool] = []
    member.hears = lambda partitions: heard.append(bool(partitions))
    shared.expel(group_id)
    await until(lambda: heard == [False, True], shared.timing.deadline, lambda: f"gone and back: {heard}")


@pytest.mark.needs("nodes")
async def test_a_leader_that_moves(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """Its locks are lost: acknowledgements are NOT_HELD, and the records come again."""
    await filled(shared, topic, group_id, 3)
    member = await joined(shared, topic, group_id)
    taken = await member.take(3)
    shared.move_leader(topic)
    assert await member.settle(taken, ACCEPT) == [NOT_HELD] * 3
    again = await member.take(3)
    assert await member.settle(again, ACCEPT) == [DONE] * 3


@pytest.mark.needs("damage")
async def test_unreadable_records_are_reported(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """With their offsets. The member acknowledges each of them."""
    await filled(shared, topic, group_id, 6)
    shared.corrupt(topic, 2, 5)
    member = await joined(shared, topic, group_id)
    taken = await member.take(3)
    assert [each.record.offset for each in taken] == [0, 1, 5]
    ((partition, unreadable),) = member.unreadable
    assert (partition, *unreadable[:2], unreadable.delivery_count) == (TopicPartition(topic, 0), 2, 4, 1)
    assert unreadable.reason
    outcomes: list[Acknowledged] = []
    for offset in range(2, 5):
        member.client.acknowledge(partition, offset, ACCEPT, lambda outcome, _: outcomes.append(outcome))
    assert await member.settle(taken, ACCEPT) == [DONE] * 3
    await until(lambda: outcomes == [DONE] * 3, shared.timing.deadline)


async def test_two_members_in_turn(shared: TroubledCluster, topic: str, group_id: str) -> None:
    """A member that stops in the middle leaves no record behind."""
    await filled(shared, topic, group_id, 30)
    accepted: Counter[int] = Counter()
    while sum(accepted.values()) < 30:
        member: ShareMember = await joined(shared, topic, group_id)
        taken = await member.fetch(7)
        answers = member.acknowledge(taken[:5], ACCEPT)
        await member.stop()
        accepted.update(answer.delivery.record.offset for answer in answers if answer.outcome is DONE)
    assert accepted == Counter(range(30))
