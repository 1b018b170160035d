"""Messages of share groups, one by one, to Apache Kafka: what members have to know about brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from aioparallel.clients.aiokafka.acquired_records import decode_acquired
from aioparallel.clients.messages.assignments import new_member_id
from aioparallel.clients.messages.share_groups import (
    JOIN,
    LEAVE,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aioparallel.clients.messages.share_offsets import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    AlterShareGroupOffsetsRequest,
    AlterTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteTopic,
    DescribedOffsets,
    DescribeGroup,
    DescribeShareGroupOffsetsRequest,
    StartOffset,
)
from aioparallel.clients.messages.share_records import (
    CLOSE_SESSION,
    OPEN_SESSION,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    AcknowledgeType,
    AcquireMode,
    FetchedPartition,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.asking import Asking, asking
from tests.support.kafka.filling import Message, fill

pytestmark = pytest.mark.real

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
RENEWALS = "share.renew.acknowledge.enable"


def batch(first: int, last: int, *types: AcknowledgeType) -> AcknowledgementBatch:
    return AcknowledgementBatch(first, last, types)


class ShareMember:
    """A member with one partition. ``epoch``: of its next request in the share session."""

    def __init__(self, asked: Asking, topic: str, topic_id: bytes, leader: int) -> None:
        self.asked = asked
        self.topic = topic
        self.topic_id = topic_id
        self.leader = leader
        self.group = f"group-of-{topic}"
        self.member_id = new_member_id()
        self.member_epoch = JOIN
        self.epoch = OPEN_SESSION

    async def heartbeat(self, topics: tuple[str, ...] | None = None) -> ShareGroupHeartbeatResponse:
        answer = await self.asked.coordinate(
            self.group,
            SHARE_GROUP_HEARTBEAT,
            ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.member_epoch,
                subscribed_topic_names=topics,
            ),
        )
        if answer.error_code == 0:
            self.member_epoch = answer.member_epoch
        return answer

    async def join(self) -> None:
        """Until the partition is assigned. Brokers from 4.3 assign in the background, once in a second."""
        answer = await self.heartbeat((self.topic,))
        while answer.assignment is None or not answer.assignment.topic_partitions:
            assert answer.error_code == 0, answer
            await asyncio.sleep(0.1)
            answer = await self.heartbeat()
        (one,) = answer.assignment.topic_partitions
        assert (one.topic_id, one.partitions) == (self.topic_id, (0,))

    async def fetch(
        self,
        most: int = 100,
        *acknowledged: AcknowledgementBatch,
        epoch: int | None = None,
        renewing: bool = False,
        wait: int = 500,
    ) -> ShareFetchResponse:
        named = OPEN_SESSION in (epoch, self.epoch) or acknowledged
        answer = await self.asked.ask(
            SHARE_FETCH,
            ShareFetchRequest(
                group_id=self.group,
                member_id=self.member_id,
                share_session_epoch=self.epoch if epoch is None else epoch,
                max_wait_ms=0 if renewing else wait,
                min_bytes=0 if renewing else 1,
                max_bytes=0 if renewing else 1 << 20,
                max_records=most,
                batch_size=most,
                share_acquire_mode=AcquireMode.RECORD_LIMIT,
                is_renew_ack=renewing,
                topics=self._named(acknowledged) if named else (),
            ),
            self.leader,
        )
        if answer.error_code == 0:
            self.epoch += 1
        return answer

    async def take(self, most: int = 100, *acknowledged: AcknowledgementBatch) -> dict[int, int]:
        """Delivery counts by offset."""
        partition = one(await self.fetch(most, *acknowledged))
        assert partition.error_code == partition.acknowledge_error_code == 0
        found = decode_acquired(TopicPartition(self.topic, 0), partition.records, partition.acquired_records)
        assert (found.gaps, found.unreadable) == ([], [])
        assert all(record.value == b"v%d" % record.offset for record, _ in found.records)
        return {record.offset: count for record, count in found.records}

    async def take_all(self) -> dict[int, int]:
        """The ten records, as they become available."""
        taken: dict[int, int] = {}
        async with asyncio.timeout(10):
            while len(taken) < 10:
                if (answer := await self.fetch()).responses:
                    taken |= delivered(one(answer))
        return taken

    async def acknowledge(
        self, *batches: AcknowledgementBatch, epoch: int | None = None, renewing: bool = False
    ) -> tuple[int, int, str | None]:
        """The error codes of the response and of the partition, and its message."""
        answer = await self.asked.ask(
            SHARE_ACKNOWLEDGE,
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.member_id,
                share_session_epoch=self.epoch if epoch is None else epoch,
                is_renew_ack=renewing,
                topics=self._named(batches) if batches else (),
            ),
            self.leader,
        )
        if answer.error_code != 0 or not answer.responses:
            return answer.error_code, 0, None
        self.epoch += 1
        ((partition,),) = (topic.partitions for topic in answer.responses)
        return 0, partition.error_code, partition.error_message

    async def close_session(self) -> None:
        assert await self.acknowledge(epoch=CLOSE_SESSION) == (0, 0, None)
        self.epoch = OPEN_SESSION

    async def offsets(self) -> DescribedOffsets:
        answer = await self.asked.coordinate(
            self.group,
            DESCRIBE_SHARE_GROUP_OFFSETS,
            DescribeShareGroupOffsetsRequest(groups=(DescribeGroup(self.group),)),
        )
        (group,) = answer.groups
        return group

    def _named(self, batches: Sequence[AcknowledgementBatch]) -> tuple[AcknowledgeTopic, ...]:
        return (AcknowledgeTopic(self.topic_id, (AcknowledgePartition(0, tuple(batches)),)),)


def one(answer: ShareFetchResponse) -> FetchedPartition:
    assert answer.error_code == 0, answer
    ((partition,),) = (topic.partitions for topic in answer.responses)
    return partition


def delivered(partition: FetchedPartition) -> dict[int, int]:
    """Delivery counts by offset."""
    return {
        offset: some.delivery_count
        for some in partition.acquired_records
        for offset in range(some.first_offset, some.last_offset + 1)
    }


@asynccontextmanager
async def member_of(kafka: LocalKafka, topic: str) -> AsyncIterator[ShareMember]:
    """A member that has the topic's only partition, with ten records."""
    await asyncio.to_thread(
        fill, kafka.bootstrap_servers, topic, [Message(b"k", b"v%d" % number, partition=0) for number in range(10)]
    )
    async with asking(kafka.bootstrap_servers) as asked:
        member = ShareMember(asked, topic, await asked.topic_id(topic), await asked.leader(topic))
        await asked.configure(member.group, {"share.auto.offset.reset": "earliest"})
        await member.join()
        yield member


async def test_accept_release_and_reject(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A released record comes again, with a higher delivery count."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert await member.take(4) == {0: 1, 1: 1, 2: 1, 3: 1}
        assert await member.acknowledge(batch(0, 0, ACCEPT), batch(1, 1, RELEASE), batch(2, 2, REJECT)) == (0, 0, None)
        assert await member.take() == {1: 2} | dict.fromkeys(range(4, 10), 1)


async def test_types_of_a_range(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """One for all of its offsets, or one for each. Acknowledgements may travel with a fetch."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert len(await member.take()) == 10
        assert await member.acknowledge(batch(0, 2, ACCEPT, RELEASE, ACCEPT), batch(3, 4, REJECT)) == (0, 0, None)
        assert await member.take() == {1: 2}
        assert one(await member.fetch(1, batch(1, 1, ACCEPT), batch(5, 9, ACCEPT), wait=0)).acknowledge_error_code == 0
        group = await member.offsets()
        ((partition,),) = (topic.partitions for topic in group.topics)
        assert (partition.lag, partition.error_code) == (0, 0)
        assert 0 < partition.start_offset <= 10, "it is as of the last time that the broker stored it"


async def test_one_wrong_offset_refuses_all_of_the_partition(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """What is acknowledged of a partition in one request succeeds or fails as a whole."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert len(await member.take(4)) == 4
        assert await member.acknowledge(batch(1, 1, RELEASE)) == (0, 0, None)
        refused = await member.acknowledge(batch(0, 0, ACCEPT), batch(1, 1, ACCEPT))
        assert refused[:2] == (0, ErrorCode.INVALID_RECORD_STATE)
        assert "not acquired" in str(refused[2])
        for wrong in (
            [batch(2, 2, ACCEPT), batch(0, 0, ACCEPT)],  # not in order
            [batch(0, 0, ACCEPT), batch(50, 50, ACCEPT)],  # past what was acquired
            [batch(0, 1, ACCEPT, ACCEPT, ACCEPT)],
            [AcknowledgementBatch(0, 0, (9,))],
            [batch(0, 0, RENEW)],  # is_renew_ack is not set
        ):
            assert (await member.acknowledge(*wrong))[:2] == (0, ErrorCode.INVALID_REQUEST), wrong
        assert await member.acknowledge(batch(0, 0, ACCEPT), batch(2, 3, ACCEPT)) == (0, 0, None)
        assert await member.take() == {1: 2} | dict.fromkeys(range(4, 10), 1)


async def test_what_has_ended_may_be_acknowledged_again(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Below the start offset there is no error: an acknowledgement that comes too late may look like a good one."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert len(await member.take(2)) == 2
        for _ in range(2):
            assert await member.acknowledge(batch(0, 0, ACCEPT)) == (0, 0, None)
        assert await member.acknowledge(batch(0, 0, REJECT), batch(1, 1, ACCEPT)) == (0, 0, None)


async def test_locks_are_renewed_unless_the_group_forbids_it(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """By default it does not. A fetch that renews takes nothing, and its limits must be 0."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert await member.take(2) == {0: 1, 1: 1}
        assert await member.acknowledge(batch(0, 0, RENEW), batch(1, 1, ACCEPT), renewing=True) == (0, 0, None)
        assert (await member.fetch(5, batch(0, 0, RENEW), renewing=True)).error_code == ErrorCode.INVALID_REQUEST
        renewed = one(await member.fetch(0, batch(0, 0, RENEW), renewing=True))
        assert (renewed.acknowledge_error_code, renewed.acquired_records) == (0, ())
        await member.asked.configure(member.group, {RENEWALS: "false"})
        refused = (0, ErrorCode.INVALID_RECORD_STATE, "Renewing acquisition locks is not enabled for the group.")
        async with asyncio.timeout(10):
            while await member.acknowledge(batch(0, 0, RENEW), renewing=True) != refused:
                await asyncio.sleep(0.05)  # brokers learn configs a little later


async def test_epochs_of_sessions(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A request with an error for all of it does not count. Opening a session anew does not release records."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert (await member.fetch(epoch=5)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await member.acknowledge(batch(0, 0, ACCEPT), epoch=1))[0] == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await member.acknowledge(batch(0, 0, ACCEPT), epoch=OPEN_SESSION))[
            0
        ] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await member.fetch(1, batch(0, 0, ACCEPT), epoch=OPEN_SESSION)).error_code == ErrorCode.INVALID_REQUEST
        assert await member.take(1) == {0: 1}
        assert (await member.fetch(epoch=7)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await member.fetch(epoch=5)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await member.take(1) == {1: 1}
        member.epoch = OPEN_SESSION
        assert await member.take(1) == {2: 1}
        assert await member.acknowledge(batch(0, 2, ACCEPT)) == (0, 0, None)


async def test_a_topic_that_does_not_exist_spoils_the_session(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Also one that was deleted meanwhile. The broker advances the epoch, and locks records that it does not send.
    From Kafka 4.4 it answers UNKNOWN_TOPIC_ID for this topic only."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert await member.take(2) == {0: 1, 1: 1}
        topic_id, member.topic_id = member.topic_id, b"no topic has it."
        refused = await member.fetch(2, batch(0, 0, ACCEPT))
        member.topic_id = topic_id
        assert (refused.error_code, refused.responses) == (ErrorCode.UNKNOWN_SERVER_ERROR, ())
        assert (await member.fetch(2)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        member.epoch = OPEN_SESSION
        assert await member.take(2) == {4: 1, 5: 1}, "2 and 3 are locked"
        await member.close_session()
        assert await member.take_all() == dict.fromkeys(range(6), 2) | dict.fromkeys(range(6, 10), 1)


async def test_closing_a_connection_releases_records(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """At once, as its sessions end."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        async with asking(local_kafka.bootstrap_servers) as other:
            another = ShareMember(other, member.topic, member.topic_id, member.leader)
            assert await another.take(3) == {0: 1, 1: 1, 2: 1}
        assert await member.take_all() == dict.fromkeys(range(3), 2) | dict.fromkeys(range(3, 10), 1)


async def test_closing_a_session_releases_its_records(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A little later than it answers. Each delivery counts, also one that ended like this."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        for count in (1, 2, 3):
            assert await member.take_all() == dict.fromkeys(range(10), count)
            await member.close_session()
        assert len(await member.take()) > 0
        closed = await member.fetch(0, batch(0, 0, ACCEPT), epoch=CLOSE_SESSION)
        assert one(closed).acknowledge_error_code == 0


async def test_a_record_is_delivered_five_times(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The broker's default; after that it has ended. For its last delivery it comes alone."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert await member.take(1) == {0: 1}
        for count in (2, 3, 4, 5):
            assert await member.acknowledge(batch(0, 0, RELEASE)) == (0, 0, None)
            assert await member.take(1 if count < 5 else 100) == {0: count}
        assert await member.acknowledge(batch(0, 0, RELEASE)) == (0, 0, None)
        assert await member.take(1) == {1: 1}


@pytest.mark.parametrize("committed", [False, True])
async def test_aborted_records(local_kafka: LocalKafka, kafka_topic: TopicMaker, *, committed: bool) -> None:
    """They are delivered, unless the group reads committed records only. Then they are not acquired at all. The end of
    the transaction is a gap."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        if committed:
            await member.asked.configure(member.group, {"share.isolation.level": "read_committed"})
        messages = [Message(b"k", b"aborted", partition=0) for _ in range(3)]
        await asyncio.to_thread(fill, local_kafka.bootstrap_servers, member.topic, messages, aborted=True)
        offsets: set[int] = set()
        gaps: set[int] = set()
        async with asyncio.timeout(15):
            while 9 not in offsets or (13 not in gaps and not committed):
                answer = await member.fetch()
                for partition in [one for topic in answer.responses for one in topic.partitions]:
                    place = TopicPartition(member.topic, 0)
                    found = decode_acquired(place, partition.records, partition.acquired_records)
                    offsets |= {record.offset for record, _ in found.records}
                    gaps |= {offset for first, last in found.gaps for offset in range(first, last + 1)}
                    assert found.unreadable == []
        assert offsets == set(range(10 if committed else 13))
        assert gaps <= {13}
        if gaps:
            assert await member.acknowledge(batch(0, max(offsets), ACCEPT), batch(13, 13, GAP)) == (0, 0, None)


async def test_fetching_does_not_need_a_member(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The leader does not ask the coordinator: who has left the group, or was removed from it, may go on."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        assert await member.take(1) == {0: 1}
        member.member_epoch = LEAVE
        assert (await member.heartbeat()).member_epoch == LEAVE
        member.member_epoch = 3
        assert (await member.heartbeat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert await member.take(1, batch(0, 0, ACCEPT)) == {1: 1}


async def test_groups_and_offsets_are_described_set_and_deleted(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """While there are no members."""
    async with member_of(local_kafka, await kafka_topic()) as member:
        coordinate, group, topic = member.asked.coordinate, member.group, member.topic
        described = await coordinate(
            group, SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest(group_ids=(group, "missing"))
        )
        found, missing = described.groups
        assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "simple")
        (shown,) = found.members
        assert (shown.member_id, shown.member_epoch) == (member.member_id, member.member_epoch)
        assert [(part.topic_name, part.partitions) for part in shown.assignment.topic_partitions] == [(topic, (0,))]
        assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group missing not found.")

        setting = AlterShareGroupOffsetsRequest(group_id=group, topics=(AlterTopic(topic, (StartOffset(0, 3),)),))
        refused = await coordinate(group, ALTER_SHARE_GROUP_OFFSETS, setting)
        assert (refused.error_code, refused.responses) == (ErrorCode.NON_EMPTY_GROUP, ())
        member.member_epoch = LEAVE
        await member.heartbeat()
        altered = await coordinate(group, ALTER_SHARE_GROUP_OFFSETS, setting)
        assert [part.error_code for part in altered.responses[0].partitions] == [0]
        offsets = (await member.offsets()).topics[0]
        assert (offsets.topic_name, offsets.topic_id) == (topic, member.topic_id)
        assert [(part.start_offset, part.lag) for part in offsets.partitions] == [(3, 7)]

        deleting = DeleteShareGroupOffsetsRequest(group_id=group, topics=(DeleteTopic(topic), DeleteTopic("missing")))
        deleted = await coordinate(group, DELETE_SHARE_GROUP_OFFSETS, deleting)
        assert {part.topic_name: part.error_code for part in deleted.responses} == {topic: 0, "missing": 3}
        assert (await member.offsets()).topics == ()
