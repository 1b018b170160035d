"""What only AiokafkaProducer has: brokers that die or hang, lost identities, and private accesses to aiokafka."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from typing import cast

import aiokafka.errors as kafka
import pytest
import pytest_asyncio
from aiokafka.client import ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.produce import ProduceRequest, ProduceResponse_v2, ProduceResponse_v7
from aiokafka.protocol.transaction import InitProducerIdRequest
from typing_extensions import get_protocol_members

from aioparallel.clients import AiokafkaProducer
from aioparallel.clients.aiokafka import internals
from aioparallel.clients.aiokafka.produce_requests import AiokafkaBrokers
from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import PartitionQueue
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Headers, Outgoing, Produced
from aioparallel.testing.brokers.local import LocalKafka
from tests.support.clusters.aiokafka_cluster import AiokafkaCluster, serving
from tests.support.clusters.aiokafka_member import unique
from tests.support.clusters.sender import Sender
from tests.support.waiting import until


@pytest_asyncio.fixture
async def cluster(local_kafka: LocalKafka) -> AsyncIterator[AiokafkaCluster]:
    """Apache Kafka, which runs again after each test."""
    async with serving(local_kafka) as opened:
        yield opened


def queue_of(producer: AiokafkaProducer, topic: str, partition: int) -> PartitionQueue:
    """The queue of one partition."""
    return producer._partition_queues.topics[topic].queues[partition]


@pytest.mark.real
async def test_a_killed_broker_costs_nothing(mortal_kafka: LocalKafka) -> None:
    """The broker is killed and restarted during a stream of outputs. Each output is in its log once, in order."""
    async with serving(mortal_kafka) as cluster:
        await kill_amid_a_stream(cluster, mortal_kafka)


async def kill_amid_a_stream(cluster: AiokafkaCluster, kafka: LocalKafka) -> None:
    topic = unique("topic")
    await cluster.create_topic(topic, 3)
    sender = Sender(cluster.producer(delivery_timeout=60.0))
    waiting: list[asyncio.Future[object]] = []
    killing = asyncio.create_task(kill_and_restart(kafka, lambda: len(waiting) > 2000))
    while not killing.done() or len(waiting) < 4000:
        number = len(waiting)
        output = Outgoing(topic, b"%d" % number, partition=number % 3)
        waiting.append(cast("asyncio.Future[object]", sender.send(output)))
        await asyncio.sleep(0.0005)
    await killing
    async with asyncio.timeout(120):
        results = await asyncio.gather(*waiting)
    assert not [result for result in results if isinstance(result, ProduceFailed)]
    records = await cluster.records(topic)
    for partition in range(3):
        numbers = [int(r.value or b"") for r in records if r.partition == partition]
        assert numbers == list(range(partition, len(waiting), 3))


async def kill_and_restart(broker: LocalKafka, when: Callable[[], bool]) -> None:
    """As soon as ``when`` is true."""
    await until(when, what="enough outputs")
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.restart)


@pytest.mark.real
async def test_a_hanging_broker(cluster: AiokafkaCluster, local_kafka: LocalKafka) -> None:
    """While the broker hangs, outputs fail after the delivery timeout, one by one. Younger ones are written once it
    continues, and the failed ones are not."""
    topic = unique("topic")
    await cluster.create_topic(topic)
    sender = Sender(cluster.producer(delivery_timeout=4.0))
    await sender.written(Outgoing(topic, b"0"))
    local_kafka.pause()
    try:
        old = sender.send(Outgoing(topic, b"1"))
        await asyncio.sleep(2.8)  # so much longer has the young one
        young = sender.send(Outgoing(topic, b"2"))
        failure = await old
        assert not young.done()
    finally:
        local_kafka.resume()
    assert isinstance(failure, ProduceFailed)
    assert failure.passing
    assert "delivery_timeout=4 s" in failure.reason
    assert not isinstance(await young, ProduceFailed)
    await sender.written(Outgoing(topic, b"3"))
    values = [record.value for record in await cluster.records(topic)]
    assert list(dict.fromkeys(values)) in [[b"0", b"1", b"2", b"3"], [b"0", b"2", b"3"]]


@pytest.mark.real
async def test_lost_numbers_are_replaced(cluster: AiokafkaCluster) -> None:
    """If the broker refuses the sequence numbers, a partition continues with its next epoch; if it refuses the producer
    id, with a new one. Other partitions keep theirs, and all may share a request."""
    topic = unique("topic")
    await cluster.create_topic(topic, 2)
    producer = cluster.producer()
    sender = Sender(producer)
    await sender.written(*(Outgoing(topic, b"0", partition=number) for number in range(2)))
    numbers = [queue_of(producer, topic, number).numbering for number in range(2)]
    (first, sequence), other = numbers[0].next(None) or (None, None), numbers[1].next(None)
    assert first is not None
    assert other == (first, 1) == (first, sequence)
    numbers[0]._sequence += 7
    await sender.written(*(Outgoing(topic, b"1", partition=number) for number in range(2)))
    assert numbers[0].next(None) == (Identity(first.producer_id, 1), 1)
    assert numbers[1].next(None) == (first, 2)
    numbers[0]._identity = first  # an epoch that the broker has seen the end of
    await sender.written(*(Outgoing(topic, b"2", partition=number) for number in range(2)))
    fresh = numbers[0].next(None)
    assert fresh is not None
    assert fresh[0].producer_id != first.producer_id
    assert numbers[1].next(None) == (first, 3)
    records = await cluster.records(topic)
    assert [(r.partition, r.value) for r in records] == [(p, v) for p in range(2) for v in (b"0", b"1", b"2")]


@pytest.mark.real
async def test_batches_are_compressed(cluster: AiokafkaCluster) -> None:
    """With each codec of aiokafka; the outputs are read back unchanged."""
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        topic = unique("topic")
        await cluster.create_topic(topic)
        sender = Sender(cluster.producer(producer_options={"compression_type": codec}))
        await sender.written(*(Outgoing(topic, b"value" * 100) for _ in range(50)))
        assert [record.value for record in await cluster.records(topic)] == [b"value" * 100] * 50


async def test_what_cannot_be_written_fails_alone(cluster: AiokafkaCluster) -> None:
    """Outputs above max_request_size, with invalid headers or a timestamp out of range fail at once, with the
    reason."""
    topic = unique("topic")
    await cluster.create_topic(topic)
    sender = Sender(cluster.producer(producer_options={"max_request_size": 1000}))
    changed = Outgoing(topic, b"value")
    changed.headers = cast("Headers", (("name", "text"),))  # refused where it is made, but it may be changed after
    wrong = [
        sender.send(Outgoing(topic, bytes(1000))),
        sender.send(changed),
        sender.send(Outgoing(topic, b"value", timestamp=2**70)),
    ]
    await sender.written(Outgoing(topic, b"good"))
    reasons, sizes = [], []
    for future in wrong:
        failure = await future
        assert isinstance(failure, ProduceFailed)
        assert not failure.passing
        reasons.append(failure.reason)
        sizes.append(failure.too_large)
    assert sizes == [True, False, False]
    assert "bytes large and max_request_size is 1,000" in reasons[0]
    assert "headers" in reasons[1]
    assert "cannot be encoded as a record" in reasons[2]
    assert [record.value for record in await cluster.records(topic)] == [b"good"]


async def test_a_partitioner_decides(cluster: AiokafkaCluster) -> None:
    """It is called with the key, all partitions and those with a leader. Its errors fail the output."""
    topic = unique("topic")
    await cluster.create_topic(topic, 3)

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        assert every == available == [0, 1, 2]
        return 9 if key is None else 1 // len(key)

    sender = Sender(cluster.producer(producer_options={"partitioner": partitioner}))
    places = await sender.written(Outgoing(topic, b"value", b"k"), Outgoing(topic, b"value", b"kk"))
    assert [place.partition for place in places] == [1, 0]
    assert "chose partition 9" in (await sender.failed(Outgoing(topic, b"value"))).reason
    assert "ZeroDivisionError" in (await sender.failed(Outgoing(topic, b"value", b""))).reason


async def test_lingering_waits_for_more_outputs(cluster: AiokafkaCluster) -> None:
    """With linger_ms an idle producer waits that long before it sends, and sends what arrived meanwhile as well."""
    topic = unique("topic")
    await cluster.create_topic(topic)
    producer = cluster.producer(producer_options={"linger_ms": 400})
    sender = Sender(producer)
    await sender.written(Outgoing(topic, b"0"))
    # An answer lets the next batch go at once; only after that is it idle.
    await until(lambda: not producer._work.is_set(), what="an idle producer")
    first = sender.send(Outgoing(topic, b"1"))
    await asyncio.sleep(0.05)
    second = sender.send(Outgoing(topic, b"2"))
    assert len(queue_of(producer, topic, 0).waiting) == 2
    async with asyncio.timeout(120):
        await asyncio.gather(first, second)
    assert [record.value for record in await cluster.records(topic)] == [b"0", b"1", b"2"]


async def test_nothing_is_left_behind(cluster: AiokafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    """After stop() no task is left, and nothing was logged above INFO. Warnings are errors here."""
    topic = unique("topic")
    await cluster.create_topic(topic)
    before = asyncio.all_tasks()
    with caplog.at_level(logging.INFO):
        sender = Sender(cluster.producer())
        await sender.written(*(Outgoing(topic, b"value") for _ in range(10)))
        await sender.producer.stop(5.0)
        await until(lambda: asyncio.all_tasks() <= before, what="the end of all tasks")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_nothing_is_connected_before_it_is_used(cluster: AiokafkaCluster) -> None:
    """The constructor connects nothing, and starts no task and no timer."""
    before = asyncio.all_tasks()
    producer = cluster.producer()
    assert asyncio.all_tasks() == before
    assert producer._timer is None
    await producer.stop(1.0)


# -- private accesses


async def test_every_declared_member_exists(cluster: AiokafkaCluster) -> None:
    """The connections of a producer have what ``internals.py`` declares."""
    producer = cluster.producer()
    await producer.start(10.0)
    brokers = producer._brokers
    assert isinstance(brokers, AiokafkaBrokers)
    connections = brokers._connections
    assert connections is not None
    live = {
        internals.ClusterView: connections.cluster,
        internals.Connections: connections,
    }
    for described, thing in live.items():
        assert [name for name in get_protocol_members(described) if not hasattr(thing, name)] == []
    sender = Sender(producer)
    topic = unique("topic")
    await cluster.create_topic(topic)
    (place,) = await sender.written(Outgoing(topic, b"value"))
    assert isinstance(place, Produced)
    assert any(
        node_and_group[1] == ConnectionGroup.DEFAULT
        for node_and_group in cast("dict[tuple[int, int], object]", connections._conns)
    )


def test_requests_and_answers_are_as_used() -> None:
    """The requests take the arguments. The first four fields of an answer are those that are read."""
    inspect.signature(ProduceRequest).bind(None, -1, 1000, [("topic", [(0, b"")])])
    inspect.signature(InitProducerIdRequest).bind(None, 1000)
    for response in (ProduceResponse_v2, ProduceResponse_v7):
        fields = response.SCHEMA.fields[response.SCHEMA.names.index("topics")].array_of.fields[1].array_of.names
        assert tuple(fields[:4]) == ("partition", "error_code", "offset", "timestamp")


def test_codes_are_those_of_the_protocol() -> None:
    """If aiokafka has a class for a code, it is the expected one."""
    names = {
        ErrorCode.MESSAGE_TOO_LARGE: kafka.MessageSizeTooLargeError,
        ErrorCode.INVALID_TOPIC_EXCEPTION: kafka.InvalidTopicError,
        ErrorCode.RECORD_LIST_TOO_LARGE: kafka.RecordListTooLargeError,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: kafka.TopicAuthorizationFailedError,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: kafka.ClusterAuthorizationFailedError,
        ErrorCode.INVALID_TIMESTAMP: kafka.InvalidTimestampError,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: kafka.OutOfOrderSequenceNumber,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: kafka.DuplicateSequenceNumber,
        ErrorCode.INVALID_PRODUCER_EPOCH: kafka.InvalidProducerEpoch,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: kafka.InvalidProducerIdMapping,
        ErrorCode.UNKNOWN_PRODUCER_ID: kafka.UnknownProducerId,
    }
    assert {code: kafka.for_code(code) for code in names} == names
    assert kafka.NotEnoughReplicasError.retriable
    assert kafka.NotLeaderForPartitionError.retriable


def test_metadata_listeners_are_called_within_the_update() -> None:
    """aiokafka's metadata update calls its listeners, last."""
    tree = ast.parse(inspect.getsource(importlib.import_module("aiokafka.cluster")))
    updates = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "update_metadata"]
    assert any("_listeners" in ast.unparse(node) for node in updates)
    heard: list[object] = []
    metadata = ClusterMetadata()
    metadata.add_listener(heard.append)
    assert not heard
