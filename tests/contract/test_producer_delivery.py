"""What a producer does with outputs on a healthy cluster."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced
from tests.support.clusters.cluster import Cluster
from tests.support.clusters.sender import Sender

pytestmark = pytest.mark.needs("producers")

# By murmur2, for 5 partitions; the hash itself is tested against Kafka's own vectors in tests/unit/clients.
KEYED = {b"a": 4, b"customer-1": 1, b"customer-2": 3, b"21": 0, b"": 1}


@pytest.fixture
def sender(cluster: Cluster) -> Sender:
    """A producer, not started."""
    return Sender(cluster.producer())


async def test_every_part_of_an_output_arrives(cluster: Cluster, topic: str, sender: Sender) -> None:
    """Key, value, headers, partition and timestamp are in the log as given, at the reported position."""
    await cluster.create_topic(topic, 3)
    outputs = [
        Outgoing(topic, b"value", b"key", (("name", b"text"), ("none", None)), 2, 1_700_000_000_000),
        Outgoing(topic, None, b"key", partition=2, timestamp=1_700_000_000_001),
        Outgoing(topic, b"", None, partition=1),
    ]
    places = await sender.written(*outputs)
    assert [place[:3] for place in places] == [(topic, 2, 0), (topic, 2, 1), (topic, 1, 0)]
    records = {(r.partition, r.offset): r for r in await cluster.records(topic)}
    assert len(records) == 3
    for output, place in zip(outputs, places, strict=True):
        record = records[place.partition, place.offset]
        assert (record.key, record.value, record.headers) == (output.key, output.value, output.headers)
        if output.timestamp is not None:
            assert record.timestamp == output.timestamp


@pytest.mark.needs("timestamps")
async def test_the_callback_knows_the_timestamp(cluster: Cluster, topic: str, sender: Sender) -> None:
    """It is the one in the log: the output's own, else the time of sending."""
    await cluster.create_topic(topic)
    before = time.time() * 1000
    places = await sender.written(Outgoing(topic, b"old", timestamp=1_700_000_000_000), Outgoing(topic, b"new"))
    assert [place.timestamp for place in places] == [r.timestamp for r in await cluster.records(topic)]
    assert places[0].timestamp == 1_700_000_000_000
    assert before - 2 < places[1].timestamp < time.time() * 1000 + 2


async def test_each_partition_keeps_the_order_of_the_calls(cluster: Cluster, topic: str, sender: Sender) -> None:
    """3,000 outputs in sends of different sizes, by key, by partition and without either: each is in its log once, and
    each partition has the order of sending."""
    await cluster.create_topic(topic, 4)
    waiting = []
    sent: list[Outgoing] = []
    while len(sent) < 3000:
        group = []
        for number in range(len(sent), len(sent) + 1 + len(sent) % 5):
            partition = number % 4 if number % 3 == 0 else None
            key = b"%d" % (number % 17) if number % 3 == 1 else None
            group.append(Outgoing(topic, b"%d" % number, key, partition=partition))
        sent += group
        waiting.append(sender.send(*group))
        if len(sent) % 7 == 0:
            await asyncio.sleep(0)
    async with asyncio.timeout(cluster.timing.deadline):
        results = await asyncio.gather(*waiting)
    places: list[Produced] = []
    for result in results:
        assert not isinstance(result, ProduceFailed), result
        places += result
    records = await cluster.records(topic)
    assert len(records) == len(sent)
    assert {(r.partition, r.offset): r.value for r in records} == {
        (place.partition, place.offset): output.value for output, place in zip(sent, places, strict=True)
    }
    for partition in range(4):
        numbers = [int(r.value or b"") for r in records if r.partition == partition]
        assert numbers == sorted(numbers)
    assert set(sender.calls) == {1}


async def test_keys_go_where_all_producers_put_them(cluster: Cluster, topic: str, sender: Sender) -> None:
    """The partition of a key is the one that Kafka's Java client chooses."""
    await cluster.create_topic(topic, 5)
    places = await sender.written(*(Outgoing(topic, b"value", key) for key in KEYED))
    assert {key: place.partition for key, place in zip(KEYED, places, strict=True)} == KEYED


async def test_outputs_without_a_key_use_all_partitions(cluster: Cluster, topic: str, sender: Sender) -> None:
    """Sent one after the other, they use the partitions in turn; sent together, they share batches."""
    await cluster.create_topic(topic, 3)
    one_by_one = [(await sender.written(Outgoing(topic, b"value")))[0].partition for _ in range(6)]
    assert sorted(one_by_one) == [0, 0, 1, 1, 2, 2]
    together = await sender.written(*(Outgoing(topic, b"value") for _ in range(50)))
    assert len({place.partition for place in together}) == 1


async def test_one_send_to_several_topics(cluster: Cluster, topic: str, sender: Sender) -> None:
    """The outputs of one send may have different topics. There is one callback for all of them."""
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        await cluster.create_topic(name)
    places = await sender.written(*(Outgoing(name, b"value") for name in names))
    assert [place.topic for place in places] == names
    assert sender.calls == [1]


async def test_a_callback_may_send(cluster: Cluster, topic: str, sender: Sender) -> None:
    """A send from a callback is accepted, after earlier outputs."""
    await cluster.create_topic(topic)
    ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def again(result: object) -> None:
        sender.producer.send([Outgoing(topic, b"second")], ended.set_result)

    sender.producer.send([Outgoing(topic, b"first")], again)
    async with asyncio.timeout(cluster.timing.deadline):
        await ended
    assert [record.value for record in await cluster.records(topic)] == [b"first", b"second"]


async def test_a_callback_that_raises_does_not_affect_others(
    cluster: Cluster, topic: str, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    """The other outputs of its batch get their results, the error is logged, and the producer continues."""
    await cluster.create_topic(topic)

    def broken(result: object) -> None:
        raise RuntimeError("broken callback")

    sender.producer.send([Outgoing(topic, b"0")], broken)
    after = sender.send(Outgoing(topic, b"1"))
    async with asyncio.timeout(cluster.timing.deadline):
        assert not isinstance(await after, ProduceFailed)
    await sender.written(Outgoing(topic, b"2"))
    assert [record.value for record in await cluster.records(topic)] == [b"0", b"1", b"2"]
    assert [line.getMessage() for line in caplog.records].count("A delivery callback raised") == 1


@pytest.mark.needs("added partitions")
async def test_added_partitions_are_used(cluster: Cluster, topic: str, sender: Sender) -> None:
    """Partitions added to a topic are used: by number at once, and by key when the metadata is updated."""
    await cluster.create_topic(topic)
    await sender.written(Outgoing(topic, b"value"))
    await cluster.add_partitions(topic, 5)
    assert (await sender.written(Outgoing(topic, b"value", partition=4)))[0].partition == 4
    assert (await sender.written(Outgoing(topic, b"value", b"21")))[0].partition == KEYED[b"21"]


@pytest.mark.needs("message limit")
async def test_only_the_output_that_is_too_large_fails(cluster: Cluster, topic: str, sender: Sender) -> None:
    """Others, sent before, with and after it, arrive in order."""
    await cluster.create_topic(topic)
    large = Outgoing(topic, bytes(1_500_000))
    waiting = [sender.send(Outgoing(topic, b"%d" % number)) for number in range(100)]
    middle = sender.send(Outgoing(topic, b"100"), large, Outgoing(topic, b"101"))
    waiting += [sender.send(Outgoing(topic, b"%d" % number)) for number in range(102, 200)]
    async with asyncio.timeout(cluster.timing.deadline):
        failure = await middle
        results = await asyncio.gather(*waiting)
    assert isinstance(failure, ProduceFailed)
    assert (failure.passing, failure.too_large) == (False, True)
    assert "larger than the topic takes" in failure.reason
    assert not any(isinstance(result, ProduceFailed) for result in results)
    assert [record.value for record in await cluster.records(topic)] == [b"%d" % number for number in range(200)]
