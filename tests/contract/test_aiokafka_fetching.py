"""The walk over the data that aiokafka has fetched: its duration with many partitions, fairness, metadata requests."""

from __future__ import annotations

import asyncio
import gc
import itertools
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

import pytest
import pytest_asyncio
from aiokafka.record.memory_records import MemoryRecords

from aioparallel.clients.aiokafka import fetching
from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.group.client import Fetched, Span
from aioparallel.records.errors import FetchFailed
from aioparallel.records.record import TopicPartition
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from aioparallel.testing.brokers.local import LocalKafka
from tests.support.clusters.aiokafka_cluster import AiokafkaCluster, serving
from tests.support.clusters.aiokafka_member import Member, consumer_of, fetcher_of, unique
from tests.support.clusters.cluster import Produced
from tests.support.waiting import until

LONGEST_HOLD = 0.020
"""Seconds of CPU that one walk may hold the loop."""


@pytest_asyncio.fixture
async def kafka(local_kafka: LocalKafka) -> AsyncIterator[AiokafkaCluster]:
    """Apache Kafka."""
    async with serving(local_kafka) as opened:
        yield opened


@pytest_asyncio.fixture
async def embedded(embedded_broker: EmbeddedBroker) -> AsyncIterator[AiokafkaCluster]:
    """The embedded broker."""
    async with serving(embedded_broker) as opened:
        yield opened


async def test_what_is_read_beside_the_group_ends_before_a_damaged_batch(
    embedded: AiokafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records before it are returned, and the error has its position."""
    topic = unique("topic")
    await embedded.create_topic(topic, 2)
    places = [TopicPartition(topic, number) for number in range(2)]
    for place in places:
        for offset in range(6):
            await embedded.produce(topic, [Produced(b"%d" % offset)], place.partition)

    def damaged(data: bytes) -> MemoryRecords:
        found, at = bytearray(data), 0
        while at < len(found):
            base, length = struct.unpack_from(">qi", found, at)
            at += 12 + length
            if base == 4:
                found[at - 1] ^= 1
        return MemoryRecords(bytes(found))

    monkeypatch.setattr("aiokafka.consumer.fetcher.MemoryRecords", damaged)
    client = embedded.client(unique("group"))
    await client.start(embedded.timing.deadline)
    read: dict[TopicPartition, list[int]] = {place: [] for place in places}

    async def read_all(*ends: int) -> None:
        spans = {place: Span(0, end) for place, end in zip(places, ends, strict=True)}
        async with asyncio.timeout(60), aclosing(client.read(spans)) as reads:
            async for partition, records, _, *_ in reads:
                read[partition] += [record.offset for record in records]

    with pytest.raises(FetchFailed, match=f"{places[1]}: cannot read at offset 4"):
        await read_all(3, 6)
    assert read == {places[0]: [0, 1, 2], places[1]: [0, 1, 2, 3]}
    await read_all(3, 4)
    assert read == {places[0]: 2 * [0, 1, 2], places[1]: 2 * [0, 1, 2, 3]}


@pytest.mark.real
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_walk_over_500_partitions_is_short(kafka: AiokafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No walk holds the loop long, however large the quotas. Every record arrives, in order, within few walks."""
    partitions, each = 500, 50
    topic = unique("topic")
    await kafka.create_topic(topic, partitions)
    batch = [Produced(b"x" * 100)] * each
    await kafka.produce(topic, batch, 0)
    await asyncio.gather(*(kafka.produce(topic, batch, number) for number in range(1, partitions)))
    member = Member(kafka.client(unique("group")))
    await member.join(topic)
    walks: list[float] = []
    take = FetchWalk.take

    def timed(walk: FetchWalk, quotas: Mapping[TopicPartition, int], most: int) -> list[Fetched]:
        began = time.thread_time()
        taken = take(walk, quotas, most)
        walks.append(time.thread_time() - began)
        return taken

    monkeypatch.setattr(FetchWalk, "take", timed)
    member.read_from(0)
    buffers = fetcher_of(member.client)._records
    await until(lambda: len(buffers) > partitions * 0.9, what="data of nearly all partitions")
    gc.collect()
    gc.disable()  # a full collection of the test process takes longer than any walk
    try:
        records = await member.read(partitions * each, quota=10_000, deadline=60)
    finally:
        gc.enable()
    assert all([record.offset for record in records[partition]] == list(range(each)) for partition in member.held)
    assert max(walks) < LONGEST_HOLD, f"{len(walks)} walks, the longest {max(walks) * 1000:.1f} ms"
    # What is left is looked at without taking anything: full buffers and no quotas.
    began = time.thread_time()
    for _ in range(100):
        take(member.client._running.walk, dict.fromkeys(member.held, 0))  # type: ignore[union-attr]
    assert (time.thread_time() - began) / 100 < 0.001


async def test_a_walk_that_ends_early_goes_on_where_it_ended(
    embedded: AiokafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if each walk runs out of time after one partition, all partitions get their turn."""
    monkeypatch.setattr(fetching, "_LONGEST_WALK", 0.0)
    monkeypatch.setattr(fetching, "_MOST_AT_ONCE", 5)
    topic = unique("topic")
    await embedded.create_topic(topic, 4)
    for number in range(4):
        await embedded.produce(topic, [Produced(b"x")] * 20, number)
    member = Member(embedded.client(unique("group")))
    await member.join(topic)
    member.read_from(0)
    buffers = fetcher_of(member.client)._records
    await until(lambda: len(buffers) == 4, what="data of all partitions")
    quotas = dict.fromkeys(member.held, 10)
    async with asyncio.timeout(120):
        rounds = [[f.partition for f in await member.client.fetch(quotas)] for _ in range(8)]
    assert all(len(taken) == 1 for taken in rounds)
    assert Counter(taken[0] for taken in rounds) == dict.fromkeys(member.held, 2)
    assert {taken[0] for taken in rounds[:4]} == member.held


async def test_a_fetch_lets_others_run_where_there_is_always_data(embedded: AiokafkaCluster) -> None:
    """Each call yields to the loop, even if it need not wait."""
    topic = unique("topic")
    await embedded.create_topic(topic)
    await embedded.produce(topic, [Produced(b"x")] * 50)
    member = Member(embedded.client(unique("group")))
    await member.join(topic)
    member.read_from(0)
    await until(lambda: fetcher_of(member.client)._records, what="data")
    turns: list[int] = []

    async def other() -> None:
        while len(turns) < 20:
            turns.append(len(turns))
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    async with asyncio.timeout(120):
        for _ in range(20):
            assert await member.client.fetch(dict.fromkeys(member.held, 1))
    assert len(turns) >= 19
    await running


async def test_nothing_runs_while_nothing_comes(embedded: AiokafkaCluster) -> None:
    """A fetch without data or quota waits on a future, and checks again only when something has arrived."""
    topic = unique("topic")
    await embedded.create_topic(topic, 2)
    member = Member(embedded.client(unique("group")))
    await member.join(topic)
    walk, looks = member.client._running.walk, 0  # type: ignore[union-attr]
    take = walk.take

    def counted(quotas: Mapping[TopicPartition, int], most: int) -> list[Fetched]:
        nonlocal looks
        looks += 1
        return take(quotas, most)

    walk.take = counted  # type: ignore[method-assign]
    member.read_from(0)
    one, two = sorted(member.held)
    fetch = asyncio.create_task(member.client.fetch({one: 10}))
    await until(lambda: looks, what="the first look")
    ends = await member.client.end_offsets(member.held, 5.0)
    assert ends == {one: 0, two: 0}
    assert looks == 1
    await embedded.produce(topic, [Produced(b"other")], two.partition)
    await until(lambda: looks == 2, what="a look at data without a quota")
    await embedded.produce(topic, [Produced(b"wanted")], one.partition)
    async with asyncio.timeout(120):
        taken = await fetch
    assert [record.value for fetched in taken for record in fetched.records] == [b"wanted"]


async def test_metadata_is_not_asked_for_without_a_pause(embedded: AiokafkaCluster) -> None:
    """While a partition has no leader, aiokafka repeats the request as soon as it is answered."""
    topic = unique("topic")
    await embedded.create_topic(topic)
    member = Member(embedded.client(unique("group")))
    await member.join(topic)
    member.read_from(0)
    connections = consumer_of(member.client)._client
    broker_watch = connections._metadata_update.__self__  # type: ignore[attr-defined]
    ask, asked = broker_watch._ask, list[tuple[float, float]]()

    async def noted(node: object, request: object) -> object:
        # When, and not before when: a loop that is held up may be late for one of them, and in time for the next.
        asked.append((asyncio.get_running_loop().time(), broker_watch._last_update))
        return await ask(node, request)

    broker_watch._ask = noted
    connections.cluster.leader_for_partition = lambda _tp: -1  # type: ignore[method-assign,assignment]
    await until(lambda: len(asked) >= 6, what="six updates")
    assert all(at > earliest - 0.002 for at, earliest in asked)
    assert min(b - a for (_, a), (_, b) in itertools.pairwise(asked)) > 0.099
