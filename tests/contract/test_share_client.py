"""What every client of share groups promises: :class:`~aioparallel.group.share_client.ShareClient`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest

from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.errors import BrokerUnreachable, ClientError, ConsumerStateError
from aioparallel.records.record import TopicPartition
from tests.support.clusters.share_cluster import ShareCluster
from tests.support.clusters.share_member import ShareMember
from tests.support.clusters.share_steps import configured, filled, idle, joined, numbered, partitions_of
from tests.support.waiting import until

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
DONE, NOT_HELD, NOT_SENT = Acknowledged.DONE, Acknowledged.NOT_HELD, Acknowledged.NOT_SENT

# -- starting and stopping


async def test_it_starts_and_stops(shared: ShareCluster, group_id: str) -> None:
    """start() and stop() return within their timeouts, and stop() may be repeated."""
    client = shared.client(group_id)
    async with asyncio.timeout(shared.timing.deadline):
        await client.start(shared.timing.deadline)
        await client.stop(shared.timing.deadline)
        await client.stop(shared.timing.deadline)


async def test_what_never_started_can_be_stopped(shared: ShareCluster, group_id: str) -> None:
    """stop() without start() returns."""
    async with asyncio.timeout(shared.timing.deadline):
        await shared.client(group_id).stop(shared.timing.deadline)


async def test_an_unreachable_cluster_is_reported_in_time(shared: ShareCluster, group_id: str) -> None:
    """start() raises BrokerUnreachable within its timeout; stop() returns after that."""
    client = shared.unreachable_client(group_id)
    began = asyncio.get_running_loop().time()
    with pytest.raises(BrokerUnreachable):
        await client.start(1.0)
    assert asyncio.get_running_loop().time() - began < 3.0
    await client.stop(1.0)


async def test_the_id_of_a_consumer_group_is_refused(shared: ShareCluster, topic: str, group_id: str) -> None:
    """start() raises ClientError if the group id belongs to a group of another type."""
    await shared.create_topic(topic)
    await shared.make_consumer_group(group_id, topic)
    client = shared.client(group_id)
    with pytest.raises(ClientError, match=group_id):
        await client.start(shared.timing.deadline)
    await client.stop(shared.timing.deadline)


async def test_stop_sends_what_is_acknowledged(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Callbacks are called before it returns."""
    await filled(shared, topic, group_id, 4)
    first = await joined(shared, topic, group_id)
    taken = await first.take(4)
    answers = first.acknowledge(taken[:3], ACCEPT)
    await first.stop()
    assert [answer.outcome for answer in answers] == [DONE] * 3
    second = await joined(shared, topic, group_id)
    assert [(one.record.offset, one.times) for one in await second.take(1)] == [(3, 2)]


async def test_stop_releases_the_rest(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Another member gets it at once, long before the locks end."""
    await filled(shared, topic, group_id, 3, lock_duration=shared.timing.lock_duration * 20)
    first = await joined(shared, topic, group_id)
    await first.take(3)
    second = await joined(shared, topic, group_id)
    await first.stop()
    async with asyncio.timeout(min(shared.timing.lock_duration * 10, shared.timing.deadline)):
        assert sorted((one.value, one.times) for one in await second.take(3)) == [(b"0", 2), (b"1", 2), (b"2", 2)]


async def test_after_stop_nothing_is_sent(shared: ShareCluster, topic: str, group_id: str) -> None:
    """An acknowledgement ends as NOT_SENT, and a fetch raises."""
    await filled(shared, topic, group_id, 1)
    member = await joined(shared, topic, group_id)
    taken = await member.take(1)
    await member.stop()
    assert await member.settle(taken, ACCEPT) == [NOT_SENT]
    with pytest.raises((ClientError, ConsumerStateError)):
        await member.client.fetch(1)


async def test_a_fetch_that_waits_does_not_outlive_stop(shared: ShareCluster, topic: str, group_id: str) -> None:
    """It ends in some way."""
    await filled(shared, topic, group_id, 0)
    member = await joined(shared, topic, group_id)
    waiting = asyncio.create_task(member.client.fetch(1))
    await idle(shared, member)
    async with asyncio.timeout(shared.timing.deadline):
        await member.stop()
        await asyncio.wait({waiting})
    assert waiting.exception() is not None or waiting.result() == []


# -- topics and assignments


async def test_partitions_are_those_that_exist(shared: ShareCluster, topic: str, group_id: str) -> None:
    """All partitions of existing topics; missing topics are left out, and not created."""
    await shared.create_topic(topic, 3)
    client = shared.client(group_id)
    await client.start(shared.timing.deadline)
    for _ in range(2):
        found = await client.partitions([topic, f"{topic}-missing"], shared.timing.deadline)
        assert found == partitions_of(topic, 3)
        assert await client.partitions([f"{topic}-missing"], shared.timing.deadline) == set()


async def test_one_member_gets_everything(shared: ShareCluster, topic: str, group_id: str) -> None:
    """It learns of added partitions as well."""
    await shared.create_topic(topic, 2)
    await configured(shared, group_id)
    member = await joined(shared, topic, group_id, 2)
    await shared.add_partitions(topic, 3)
    await member.has(partitions_of(topic, 3))
    await shared.produce(topic, numbered(2), 2)
    assert {one.partition for one in await member.take(2)} == {TopicPartition(topic, 2)}


async def test_several_members_share_all_partitions(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Each partition has a member. Who is left gets all."""
    await shared.create_topic(topic, 4)
    first = await joined(shared, topic, group_id, 4)
    second = await joined(shared, topic, group_id)
    await until(
        lambda: first.assigned | second.assigned == partitions_of(topic, 4) and len(first.assigned) == 2,
        shared.timing.deadline,
    )
    await second.stop()
    await first.has(partitions_of(topic, 4))


async def test_members_fetch_from_the_same_partition(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Each record is delivered to one of them."""
    await filled(shared, topic, group_id, 0)
    members = [await joined(shared, topic, group_id, 1) for _ in range(3)]
    seen: Counter[bytes | None] = Counter()
    for number in range(9):
        await shared.produce(topic, numbered(1, number))
        member = members[number % 3]
        taken = await member.take(1, 1)
        seen.update(one.value for one in taken)
        assert await member.settle(taken, ACCEPT) == [DONE]
    assert seen == Counter(numbered(9))


async def test_records_of_a_partition_that_was_given_away(shared: ShareCluster, topic: str, group_id: str) -> None:
    """They stay locked, and may be acknowledged."""
    await shared.create_topic(topic, 2)
    await configured(shared, group_id, lock_duration=shared.timing.lock_duration * 20)
    for number in range(2):
        await shared.produce(topic, numbered(2), number)
    first = await joined(shared, topic, group_id, 2)
    taken = await first.take(4)
    second = await joined(shared, topic, group_id)
    await until(lambda: len(first.assigned) == len(second.assigned) == 1, shared.timing.deadline)
    assert await first.settle(taken, ACCEPT) == [DONE] * 4


# -- fetching


async def test_a_record_arrives_as_it_was_produced(shared: ShareCluster, topic: str, group_id: str) -> None:
    """In the order of offsets, delivered for the first time, and locked for the group's lock duration at most."""
    await filled(shared, topic, group_id, 5)
    member = await joined(shared, topic, group_id)
    assert member.client.lock_seconds is None
    taken = await member.take(5)
    now, lock = asyncio.get_running_loop().time(), shared.timing.lock_duration
    assert [(one.record.offset, one.value, one.times) for one in taken] == [(n, b"%d" % n, 1) for n in range(5)]
    assert all(now < one.locked_until <= now + lock for one in taken)
    assert member.client.lock_seconds == lock


async def test_no_more_than_asked_for(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Although they were written as one batch: the broker knows the record limit."""
    await filled(shared, topic, group_id, 10)
    member = await joined(shared, topic, group_id)
    for offset in range(0, 9, 3):
        assert [one.record.offset for one in await member.fetch(3)] == [offset, offset + 1, offset + 2]
    assert [one.record.offset for one in await member.fetch(3)] == [9]


async def test_every_partition_has_its_turn(shared: ShareCluster, topic: str, group_id: str) -> None:
    """With a small limit as well."""
    await shared.create_topic(topic, 4)
    await configured(shared, group_id)
    for number in range(4):
        await shared.produce(topic, numbered(6), number)
    member = await joined(shared, topic, group_id, 4)
    await member.take(24, 4)
    found = Counter((one.partition, one.value) for one in member.deliveries)
    assert found == Counter((partition, value) for partition in partitions_of(topic, 4) for value in numbered(6))


async def test_fetch_waits_for_records(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Without any it waits, and returns what arrives."""
    await filled(shared, topic, group_id, 0)
    member = await joined(shared, topic, group_id)
    waiting = asyncio.create_task(member.fetch())
    await idle(shared, member)
    assert not waiting.done()
    await shared.produce(topic, numbered(1))
    assert [one.value for one in await waiting] == [b"0"]


async def test_wake_ends_the_waiting_fetch(shared: ShareCluster, topic: str, group_id: str) -> None:
    """It returns nothing, and the next one waits again. Before subscribe() as well."""
    await filled(shared, topic, group_id, 0)
    member = ShareMember(shared.client(group_id), shared.timing.deadline)
    await member.client.start(shared.timing.deadline)
    for _ in range(3):
        waiting = asyncio.create_task(member.fetch())
        await idle(shared, member)
        assert not waiting.done()
        member.client.wake()
        assert await waiting == []


async def test_wake_is_remembered_once(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Without a waiting fetch, the next one, and only that one, returns without waiting."""
    await filled(shared, topic, group_id, 0)
    member = await joined(shared, topic, group_id)
    member.client.wake()
    member.client.wake()
    assert await member.fetch() == []
    waiting = asyncio.create_task(member.fetch())
    await idle(shared, member)
    assert not waiting.done()
    await shared.produce(topic, numbered(1))
    assert len(await waiting) == 1


async def test_what_is_excluded_is_not_acquired(shared: ShareCluster, topic: str, group_id: str) -> None:
    """No delivery of it is used up, and the others go on. What was acquired may be acknowledged."""
    await shared.create_topic(topic, 2)
    await configured(shared, group_id)
    member = await joined(shared, topic, group_id, 2)
    await shared.produce(topic, numbered(1), 0)
    before = await member.take(1)
    member.client.exclude([TopicPartition(topic, 0)])
    waiting = asyncio.create_task(member.fetch())
    await idle(shared, member)
    await shared.produce(topic, numbered(2), 0)
    await idle(shared, member)
    assert not waiting.done()
    await shared.produce(topic, numbered(1), 1)
    assert {one.partition.partition for one in await waiting} == {1}
    assert await member.settle(before, ACCEPT) == [DONE]
    member.client.exclude([])
    assert [one.times for one in await member.take(2)] == [1, 1]


async def test_a_cancelled_fetch_loses_nothing(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Whenever it is cancelled, every record arrives once, at its first delivery."""
    await shared.create_topic(topic, 2)
    await configured(shared, group_id, lock_duration=shared.timing.lock_duration * 20)
    member = await joined(shared, topic, group_id, 2)
    rng = random.Random(7)
    produced = 0
    for number in range(60):
        if number % 6 == 0:
            await shared.produce(topic, numbered(5, produced), number // 6 % 2)
            produced += 5
        fetching = asyncio.create_task(member.client.fetch(2))
        for _ in range(rng.randrange(12)):
            await asyncio.sleep(0)
        fetching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            member.keep(await fetching)
    await member.take(produced - len(member.deliveries))
    assert Counter((one.value, one.times) for one in member.deliveries) == Counter((v, 1) for v in numbered(produced))


async def test_without_a_fetch_nothing_is_acquired(shared: ShareCluster, topic: str, group_id: str) -> None:
    """A member that does not fetch leaves all records to others."""
    await filled(shared, topic, group_id, 0)
    lazy = await joined(shared, topic, group_id, 1)
    await shared.produce(topic, numbered(1))
    await lazy.take(1)
    await shared.produce(topic, numbered(8))
    await idle(shared, lazy)
    busy = await joined(shared, topic, group_id, 1)
    assert [one.times for one in await busy.take(8)] == [1] * 8


async def test_gaps_are_acknowledged_by_the_client(shared: ShareCluster, topic: str, group_id: str) -> None:
    """The ends of transactions are not delivered, and the group gets past them."""
    await filled(shared, topic, group_id, 2, isolation_level="read_committed")
    await shared.produce(topic, numbered(3), aborted=True)
    await shared.produce(topic, numbered(2, 2))
    await shared.produce(topic, numbered(1), aborted=True)
    member = await joined(shared, topic, group_id)
    taken = await member.take(4)
    assert [one.value for one in taken] == numbered(4)
    assert await member.settle(taken, ACCEPT) == [DONE] * 4

    async def has_ended() -> bool:
        return await shared.lag(group_id, topic) == 0

    fetching = asyncio.create_task(member.client.fetch(100))
    await until(has_ended, shared.timing.deadline, "everything has ended")
    member.client.wake()
    assert await fetching == []


async def test_aborted_records_are_delivered_by_default(shared: ShareCluster, topic: str, group_id: str) -> None:
    """The isolation level is the group's."""
    await filled(shared, topic, group_id, 1)
    await shared.produce(topic, numbered(2, 1), aborted=True)
    member = await joined(shared, topic, group_id)
    assert [one.value for one in await member.take(3)] == numbered(3)


# -- acknowledging


async def test_accepted_records_do_not_come_again(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Nor do rejected ones. Released ones do, with a higher delivery count."""
    await filled(shared, topic, group_id, 6)
    member = await joined(shared, topic, group_id)
    taken = await member.take(6)
    answers = [
        *member.acknowledge(taken[::3], ACCEPT),
        *member.acknowledge(taken[1::3], RELEASE),
        *member.acknowledge(taken[2::3], REJECT),
    ]
    assert await member.answered(answers) == [DONE] * 6
    again = await member.take(2)
    assert [(one.record.offset, one.times) for one in again] == [(1, 2), (4, 2)]
    assert await member.settle(again, ACCEPT) == [DONE] * 2
    await shared.produce(topic, numbered(1, 6))
    assert [one.value for one in await member.take(1)] == [b"6"]


async def test_a_record_is_delivered_so_often_and_no_more(shared: ShareCluster, topic: str, group_id: str) -> None:
    """The limit is the group's."""
    await filled(shared, topic, group_id, 1, delivery_count_limit=3)
    member = await joined(shared, topic, group_id)
    for count in (1, 2, 3):
        taken = await member.take(1)
        assert [one.times for one in taken] == [count]
        assert await member.settle(taken, RELEASE) == [DONE]
    await shared.produce(topic, numbered(1, 1))
    assert [one.value for one in await member.take(1)] == [b"1"]


async def test_many_acknowledgements_one_by_one(shared: ShareCluster, topic: str, group_id: str) -> None:
    """In any order, while fetches go on: each is answered once."""
    await filled(shared, topic, group_id, 0, lock_duration=shared.timing.lock_duration * 20)
    member = await joined(shared, topic, group_id)
    rng = random.Random(3)
    open_ones = []
    for number in range(20):
        await shared.produce(topic, numbered(10, number * 10))
        open_ones += await member.take(10)
        rng.shuffle(open_ones)
        while len(open_ones) > 12:
            member.acknowledge([open_ones.pop()], ACCEPT)
    member.acknowledge(open_ones, ACCEPT)
    assert await member.answered(member.answers) == [DONE] * 200
    assert Counter(one.value for one in member.deliveries) == Counter(numbered(200))


async def test_acknowledgements_do_not_wait_for_records(shared: ShareCluster, topic: str, group_id: str) -> None:
    """They are answered while a fetch waits in vain."""
    await filled(shared, topic, group_id, 2)
    member = await joined(shared, topic, group_id)
    taken = await member.take(2)
    waiting = asyncio.create_task(member.fetch())
    await idle(shared, member)
    assert await member.settle(taken, ACCEPT) == [DONE] * 2
    assert not waiting.done()
    member.client.wake()
    assert await waiting == []


async def test_a_lock_ends(shared: ShareCluster, topic: str, group_id: str) -> None:
    """The record comes again, to any member, and a late acknowledgement is NOT_HELD. It does not spoil others that are
    sent with it."""
    await filled(shared, topic, group_id, 9)
    slow = await joined(shared, topic, group_id, 1)
    late = await slow.take(5, 5)
    quick = await joined(shared, topic, group_id, 1)
    await asyncio.sleep(shared.timing.lock_duration / 2)
    kept = [one for one in late if one.record.offset not in (1, 3)]
    assert await slow.settle(kept, RENEW) == [DONE] * 3
    await quick.settle(await quick.take(4), ACCEPT)
    again = await quick.take(2)
    assert [(one.record.offset, one.times) for one in again] == [(1, 2), (3, 2)]
    assert await slow.settle(late, ACCEPT) == [DONE, NOT_HELD, DONE, NOT_HELD, DONE]
    assert await quick.settle(again, ACCEPT) == [DONE] * 2


async def test_a_lock_is_renewed(shared: ShareCluster, topic: str, group_id: str) -> None:
    """The answer says until when. The record stays with its member, beyond the first end."""
    await filled(shared, topic, group_id, 2)
    member = await joined(shared, topic, group_id)
    (one, other) = await member.take(2)
    time, began = asyncio.get_running_loop().time, one.locked_until
    until_when = one.locked_until
    while time() < began + shared.timing.lock_duration:
        await asyncio.sleep(max(0.0, until_when - time() - shared.timing.lock_duration * 0.7))
        (answer,) = member.acknowledge([one], RENEW)
        assert await member.answered([answer]) == [DONE]
        assert answer.outcomes[0][1] > until_when
        assert time() < answer.outcomes[0][1] <= time() + shared.timing.lock_duration
        until_when = answer.outcomes[0][1]
    assert member.client.may_renew
    assert [(again.record.offset, again.times) for again in await member.take(1)] == [(other.record.offset, 2)]
    assert await member.settle([one], ACCEPT) == [DONE]


async def test_a_renewal_that_comes_too_late(shared: ShareCluster, topic: str, group_id: str) -> None:
    """It is NOT_HELD, although the broker accepts it, because the record has ended meanwhile."""
    await filled(shared, topic, group_id, 1)
    slow = await joined(shared, topic, group_id, 1)
    taken = await slow.take(1)
    quick = await joined(shared, topic, group_id, 1)
    assert await quick.settle(await quick.take(1), ACCEPT) == [DONE]
    assert await slow.settle(taken, RENEW) == [NOT_HELD]


async def test_a_renewal_gives_way(shared: ShareCluster, topic: str, group_id: str) -> None:
    """If it was not sent yet when another acknowledgement follows, it ends as NOT_SENT."""
    await filled(shared, topic, group_id, 1)
    member = await joined(shared, topic, group_id)
    taken = await member.take(1)
    answers = [*member.acknowledge(taken, RENEW), *member.acknowledge(taken, ACCEPT)]
    assert await member.answered(answers) == [NOT_SENT, DONE]


async def test_a_group_may_forbid_renewals(shared: ShareCluster, topic: str, group_id: str) -> None:
    """RENEW is refused, and the lock stays as it is. Others that are sent with it are not spoilt."""
    await filled(shared, topic, group_id, 3, is_renew_enabled=False)
    member = await joined(shared, topic, group_id)
    one, two, three = await member.take(3)
    answers = [
        *member.acknowledge([one], ACCEPT),
        *member.acknowledge([two], RENEW),
        *member.acknowledge([three], ACCEPT),
    ]
    assert await member.answered(answers) == [DONE, Acknowledged.RENEW_REFUSED, DONE]
    assert not member.client.may_renew
    assert await member.settle([two], RENEW) == [Acknowledged.RENEW_REFUSED]
    assert await member.settle([two], ACCEPT) == [DONE]


async def test_contact_says_who_answers(shared: ShareCluster, topic: str, group_id: str) -> None:
    """At any time."""
    await filled(shared, topic, group_id, 1)
    client = shared.client(group_id)
    assert client.contact().heartbeat is None
    member = ShareMember(client, shared.timing.deadline)
    await member.join([topic])
    await member.settle(await member.take(1), ACCEPT)
    contact = client.contact()
    assert contact.fetch is not None
    assert contact.heartbeat is not None
    assert contact.commit is not None
    assert contact.brokers
    assert (contact.leaderless, contact.missing) == ((), ())


# -- trouble that every cluster can have


async def test_a_topic_that_is_made_anew(shared: ShareCluster, topic: str, group_id: str) -> None:
    """Its records are delivered from the first one on."""
    await filled(shared, topic, group_id, 3)
    member = await joined(shared, topic, group_id)
    await member.settle(await member.take(3), ACCEPT)
    await shared.delete_topic(topic)
    waiting = asyncio.create_task(member.fetch())
    await idle(shared, member)
    await shared.create_topic(topic)
    await shared.produce(topic, numbered(2, 7))
    found = list(await waiting)
    while len(found) < 2:
        found += await member.fetch()
    assert [(one.record.offset, one.value, one.times) for one in found] == [(0, b"7", 1), (1, b"8", 1)]
    assert await member.settle(found, ACCEPT) == [DONE] * 2
