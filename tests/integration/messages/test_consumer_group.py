"""Messages of the new consumer groups (KIP-848), one by one, to Apache Kafka: what members have to know about
brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel.clients.messages.assignments import TopicPartitions, new_member_id
from aioparallel.clients.messages.consumer_groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    JOIN,
    LEAVE,
    LEAVE_TO_RETURN,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from aioparallel.clients.messages.share_groups import SHARE_GROUP_HEARTBEAT, ShareGroupHeartbeatRequest
from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.asking import Asking, asking

pytestmark = pytest.mark.real


class Group:
    """A group of members that one test plays."""

    def __init__(self, asked: Asking, topic: str, topic_id: bytes) -> None:
        self.asked = asked
        self.topic = topic
        self.topic_id = topic_id
        self.name = f"group-of-{topic}"

    async def heartbeat(self, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id=self.name, member_id=member, member_epoch=epoch, **fields)
        return await self.asked.coordinate(self.name, CONSUMER_GROUP_HEARTBEAT, request)

    async def describe(self) -> DescribedConsumerGroup:
        request = ConsumerGroupDescribeRequest(group_ids=(self.name,))
        (found,) = (await self.asked.coordinate(self.name, CONSUMER_GROUP_DESCRIBE, request)).groups
        return found

    @property
    def joining(self) -> dict[str, Any]:
        """All fields."""
        return {"rebalance_timeout_ms": 20_000, "subscribed_topic_names": (self.topic,), "topic_partitions": ()}

    def of(self, *partitions: int) -> tuple[TopicPartitions, ...]:
        return (TopicPartitions(self.topic_id, partitions),)


class GroupMember:
    """A member that owns what it was assigned, until it is told otherwise."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.member_id = new_member_id()
        self.epoch = JOIN
        self.owned: set[int] = set()

    async def heartbeat(self, **fields: Any) -> set[int] | None:
        """The assigned partitions; None: unchanged."""
        answer = await self.group.heartbeat(self.member_id, self.epoch, **fields)
        assert answer.error_code == 0, answer
        assert answer.member_id == self.member_id
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return None
        return {number for topic in answer.assignment.topic_partitions for number in topic.partitions}

    async def join(self) -> None:
        """Take what is assigned. The coordinator may hear of a new topic a little later."""
        self.owned = await self.heartbeat(**self.group.joining) or await self.until(bool)

    async def until(self, expected: Callable[[set[int]], bool]) -> set[int]:
        """Heartbeats until such an assignment comes. Brokers from 4.3 assign in the background, once in a second."""
        async with asyncio.timeout(15):
            while True:
                found = await self.heartbeat(topic_partitions=self.group.of(*sorted(self.owned)))
                if found is not None and expected(found):
                    return found
                await asyncio.sleep(0.05)


@asynccontextmanager
async def group_of(kafka: LocalKafka, topic: str) -> AsyncIterator[Group]:
    async with asking(kafka.bootstrap_servers) as asked:
        yield Group(asked, topic, await asked.topic_id(topic))


async def test_partitions_are_handed_over(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A member keeps a partition, and its epoch, until it says that it no longer has it. Only then another gets it."""
    async with group_of(local_kafka, await kafka_topic(4)) as group:
        first, second = GroupMember(group), GroupMember(group)
        await first.join()
        assert first.owned == {0, 1, 2, 3}
        assert first.epoch > 0
        assert await first.heartbeat(topic_partitions=group.of(0, 1, 2, 3)) is None

        assert await second.heartbeat(**group.joining) == set()
        before = first.epoch
        kept = await first.until(lambda found: len(found) == 2)
        assert first.epoch == before, "it goes up when the partitions are given away"
        assert await second.heartbeat() in (None, set())
        shown = await group.describe()
        assert (shown.group_state, shown.assignor_name) == ("Reconciling", "uniform")
        state = {
            one.member_id: tuple(
                {number for topic in some.topic_partitions for number in topic.partitions}
                for some in (one.assignment, one.target_assignment)
            )
            for one in shown.members
        }
        assert state == {first.member_id: ({0, 1, 2, 3}, kept), second.member_id: (set(), {0, 1, 2, 3} - kept)}
        assert {one.member_type for one in shown.members} == {1}

        first.owned = kept
        assert await first.heartbeat(topic_partitions=group.of(*sorted(kept))) is None
        assert first.epoch == before + 1
        assert await second.until(bool) == {0, 1, 2, 3} - kept
        assert second.epoch == first.epoch


async def test_a_lost_answer(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """With the epoch before, a member is fenced, unless it says which partitions it has and has no others. Full
    requests are answered with the assignment."""
    async with group_of(local_kafka, await kafka_topic(4)) as group:
        first, second = GroupMember(group), GroupMember(group)
        await first.join()
        await second.heartbeat(**group.joining)
        first.owned = await first.until(lambda found: len(found) == 2)
        owned = group.of(*sorted(first.owned))
        before = first.epoch
        await first.heartbeat(topic_partitions=owned)
        now, first.epoch = first.epoch, before
        assert now == before + 1
        assert (await group.heartbeat(first.member_id, before)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert await first.heartbeat(**group.joining | {"topic_partitions": owned}) == first.owned
        assert first.epoch == now
        answer = await group.heartbeat(first.member_id, before, topic_partitions=group.of(0, 1, 2, 3))
        assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert (
            await group.heartbeat(first.member_id, now + 1, topic_partitions=owned)
        ).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        # A member that joins anew with its id gets back what it had. Brokers before Kafka 4.2 fence it.
        first.epoch = JOIN
        assert await first.heartbeat(**group.joining) == first.owned


@pytest.mark.parametrize("missing", ["rebalance_timeout_ms", "subscribed_topic_names", "topic_partitions"])
async def test_who_joins_says_all(local_kafka: LocalKafka, kafka_topic: TopicMaker, missing: str) -> None:
    """And without an id nobody joins in version 1."""
    async with group_of(local_kafka, await kafka_topic()) as group:
        fields = {name: value for name, value in group.joining.items() if name != missing}
        assert (await group.heartbeat("id", JOIN, **fields)).error_code == ErrorCode.INVALID_REQUEST
        assert (await group.heartbeat("", JOIN, **group.joining)).error_code == ErrorCode.INVALID_REQUEST
        assert (await group.heartbeat("nobody", 3)).error_code in (
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.UNKNOWN_MEMBER_ID,
        )


async def test_patterns_and_assignors(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Wrong ones are refused with what is wrong. Topics of a pattern are found a little later."""
    async with group_of(local_kafka, await kafka_topic(2)) as group:
        refused = await group.heartbeat("one", JOIN, server_assignor="mine", **group.joining)
        assert refused.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert "uniform, range" in str(refused.error_message)
        by_pattern = {"rebalance_timeout_ms": 20_000, "topic_partitions": ()}
        refused = await group.heartbeat("one", JOIN, subscribed_topic_regex="a(", **by_pattern)
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "missing closing )" in str(refused.error_message)
        member = GroupMember(group)
        found = await member.heartbeat(subscribed_topic_regex=f"{group.topic[:-1]}.", **by_pattern)
        assert (found or await member.until(bool)) == {0, 1}


async def test_static_members(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A second one with the instance id is refused until the first has left in order to return."""
    async with group_of(local_kafka, await kafka_topic()) as group:
        static = group.joining | {"instance_id": "instance"}
        first = await group.heartbeat("first", JOIN, **static)
        assert first.error_code == 0
        refused = await group.heartbeat("second", JOIN, **static)
        assert refused.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
        left = await group.heartbeat("first", LEAVE_TO_RETURN, instance_id="instance")
        assert (left.error_code, left.member_epoch) == (0, LEAVE_TO_RETURN)
        second = await group.heartbeat("second", JOIN, **static)
        assert second.error_code == 0
        fenced = await group.heartbeat("first", first.member_epoch, instance_id="instance")
        assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
        left = await group.heartbeat("second", LEAVE, instance_id="instance")
        assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (0, LEAVE, 0)


async def test_a_group_has_one_type(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A member of another one is told that there is no such group."""
    async with group_of(local_kafka, await kafka_topic()) as group:
        assert (await group.heartbeat("one", JOIN, **group.joining)).error_code == 0
        request = ShareGroupHeartbeatRequest(
            group_id=group.name, member_id="two", member_epoch=JOIN, subscribed_topic_names=(group.topic,)
        )
        refused = await group.asked.coordinate(group.name, SHARE_GROUP_HEARTBEAT, request)
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {group.name} is not a share group.",
        )
