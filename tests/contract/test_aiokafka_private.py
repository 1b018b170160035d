"""Each private access to aiokafka against the installed version: it exists, takes the arguments, and does what is
relied on.

A failure here names what a new aiokafka has changed; the file to change is in ``aioparallel/clients/aiokafka``."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import struct
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import aiokafka.errors as kafka
import pytest
import pytest_asyncio
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.client import ConnectionGroup
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.consumer.fetcher import FetchError, FetchResult
from aiokafka.protocol.commit import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse_v3,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v1
from aiokafka.record.memory_records import MemoryRecords

from aioparallel.clients.aiokafka import internals, log_noise
from aioparallel.clients.aiokafka.internals import RawRecord
from aioparallel.clients.aiokafka.membership import Membership
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, FetchFailed, NotAuthorized, UnreadableBatch
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from tests.support.clusters.aiokafka_cluster import AiokafkaCluster, serving
from tests.support.clusters.aiokafka_member import Member, consumer_of, coordinator_of, fetcher_of, unique, walk_of
from tests.support.clusters.cluster import Produced
from tests.support.clusters.protocols import missing
from tests.support.waiting import until


@pytest_asyncio.fixture
async def cluster(embedded_broker: EmbeddedBroker) -> AsyncIterator[AiokafkaCluster]:
    """The embedded broker."""
    async with serving(embedded_broker) as opened:
        yield opened


@pytest_asyncio.fixture
async def member(cluster: AiokafkaCluster) -> Member:
    """A member with one partition of 10 records, not read yet."""
    topic = unique("topic")
    await cluster.create_topic(topic)
    await cluster.produce(topic, [Produced(b"value", b"key", (("name", b"text"),), 1_000 + i) for i in range(10)])
    joined = Member(cluster.client(unique("group")))
    await joined.join(topic)
    return joined


async def with_data(member: Member) -> internals.FetchedData:
    """aiokafka's buffer of the one partition, with data."""
    member.read_from(0)
    (partition,) = member.held
    buffers = fetcher_of(member.client)._records
    await until(lambda: partition in buffers, what="a fetch response")
    data = buffers[partition]
    assert isinstance(data, FetchResult)
    return cast("internals.FetchedData", data)


async def test_every_declared_member_exists(member: Member) -> None:
    """What ``internals.py`` declares exists on live objects, with the parameters it is called with."""
    data = await with_data(member)
    (partition,) = member.held
    consumer, fetcher = consumer_of(member.client), fetcher_of(member.client)
    subscription = consumer._subscription.subscription
    assert subscription is not None
    assert subscription.assignment is not None
    records = data._partition_records
    batch = records._records.next_batch()
    live = {
        internals.Assignment: subscription.assignment,
        internals.BrokerNode: next(iter(consumer._client.cluster.brokers())),
        internals.ClusterView: consumer._client.cluster,
        internals.Connection: next(iter(consumer._client._conns.values())),
        internals.Connections: consumer._client,
        internals.Consumer: consumer,
        internals.Coordinator: coordinator_of(member.client),
        internals.FetchFault: FetchError(error=ValueError(), backoff=0.0),
        internals.FetchedData: data,
        internals.Fetcher: fetcher,
        internals.MetadataAnswer: MetadataResponse_v1(brokers=[], controller_id=1, topics=[]),
        internals.OffsetFetchAnswer: OffsetFetchResponse_v3(throttle_time_ms=0, topics=[], error_code=0),
        internals.PartitionRecords: records,
        internals.PartitionState: subscription.assignment.state_value(partition),
        internals.RawBatch: batch,
        internals.RawBatches: records._records,
        internals.RawRecord: next(iter(batch)),
        internals.Subscription: subscription,
        internals.SubscriptionState: consumer._subscription,
    }
    declared = {getattr(internals, name) for name in internals.__all__}
    assert declared == set(live)
    assert {kind.__name__: missing(thing, kind) for kind, thing in live.items()} == {k.__name__: [] for k in live}


def test_what_is_imported_and_called_takes_our_arguments() -> None:
    """The requests, and the function that connects, take what they are given."""
    inspect.signature(OffsetCommitRequest).bind("group", 1, "member", -1, [("topic", [(0, 1, "text")])])
    assert OffsetCommitRequest.DEFAULT_GENERATION_ID == OffsetCommitRequest.DEFAULT_RETENTION_TIME == -1
    inspect.signature(OffsetFetchRequest).bind("group", [("topic", [0])])
    inspect.signature(LeaveGroupRequest).bind("group", "member")
    inspect.signature(HeartbeatRequest).bind("group", 1, "member")
    assert JoinGroupRequest.UNKNOWN_MEMBER_ID == ""
    assert SyncGroupRequest.API_KEY == 14
    options = {"client_id", "security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username"}
    assert options <= set(inspect.signature(create_conn).parameters)
    assert ConnectionGroup.DEFAULT != ConnectionGroup.COORDINATION
    assert [host[:2] for host in collect_hosts("a:1,b:2", randomize=False)] == [("a", 1), ("b", 2)]


def test_a_metadata_request_can_forbid_creation() -> None:
    """From version 4 on, the request has the attribute that the metadata connection sets."""
    request = MetadataRequest(["topic"])
    request._allow_auto_topic_creation = False
    built = request.prepare({MetadataRequest.API_KEY: (0, 5)})
    assert built.API_VERSION >= 4
    assert built.allow_auto_topic_creation is False


def test_error_codes_are_those_of_the_protocol() -> None:
    """If aiokafka has a class for a code, it is the expected one."""
    names = {
        ErrorCode.ILLEGAL_GENERATION: kafka.IllegalGenerationError,
        ErrorCode.UNKNOWN_MEMBER_ID: kafka.UnknownMemberIdError,
        ErrorCode.REBALANCE_IN_PROGRESS: kafka.RebalanceInProgressError,
        ErrorCode.OFFSET_METADATA_TOO_LARGE: kafka.OffsetMetadataTooLargeError,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: kafka.InvalidCommitOffsetSizeError,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: kafka.GroupLoadInProgressError,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: kafka.GroupCoordinatorNotAvailableError,
        ErrorCode.NOT_COORDINATOR: kafka.NotCoordinatorForGroupError,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: kafka.TopicAuthorizationFailedError,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: kafka.GroupAuthorizationFailedError,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: kafka.UnknownTopicOrPartitionError,
    }
    assert {code: kafka.for_code(code) for code in names} == names
    assert kafka.GroupLoadInProgressError.retriable
    assert not kafka.GroupAuthorizationFailedError.retriable


def test_the_lines_to_be_log_noise_about_are_lines_that_aiokafka_logs() -> None:
    """Each message of the filter's table is a string in the module of one of its loggers."""
    modules = ["aiokafka.client", "aiokafka.cluster", "aiokafka.conn"]
    modules += ["aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator"]
    sources = [inspect.getsource(importlib.import_module(name)) for name in modules]
    strings = {
        node.value for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)
    }
    assert set(log_noise.NORMAL) <= strings
    loggers = {importlib.import_module(name).log.name for name in modules}
    assert set(log_noise.LOGGERS) == loggers


def test_a_membership_is_a_listener_to_aiokafka() -> None:
    """It passes aiokafka's check for its abstract class, and has the two methods that are called."""
    assert issubclass(Membership, ConsumerRebalanceListener)
    assert {"on_partitions_assigned", "on_partitions_revoked"} == ConsumerRebalanceListener.__abstractmethods__


async def test_nothing_is_decoded_before_our_decoder_takes_over(member: Member) -> None:
    """aiokafka's own iterator is a generator that has not started, so it can be replaced."""
    records = (await with_data(member))._partition_records
    iterator = records._records_iterator
    assert inspect.isgenerator(iterator)
    assert inspect.getgeneratorstate(iterator) == inspect.GEN_CREATED
    assert records.next_fetch_offset == 0


async def test_an_idle_client_is_not_taken_for_a_stalled_one(member: Member) -> None:
    """With a fetch that never ends, aiokafka sees no idle time, however long ago the last one ended."""
    subscriptions = consumer_of(member.client)._subscription
    assert hasattr(subscriptions, "_last_fetch_ended")
    subscriptions._last_fetch_ended = time.monotonic() - 1e9
    assert subscriptions.fetcher_idle_time == 0


async def test_a_cancelled_fetch_leaves_no_waiter_behind(member: Member) -> None:
    """aiokafka keeps its fetch waiters in a set. Ours leaves it however it ends."""
    fetcher = fetcher_of(member.client)
    waiters = fetcher._fetch_waiters
    for _ in range(3):
        fetch = asyncio.create_task(member.client.fetch({}))
        await until(lambda: waiters, what="a waiter")
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        await until(lambda: not waiters, what="the waiter's end")
    fetch = asyncio.create_task(member.client.fetch({}))
    await until(lambda: waiters, what="a waiter")
    member.client.wake()
    assert await fetch == []
    await until(lambda: not waiters, what="the waiter's end")


async def test_a_coordination_error_reaches_the_waiting_fetch(member: Member) -> None:
    """An error that aiokafka reports to its user is raised by a waiting fetch at once, and only once."""
    coordinator = coordinator_of(member.client)
    fetch = asyncio.create_task(member.client.fetch({}))
    await until(lambda: fetcher_of(member.client)._fetch_waiters, what="a waiter")
    pushed = asyncio.ensure_future(
        coordinator._push_error_to_user(kafka.GroupAuthorizationFailedError("the-group"))  # type: ignore[attr-defined]
    )
    with pytest.raises(NotAuthorized, match="the-group"):
        async with asyncio.timeout(120):
            await fetch
    await pushed  # the coordinator goes on: the error counts as consumed
    member.client.wake()
    assert await member.client.fetch({}) == []


async def test_a_crashed_background_task_reaches_the_waiting_fetch(member: Member) -> None:
    """When the fetching task ends with an error, a waiting fetch raises it instead of waiting for ever."""
    fetcher = fetcher_of(member.client)
    fetch = asyncio.create_task(member.client.fetch({}))
    await until(lambda: fetcher._fetch_waiters, what="a waiter")
    fetcher._get_actions_per_node = None  # type: ignore[attr-defined]
    fetcher._notify(fetcher._wait_consume_future)
    with pytest.raises(ClientError, match="during data retrieval"):
        async with asyncio.timeout(120):
            await fetch


class TornBatches:
    """Batches that cannot be decoded at offset 4."""

    def __init__(self, batches: internals.RawBatches) -> None:
        self._batches = batches
        self.has_next = batches.has_next

    def next_batch(self) -> internals.RawBatch:
        return cast("internals.RawBatch", TornBatch(self._batches.next_batch()))


class TornBatch:
    def __init__(self, batch: internals.RawBatch) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> object:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[RawRecord]:
        for raw in self._batch:
            if raw.offset == 4:
                raise kafka.CorruptRecordException("bad")
            yield raw


async def test_what_aiokafkas_decoder_refuses_is_read_from_the_bytes_of_the_response(member: Member) -> None:
    """The bytes are kept until they are decoded, and no longer."""
    records = (await with_data(member))._partition_records
    records._records = TornBatches(records._records)
    (partition,) = member.held
    walk = walk_of(member.client)
    assert partition in walk._responses._bytes
    async with asyncio.timeout(120):
        taken = await member.client.fetch({partition: 100})
    assert [record.offset for record in taken[0].records] == list(range(10))
    assert taken[0].records[7].headers == (("name", b"text"),)
    assert taken[0].next_offset == 10
    assert not walk._responses._bytes


async def test_the_bytes_of_unread_responses_are_dropped(member: Member) -> None:
    """Those of a partition that was sought or dropped."""
    await with_data(member)
    (partition,) = member.held
    walk = walk_of(member.client)
    kept = walk._responses._bytes
    fetcher_of(member.client)._records.clear()
    assert partition in kept
    walk.take({partition: 1})
    assert not walk._responses._bytes


async def test_a_walk_keeps_what_came_before_unreadable_data(
    member: Member, cluster: AiokafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records before a damaged batch are delivered. The error names the batch and its offsets until seek(), after
    which it is fetched again."""
    (partition,) = member.held
    await cluster.produce(partition.topic, [Produced(b"value")] * 5)

    def damaged(data: bytes) -> MemoryRecords:
        found, at = bytearray(data), 0
        while at < len(found):
            base, length = struct.unpack_from(">qi", found, at)
            at += 12 + length
            if base == 10:
                found[at - 1] ^= 1
        return MemoryRecords(bytes(found))

    async with asyncio.timeout(120):
        with monkeypatch.context() as patch:
            patch.setattr("aiokafka.consumer.fetcher.MemoryRecords", damaged)
            member.read_from(0)
            taken = await member.client.fetch({partition: 100})
            assert [record.offset for record in taken[0].records] == list(range(10))
            assert taken[0].next_offset == 10
            for _ in range(2):
                with pytest.raises(UnreadableBatch, match=f"{partition}: cannot read at offset 10") as raised:
                    await member.client.fetch({partition: 100})
                assert (raised.value.batch, raised.value.next_offset) == (10, 15)
        # Nothing was skipped: what follows is read again from there.
        member.client.seek(partition, 10)
        taken = await member.client.fetch({partition: 100})
    assert [record.offset for record in taken[0].records] == [10, 11, 12, 13, 14]


async def test_a_broker_that_cannot_read_its_own_log_is_an_error(member: Member) -> None:
    """aiokafka would repeat the request at once, for ever, without a report."""
    (partition,) = member.held
    connections = consumer_of(member.client)._client
    asked, (topic, number) = 0, partition
    send = walk_of(member.client)._responses._send

    async def corrupt(node: int, request: Any, **given: Any) -> Any:
        nonlocal asked
        answer = await send(node, request, **given)
        if isinstance(request, FetchRequest) and request.topics:
            asked += 1
            answer.topics = [(topic, [(number, ErrorCode.CORRUPT_MESSAGE, -1, -1, -1, [], b"")])]
        return answer

    walk_of(member.client)._responses._send = corrupt
    member.read_from(0)
    async with asyncio.timeout(120):
        for _ in range(3):
            with pytest.raises(FetchFailed, match=f"{partition}: cannot read at offset 0: its leader reports"):
                await member.client.fetch({partition: 100})
        assert asked == 1
        walk_of(member.client)._responses._send = send
        member.client.seek(partition, 0)
        assert len((await member.read(10))[partition]) == 10
    assert connections.send == walk_of(member.client)._responses.send


async def test_a_record_larger_than_a_fetch_is_not_stepped_over(member: Member) -> None:
    """aiokafka moves its position beyond such a record. The client moves it back and reports the offset."""
    await with_data(member)
    (partition,) = member.held
    fetcher = fetcher_of(member.client)
    subscription = consumer_of(member.client)._subscription.subscription
    assert subscription is not None
    assert subscription.assignment is not None
    state = subscription.assignment.state_value(partition)
    assert state is not None
    del fetcher._records[partition]
    fetcher._set_error(partition, kafka.RecordTooLargeError("large"))  # type: ignore[attr-defined]
    state.consumed_to(state.position + 1)  # type: ignore[attr-defined]
    with pytest.raises(FetchFailed, match="offset 0: the record is larger"):
        async with asyncio.timeout(120):
            await member.client.fetch({partition: 100})
    member.client.seek(partition, 0)
    assert len((await member.read(10))[partition]) == 10
