"""Commits and committed offsets on Apache Kafka: late requests, silent coordinators, sizes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, cast

import pytest
import pytest_asyncio
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.commit import OffsetCommitResponse_v3, OffsetFetchResponse_v3

from aioparallel.clients.aiokafka import AiokafkaClient, group_messages
from aioparallel.clients.aiokafka.internals import Connections, Coordinator
from aioparallel.clients.aiokafka.offset_requests import GroupOffsets
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import NotAuthorized
from aioparallel.records.record import TopicPartition
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from aioparallel.testing.brokers.local import LocalKafka
from tests.support.clusters.aiokafka_cluster import AiokafkaCluster, serving
from tests.support.clusters.aiokafka_member import Member, consumer_of, unique
from tests.support.waiting import until

ONE = TopicPartition("topic", 0)
TWO = TopicPartition("topic", 1)
GENERATION = Generation(3, "member")


@pytest_asyncio.fixture
async def kafka(local_kafka: LocalKafka) -> AsyncIterator[AiokafkaCluster]:
    """Apache Kafka."""
    async with serving(local_kafka) as opened:
        yield opened


class HeldLine:
    """A slow network: requests of one member to its coordinator wait here until they are released."""

    def __init__(self, member: Member) -> None:
        connections = consumer_of(member.client)._client._conns
        found = [c for key, c in connections.items() if cast("tuple[int, int]", key)[1] == ConnectionGroup.COORDINATION]
        writer = found[0]._writer
        assert writer is not None
        self._writer = writer
        self._write = writer.write
        self._held: list[bytes] = []
        writer.write = self._held.append  # type: ignore[method-assign, assignment]

    def release(self) -> None:
        """Send the held requests in their order."""
        self._writer.write = self._write  # type: ignore[method-assign]
        for data in self._held:
            self._write(data)


@pytest.mark.real
async def test_a_commit_that_arrives_after_a_rebalance_changes_nothing(kafka: AiokafkaCluster) -> None:
    """It has the generation of its session. The coordinator refuses it, and the new owner's offset stays."""
    topic, group = unique("topic"), unique("group")
    await kafka.create_topic(topic)
    partition = TopicPartition(topic, 0)
    # A long session: a heartbeat may be held for a third of it before the connection is given up.
    old, new = Member(kafka.client(group, session_timeout=90)), Member(kafka.client(group))
    await old.join(topic)
    line = HeldLine(old)
    result = await old.client.commit({partition: Committed(10, "old")}, old.generation, 0.2)
    assert result == {partition: CommitFault.RETRIABLE}
    await kafka.evict(group, old.generation.member_id)
    await new.join(topic)
    assert new.held == {partition}
    assert await new.client.commit({partition: Committed(90, "new")}, new.generation, 5.0) == {partition: None}
    line.release()
    # The heartbeat behind the commit on the same connection has been answered, so the commit has been, too.
    await until(lambda: old.count("lost"), what="the old member's loss")
    assert await new.client.committed([partition], 5.0) == {partition: Committed(90, "new")}


@pytest.mark.real
async def test_commits_and_questions_have_deadlines(kafka: AiokafkaCluster, local_kafka: LocalKafka) -> None:
    """While the broker hangs, no call exceeds its timeout. Afterwards the same client continues."""
    topic = unique("topic")
    await kafka.create_topic(topic)
    partition = TopicPartition(topic, 0)
    member = Member(kafka.client(unique("group"), session_timeout=30))
    await member.join(topic)
    offsets = {partition: Committed(1, "")}
    local_kafka.pause()
    try:
        async with asyncio.timeout(120):
            # The threads of the broker stop a moment after the signal: a first request may still be answered.
            while await member.client.commit(offsets, member.generation, 0.1) == {partition: None}:
                pass
        result = await member.client.commit(offsets, member.generation, 0.1)
        assert result == {partition: CommitFault.RETRIABLE}
        with pytest.raises(TimeoutError, match="committed offsets of group"):
            await member.client.committed([partition], 0.1)
        with pytest.raises(TimeoutError, match=f"end offsets of {partition}"):
            await member.client.end_offsets([partition], 0.1)
        with pytest.raises(TimeoutError, match=f"first offsets of {partition}"):
            await member.client.beginning_offsets([partition], 0.1)
        with pytest.raises(TimeoutError, match="by time"):
            await member.client.offsets_for_times({partition: 0}, 0.1)
        with pytest.raises(TimeoutError, match=f"partitions of {topic}"):
            await member.client.partitions([topic], 0.1)
    finally:
        local_kafka.resume()
    assert await member.client.commit({partition: Committed(2, "")}, member.generation, 10.0) == {partition: None}
    assert await member.client.committed([partition], 10.0) == {partition: Committed(2, "")}
    assert await member.client.partitions([topic], 10.0) == {partition}


@pytest.mark.real
async def test_a_request_larger_than_a_batch_is_too_large_and_not_retried_for_ever(kafka: AiokafkaCluster) -> None:
    """The broker answers a batch over 1 MB with an unknown error. The committer must then make smaller metadata."""
    topic = unique("topic")
    await kafka.create_topic(topic, 100)
    member = Member(kafka.client(unique("group")))
    await member.join(topic)
    offsets = dict.fromkeys(member.held, Committed(5, "\u8000" * 4096))
    result = await member.client.commit(offsets, member.generation, 10.0)
    assert result == dict.fromkeys(offsets, CommitFault.METADATA_TOO_LARGE)
    assert await member.client.committed(member.held, 10.0) == {}
    half = dict.fromkeys(member.held, Committed(5, "\u8000" * 2048))
    assert await member.client.commit(half, member.generation, 10.0) == dict.fromkeys(half, None)
    assert await member.client.committed(member.held, 10.0) == half


class Answers:
    """A coordinator with given answers, in order; the last one is repeated."""

    coordinator_id: int | None = 1
    _group_instance_id: str | None = None

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.requests: list[object] = []
        self.dead = 0

    async def ensure_coordinator_known(self) -> None:
        """Known."""

    def coordinator_dead(self) -> None:
        """Counted."""
        self.dead += 1

    async def send(self, _node: int, request: object, *, group: int) -> object:
        """The next answer."""
        self.requests.append(request)
        assert group == ConnectionGroup.COORDINATION
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def no_ids(topics: Collection[str], timeout: float) -> dict[str, bytes]:
    """As brokers before Kafka 3.0."""
    return {}


def offsets_answered(*answers: object, topic_ids: Any = no_ids) -> tuple[GroupOffsets, Answers, list[Generation]]:
    """The offsets of a group whose coordinator gives these answers, and the fenced generations."""
    fake, fenced, stale = Answers(*answers), list[Generation](), list[Generation]()
    coordinator, connections = cast("Coordinator", fake), cast("Connections", fake)
    offsets = GroupOffsets(
        "group",
        coordinator,
        connections,
        topic_ids,
        retry_backoff=0.001,
        instance_id=None,
        on_fenced=lambda generation, **_: fenced.append(generation),
        on_stale=stale.append,
    )
    return offsets, fake, fenced


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (ErrorCode.NONE, None),
        (ErrorCode.ILLEGAL_GENERATION, CommitFault.FENCED),
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFault.FENCED),
        (ErrorCode.FENCED_INSTANCE_ID, CommitFault.FENCED),
        (ErrorCode.FENCED_MEMBER_EPOCH, CommitFault.FENCED),
        (ErrorCode.STALE_MEMBER_EPOCH, CommitFault.RETRIABLE),
        (ErrorCode.REBALANCE_IN_PROGRESS, CommitFault.RETRIABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, CommitFault.RETRIABLE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, CommitFault.RETRIABLE),
        (ErrorCode.NOT_COORDINATOR, CommitFault.RETRIABLE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, CommitFault.RETRIABLE),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, CommitFault.METADATA_TOO_LARGE),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, CommitFault.METADATA_TOO_LARGE),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, CommitFault.REFUSED),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, CommitFault.REFUSED),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, CommitFault.REFUSED),
        (9999, CommitFault.RETRIABLE),
    ],
)
async def test_each_error_code_has_its_fault(code: int, fault: CommitFault | None) -> None:
    """Each partition has the result of its own code. A partition without an answer is not acknowledged."""
    answer = OffsetCommitResponse_v3(throttle_time_ms=0, topics=[("topic", [(0, code)])])
    offsets, coordinator, fenced = offsets_answered(answer)
    results = await offsets.commit({ONE: Committed(1, ""), TWO: Committed(2, "")}, GENERATION, 1.0)
    assert results == {ONE: fault, TWO: CommitFault.RETRIABLE}
    assert fenced == ([GENERATION] if fault is CommitFault.FENCED else [])
    assert coordinator.dead == (code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


async def test_offset_retention_is_in_the_commit() -> None:
    """With ``offset_retention``; otherwise the broker's setting applies."""
    answer = OffsetCommitResponse_v3(throttle_time_ms=0, topics=[("topic", [(0, 0)])])
    for given, sent in ((None, -1), (90.0, 90_000)):
        fake = Answers(answer)
        coordinator, connections = cast("Coordinator", fake), cast("Connections", fake)
        offsets = GroupOffsets(
            "group",
            coordinator,
            connections,
            no_ids,
            retry_backoff=0.001,
            instance_id=None,
            on_fenced=print,
            on_stale=print,
            offset_retention=given,
        )
        await offsets.commit({ONE: Committed(1, "")}, GENERATION, 1.0)
        request = cast("Any", fake.requests[0])
        assert (9 if given is None else 3) == request.prepare({8: (2, 9)}).API_VERSION
        assert getattr(request.older, "_retention_time", None) == sent


async def test_a_loading_coordinator_is_not_an_empty_group() -> None:
    """Its answer has an error code and no partitions. Taken for "nothing committed", the log would be read again."""
    loading = OffsetFetchResponse_v3(
        throttle_time_ms=0, topics=[], error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    )
    moved = OffsetFetchResponse_v3(throttle_time_ms=0, topics=[], error_code=int(ErrorCode.NOT_COORDINATOR))
    partly = OffsetFetchResponse_v3(throttle_time_ms=0, topics=[("topic", [(1, -1, "", 0)])], error_code=0)
    whole = OffsetFetchResponse_v3(
        throttle_time_ms=0, topics=[("topic", [(0, 5, "text", 0), (1, -1, "", 0)])], error_code=0
    )
    offsets, coordinator, _ = offsets_answered(loading, moved, partly, whole)
    assert await offsets.committed([ONE, TWO], 1.0) == {ONE: Committed(5, "text")}
    assert coordinator.dead == 1
    offsets, _, _ = offsets_answered(loading)
    with pytest.raises(TimeoutError, match="committed offsets of group 'group'"):
        await offsets.committed([ONE], 0.05)


async def test_an_id_that_the_coordinator_does_not_know_is_not_an_empty_group() -> None:
    """The broker that reported the id may be outdated, so it is requested again."""
    answer, old, new = group_messages._OffsetFetch_v10.RESPONSE_TYPE, b"o" * 16, b"n" * 16
    told = [{"topic": old}, {"topic": new}]

    async def ids(topics: Collection[str], timeout: float) -> dict[str, bytes]:
        return told.pop(0)

    unknown = answer(0, [("group", [(old, [(0, -1, -1, "", 100, {})], {})], 0, {})], {})
    known = answer(0, [("group", [(new, [(0, 5, 2, "text", 0, {})], {})], 0, {})], {})
    offsets, _, _ = offsets_answered(unknown, known, topic_ids=ids)
    assert await offsets.committed([ONE], 1.0) == {ONE: Committed(5, "text", 2)}


async def test_each_position_is_committed_for_the_topic_that_it_is_of() -> None:
    """A position may still belong to the topic before a recreation. Only that one is refused."""
    old, new = b"o" * 16, b"n" * 16
    answer = group_messages._Commit_v10.RESPONSE_TYPE(0, [(old, [(0, 100, {})], {}), (new, [(1, 0, {})], {})], {})
    offsets, fake, _ = offsets_answered(answer)
    sent = {ONE: Committed(1, "", 0, old), TWO: Committed(2, "", 0, new)}
    assert await offsets.commit(sent, GENERATION, 1.0) == {ONE: CommitFault.REFUSED, TWO: None}
    request = cast("Any", fake.requests[0])
    sent_topics = request.prepare({8: (2, 10)}).topics
    assert sent_topics == [(old, [(0, 1, 0, "", {})], {}), (new, [(1, 2, 0, "", {})], {})]
    offsets, fake, _ = offsets_answered(answer)
    await offsets.commit(sent | {TWO: Committed(2, "", 0)}, GENERATION, 1.0)
    assert cast("Any", fake.requests[0]).prepare({8: (2, 10)}).API_VERSION == 9


async def test_a_group_that_may_not_be_read_is_not_authorized() -> None:
    """A missing permission is not retried."""
    refused = OffsetFetchResponse_v3(
        throttle_time_ms=0, topics=[], error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    )
    offsets, _, _ = offsets_answered(refused)
    with pytest.raises(NotAuthorized, match="group"):
        await offsets.committed([ONE], 1.0)


async def test_logs_of_many_topics_are_asked_for_at_once() -> None:
    """aiokafka by itself requests the metadata of one unknown topic after the other, with a pause after each."""
    topics = [f"topic-{number}" for number in range(60)]
    with EmbeddedBroker() as broker:
        for topic in topics:
            await broker.create_topic(topic, 1)
        client = AiokafkaClient(broker.bootstrap_servers, "group")
        await client.start(10.0)
        requested = 0

        def count(_cluster: object) -> None:
            nonlocal requested
            requested += 1

        try:
            client._run().consumer._client.cluster.add_listener(count)
            asked = [TopicPartition(topic, 0) for topic in topics]
            assert await client.beginning_offsets(asked, 30.0) == dict.fromkeys(asked, 0)
            assert await client.end_offsets(asked, 30.0) == dict.fromkeys(asked, 0)
        finally:
            await client.stop(5.0)
    assert requested < 10
