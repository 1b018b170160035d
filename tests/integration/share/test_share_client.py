"""A member of a share group on one broker of Apache Kafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from aioparallel.clients.aiokafka.connector import cut_all
from aioparallel.clients.aiokafka.share_client import AiokafkaShareClient
from aioparallel.clients.messages.share_groups import (
    LEAVE,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from aioparallel.clients.messages.share_records import CLOSE_SESSION, SHARE_ACKNOWLEDGE, ShareAcknowledgeRequest
from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.asking import asking
from tests.support.kafka.share_members import ShareMember, configured, member_of, new_group, produce, share_member
from tests.support.kafka.topics import make_anew
from tests.support.waiting import until

pytestmark = pytest.mark.real

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
DONE, NOT_HELD, NOT_SENT = Acknowledged.DONE, Acknowledged.NOT_HELD, Acknowledged.NOT_SENT
SHORT_LOCK = {"share.record.lock.duration.ms": "15000"}
"""The shortest that brokers allow."""


def cut_connections(client: AiokafkaShareClient) -> None:
    """The broker sees the end of all connections of a member."""
    assert client._running is not None
    cut_all(client._running.connections)


async def add_partitions(kafka: LocalKafka, topic: str, total: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_partitions({topic: NewPartitions(total)})
    finally:
        await admin.close()


@contextlib.asynccontextmanager
async def consumer_group(kafka: LocalKafka, topic: str, group: str) -> AsyncIterator[None]:
    """A group of that name, with a member."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        await consumer.getone()
        yield
    finally:
        await consumer.stop()


async def test_each_type_of_acknowledgement(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Accepted and rejected records never return. A released one does at once, and its delivery is counted."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 4)
    async with member_of(local_kafka, topic) as member:
        some = await member.take(4)
        assert [(one.offset, one.count, one.record.value) for one in some] == [
            (offset, 1, b"v%d" % offset) for offset in range(4)
        ]
        assert member.assigned == {TopicPartition(topic, 0)}
        assert member.client.lock_seconds == 30
        kinds = [ACCEPT, RELEASE, REJECT, RELEASE]
        ended = [member.acknowledge(one, kind) for one, kind in zip(some, kinds, strict=True)]
        assert [await one for one in ended] == [(DONE, 0.0)] * 4
        again = await member.take(2)
        assert [(one.offset, one.count) for one in again] == [(1, 2), (3, 2)]
        assert await member.end(again) == [DONE] * 2
        assert await member.end(again) == [NOT_HELD] * 2, "a second time"
        await produce(local_kafka, topic, 1)
        assert [one.offset for one in await member.take(1)] == [4]


@pytest.mark.slow
async def test_a_renewed_lock_outlives_its_first_end(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The others of its fetch are delivered again then, and acknowledging them is too late. It spoils nothing."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 4)
    async with member_of(local_kafka, topic, SHORT_LOCK) as member:
        time = asyncio.get_running_loop().time
        some = await member.take(4)
        assert member.client.lock_seconds == 15
        await asyncio.sleep(10)
        result, locked_until = await member.acknowledge(some[0], RENEW)
        assert result is DONE
        assert some[0].locked_until + 9 < locked_until <= time() + 15
        again = await member.take(3)
        assert [(one.offset, one.count) for one in again] == [(1, 2), (2, 2), (3, 2)]
        assert time() >= some[1].locked_until
        assert await member.end([*again[1:], some[0]]) == [DONE] * 3
        await asyncio.sleep(max(0.0, again[0].locked_until - time() + 2))
        assert await member.end([again[0]]) == [NOT_HELD]


def may_renew(member: ShareMember) -> bool:
    return member.client.may_renew


async def test_a_group_can_forbid_to_renew(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Locks stay as they are."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 2)
    async with member_of(local_kafka, topic, {"share.renew.acknowledge.enable": "false"}) as member:
        one, two = await member.take(2)
        assert may_renew(member)
        assert await member.acknowledge(one, RENEW) == (Acknowledged.RENEW_REFUSED, 0.0)
        assert not may_renew(member)
        assert await member.acknowledge(two, RENEW) == (Acknowledged.RENEW_REFUSED, 0.0)
        assert await member.end([one, two]) == [DONE] * 2


async def test_a_late_one_does_not_spoil_the_others(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Another session of the same member has released some of its records: nobody here knows."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 100)
    async with member_of(local_kafka, topic) as member:
        some = await member.take(100)
        assert await member.end([some[7], some[50]], RELEASE) == [DONE] * 2
        held = member.client._running.state.partitions.get(TopicPartition(topic, 0))  # type: ignore[union-attr]
        assert held is not None
        held.acks.acquired([7, 50], some[0].locked_until, some[0].locked_until + 1)
        results = await member.end(some)
        assert [number for number, result in enumerate(results) if result is not DONE] == [7, 50]
        assert {results[7], results[50]} == {NOT_HELD}


async def test_the_delivery_limit(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A record that is released again and again is delivered five times."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 1)
    async with member_of(local_kafka, topic) as member:
        for count in range(1, 6):
            (one,) = await member.take(1)
            assert (one.offset, one.count) == (0, count)
            assert await member.end([one], RELEASE) == [DONE]
        await produce(local_kafka, topic, 1)
        assert [one.offset for one in await member.take(1)] == [1]


async def test_records_of_a_member_that_stops_go_to_another(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """At once, what it has acknowledged excepted. It has answered every acknowledgement by then."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 20)
    group = await configured(local_kafka.bootstrap_servers, new_group(), {})
    servers = local_kafka.bootstrap_servers
    async with share_member(servers, group, topic) as leaving, share_member(servers, group, topic) as staying:
        taken = await leaving.take(20)
        ended = [leaving.acknowledge(one, ACCEPT) for one in taken[:5]]
        await leaving.client.stop(10)
        assert [one.result() for one in ended] == [(DONE, 0.0)] * 5
        assert (await leaving.end(taken[5:6])) == [NOT_SENT]
        again = await staying.take(15, deadline=15)
        assert sorted((one.offset, one.count) for one in again) == [(offset, 2) for offset in range(5, 20)]
        await until(lambda: staying.assigned == {TopicPartition(topic, 0)})


async def test_records_of_a_member_that_is_cut_off_go_to_another(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """As if its process was killed: its connections close."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 20)
    group = await configured(local_kafka.bootstrap_servers, new_group(), {})
    servers = local_kafka.bootstrap_servers
    async with share_member(servers, group, topic) as cut, share_member(servers, group, topic) as staying:
        taken = await cut.take(20)
        cut_connections(cut.client)
        again = await staying.take(20, deadline=15)
        assert sorted((one.offset, one.count) for one in again) == [(offset, 2) for offset in range(20)]
        assert set(await cut.end(taken)) == {NOT_HELD}
        assert set(await staying.end(again)) == {DONE}


async def test_a_session_that_the_broker_does_not_know_is_opened_again(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """As after the loss of a connection. The member goes on, and gets its records again."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 10)
    async with member_of(local_kafka, topic) as member:
        some = await member.take(10)
        assert await member.end(some[:2]) == [DONE] * 2
        cut_connections(member.client)
        assert await member.end(some[2:4]) == [NOT_HELD] * 2
        again = await member.take(8)
        assert sorted((one.offset, one.count) for one in again) == [(offset, 2) for offset in range(2, 10)]
        assert await member.end(again) == [DONE] * 8


async def test_a_session_that_the_broker_has_ended(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """While its connection stays open. The member goes on in another one, and gets its records again."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 10)
    async with member_of(local_kafka, topic) as member:
        some = await member.take(10)
        assert await member.end(some[:2]) == [DONE] * 2
        running, settings = member.client._running, member.client._settings
        assert running is not None
        async with asking(settings.bootstrap_servers) as asked:
            ending = ShareAcknowledgeRequest(
                group_id=settings.group_id, member_id=running.state.member_id, share_session_epoch=CLOSE_SESSION
            )
            answer = await asked.ask(SHARE_ACKNOWLEDGE, ending, await asked.leader(topic))
            assert answer.error_code == 0
        assert await member.end(some[2:4]) == [NOT_HELD] * 2
        again = await member.take(8)
        assert sorted((one.offset, one.count) for one in again) == [(offset, 2) for offset in range(2, 10)]
        assert await member.end(again) == [DONE] * 8


@pytest.mark.slow
async def test_a_broker_with_no_session_left() -> None:
    """The member waits until one of another group has left, and raises nothing."""
    properties = {"group.share.max.share.sessions": "1", "group.share.max.size": "1"}
    async with LocalKafka(compile_once=True, server_properties=properties) as kafka:
        await kafka.create_topic(topic := new_group())
        await produce(kafka, topic, 10)
        async with member_of(kafka, topic) as waiting:
            async with member_of(kafka, topic) as first:
                assert await first.end(await first.take(5)) == [DONE] * 5
                fetching = asyncio.create_task(waiting.take(10))
                await asyncio.sleep(3)
                assert not fetching.done()
                assert await first.end(await first.take(5)) == [DONE] * 5
            some = await fetching
            assert {(one.offset, one.count) for one in some} == {(offset, 1) for offset in range(10)}
            assert await waiting.end(some) == [DONE] * 10


async def test_a_wrong_epoch_costs_no_locks(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Another session is opened, in which records stay locked for the member."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 10)
    async with member_of(local_kafka, topic) as member:
        some = await member.take(10)
        (session,) = member.client._running.sessions.values()  # type: ignore[union-attr]
        session._session._epoch = 77
        assert await member.end(some[:5]) == [DONE] * 5
        await produce(local_kafka, topic, 1)
        assert [one.offset for one in await member.take(1)] == [10]
        session._session._epoch = 78
        assert await member.end(some[5:], RELEASE) == [DONE] * 5
        assert [one.count for one in await member.take(5)] == [2] * 5


async def test_nothing_is_acquired_while_nobody_fetches(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """And acknowledgements are sent nevertheless."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 10)
    async with member_of(local_kafka, topic) as member:
        some = await member.take(3)
        assert [one.offset for one in some] == [0, 1, 2]
        assert await member.end(some) == [DONE] * 3
        await asyncio.sleep(1.5)
        assert member.client._running is not None
        assert member.client._running.state.acquired == []
        settings = member.client._settings
        async with share_member(settings.bootstrap_servers, settings.group_id, topic) as other:
            assert len(await other.take(7)) == 7


async def test_a_cancelled_fetch_loses_nothing(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """What it acquired is returned by the next one."""
    topic = await kafka_topic()
    async with member_of(local_kafka, topic) as member:
        await until(lambda: member.assigned)
        producing = asyncio.create_task(produce(local_kafka, topic, 300))
        offsets: list[int] = []
        for attempt in range(10_000):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001 * (attempt % 7)):
                    offsets += [one.offset for one in await member.take(1, most=20)]
            if len(offsets) >= 300:
                break
        await producing
        assert sorted(offsets) == list(range(300))


@pytest.mark.slow
async def test_what_nobody_has_fetched_is_lost_with_its_session(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """It is not returned, but comes again, whether its connection was lost or its lock has ended."""
    topic = await kafka_topic()
    async with member_of(local_kafka, topic, SHORT_LOCK, max_wait=10.0) as member:
        running = member.client._running
        assert running is not None

        async def left_over(first: int) -> None:
            """What is produced while a fetch is cancelled that waits."""
            fetching = asyncio.create_task(member.client.fetch(10))
            await asyncio.sleep(0.5)
            fetching.cancel()
            await produce(local_kafka, topic, 1, first=first)
            await until(lambda: running.state.acquired)

        await until(lambda: member.assigned)
        await left_over(0)
        (before,) = running.state.acquired
        cut_connections(member.client)
        again = await member.take(len(before.records))
        assert {(one.offset, one.count) for one in again} >= {(record.offset, 2) for record in before.records}
        assert set(await member.end(again)) == {DONE}
        await left_over(100)
        (before,) = running.state.acquired
        await asyncio.sleep(16)
        again = await member.take(len(before.records))
        assert {(one.offset, one.count) for one in again} >= {(record.offset, 2) for record in before.records}
        assert set(await member.end(again)) == {DONE}


async def test_wake(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A fetch that waits returns; if none waits, the next one does."""
    topic = await kafka_topic()
    async with member_of(local_kafka, topic) as member:
        fetching = asyncio.create_task(member.client.fetch(10))
        await asyncio.sleep(0.1)
        assert not fetching.done()
        member.client.wake()
        assert await fetching == []
        member.client.wake()
        assert await member.client.fetch(10) == []


async def test_a_member_that_was_removed_joins_again(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Leaders do not care: what it has locked stays locked, and it goes on fetching."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 10)
    async with member_of(local_kafka, topic) as member, asking(local_kafka.bootstrap_servers) as asked:
        some = await member.take(5)
        running = member.client._running
        assert running is not None
        group, member_id = running.state.group_id, running.state.member_id
        leaving = ShareGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=LEAVE)
        assert (await asked.coordinate(group, SHARE_GROUP_HEARTBEAT, leaving)).error_code == 0
        assert await member.end(some) == [DONE] * 5

        async def is_member() -> bool:
            request = ShareGroupDescribeRequest(group_ids=(group,))
            (found,) = (await asked.coordinate(group, SHARE_GROUP_DESCRIBE, request)).groups
            return [one.member_id for one in found.members] == [member_id]

        assert not await is_member()
        await until(is_member)
        assert await member.end(await member.take(5)) == [DONE] * 5


@pytest.mark.slow
async def test_new_partitions(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The coordinator assigns them, and their records come."""
    topic = await kafka_topic()
    async with member_of(local_kafka, topic) as member:
        await until(lambda: len(member.assigned) == 1)
        await add_partitions(local_kafka, topic, 3)
        fetching = asyncio.create_task(member.take(2))
        await until(lambda: len(member.assigned) == 3)
        await produce(local_kafka, topic, 1, partition=1)
        await produce(local_kafka, topic, 1, partition=2)
        some = await fetching
        assert {one.record.partition for one in some} == {1, 2}
        assert await member.end(some) == [DONE] * 2


async def test_a_topic_that_is_made_anew(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Records of the old one are not held any more. Those of another topic are not affected, and the new one is read
    from its beginning."""
    topic, other = await kafka_topic(), await kafka_topic()
    await produce(local_kafka, topic, 3)
    await produce(local_kafka, other, 3)
    group = await configured(local_kafka.bootstrap_servers, new_group(), {})
    async with share_member(local_kafka.bootstrap_servers, group, topic, other) as member:
        some = await member.take(6)
        old = [one for one in some if one.record.topic == topic]
        fetching = asyncio.create_task(member.take(4))
        await make_anew(local_kafka.bootstrap_servers, topic)
        await produce(local_kafka, topic, 3, first=10)
        await produce(local_kafka, other, 1, first=10)
        new = await fetching
        assert sorted((one.record.topic == other, one.record.value) for one in new) == [
            (False, b"v10"),
            (False, b"v11"),
            (False, b"v12"),
            (True, b"v10"),
        ]
        assert set(await member.end([one for one in some if one.record.topic == other])) == {DONE}
        assert set(await member.end(new)) == {DONE}
        assert set(await member.end(old)) == {NOT_HELD}


async def test_a_group_of_another_type(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """It is refused at the start."""
    topic = await kafka_topic()
    await produce(local_kafka, topic, 1)
    group = new_group()
    async with consumer_group(local_kafka, topic, group):
        client = AiokafkaShareClient(local_kafka.bootstrap_servers, group)
        with pytest.raises(ClientError, match="another type"):
            await client.start(30)
        await client.stop(5)


async def test_fetching_while_acknowledging(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Everything comes once and is done once."""
    topic = await kafka_topic(4)
    for partition in range(4):
        await produce(local_kafka, topic, 500, partition)
    async with member_of(local_kafka, topic) as member:
        results: list[Acknowledged] = []
        seen: set[tuple[int, int]] = set()

        def ended(result: Acknowledged, _until: float) -> None:
            results.append(result)

        while len(seen) < 2_000:
            for one in await member.take(1, most=50):
                assert (one.record.partition, one.offset) not in seen
                seen.add((one.record.partition, one.offset))
                member.client.acknowledge(one.partition, one.offset, ACCEPT, ended)
        await until(lambda: len(results) == 2_000)
        assert set(results) == {DONE}
