"""Fetching: quotas, order, positions, waking, cancelling."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import pytest

from aioparallel.records.errors import OffsetOutOfRange
from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster, Compression, Produced
from tests.support.clusters.member import Member, values


def numbered(count: int, start: int = 0) -> list[Produced]:
    """Records with the values b"0", b"1", ..."""
    return [Produced(str(number).encode()) for number in range(start, start + count)]


def numbers(count: int, start: int = 0) -> list[bytes | None]:
    """The values of :func:`numbered`."""
    return [record.value for record in numbered(count, start)]


async def test_a_record_arrives_as_it_was_produced(cluster: Cluster, topic: str, member: Member) -> None:
    """Key, value, headers, timestamp and position are as produced. None stays None, empty stays empty."""
    await cluster.create_topic(topic)
    now = int(time.time() * 1000) - 5_000
    full = Produced(b"value \xff", b"key \x00", (("trace", b"\x01"), ("trace", b""), ("none", None)), now)
    await cluster.produce(topic, [full, Produced(None, b""), Produced(b"")])
    await member.join([topic])
    member.seek_all()
    await member.read(3)
    first, second, third = member.records[TopicPartition(topic, 0)]
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    assert (first.key, first.value, first.headers, first.timestamp) == (full.key, full.value, full.headers, now)
    assert (second.key, second.value, second.headers, second.offset) == (b"", None, (), 1)
    assert (third.key, third.value, third.attempt) == (None, b"", 1)


async def test_quotas_bound_each_fetch(cluster: Cluster, topic: str, member: Member) -> None:
    """A fetch returns at most the quota of each partition, in order, and next_offset is just after them."""
    await cluster.create_topic(topic, 2)
    left, right = (TopicPartition(topic, number) for number in range(2))
    await cluster.produce(topic, numbered(50), partition=0)
    await cluster.produce(topic, numbered(30), partition=1)
    await member.join([topic])
    member.seek_all()
    while member.next_offsets != {left: 50, right: 30}:
        await member.fetch({left: 7, right: 4})
        for partition, records in member.records.items():
            assert member.next_offsets[partition] == records[-1].offset + 1
    assert values(member.records[left]) == numbers(50)
    assert values(member.records[right]) == numbers(30)


async def test_a_fetch_takes_no_more_than_most_in_all(cluster: Cluster, topic: str, member: Member) -> None:
    """With a limit for all partitions together, each has its turn within a few fetches, and nothing is lost."""
    await cluster.create_topic(topic, 4)
    for number in range(4):
        await cluster.produce(topic, [Produced(b"%d" % i) for i in range(6)], number)
    await member.join([topic])
    member.seek_all()
    quotas = dict.fromkeys(member.held, 2)
    async with asyncio.timeout(cluster.timing.deadline):
        while sum(map(len, member.records.values())) < 24:
            taken = await member.client.fetch(quotas, 3)
            assert sum(len(records) for _, records, _, *_ in taken) <= 3
            for partition, records, _, *_ in taken:
                assert len(records) <= 2
                member.records.setdefault(partition, []).extend(records)
    assert {p: values(records) for p, records in member.records.items()} == {
        TopicPartition(topic, number): [b"%d" % i for i in range(6)] for number in range(4)
    }


async def test_nothing_is_fetched_before_seek(cluster: Cluster, topic: str, member: Member) -> None:
    """An assigned partition without a seek returns nothing, while another one does."""
    await cluster.create_topic(topic, 2)
    left, right = (TopicPartition(topic, number) for number in range(2))
    await cluster.produce(topic, numbered(5), partition=0)
    await cluster.produce(topic, numbered(5), partition=1)
    await member.join([topic])
    await member.holds({left, right})
    member.client.seek(right, 0)
    await member.read(5)
    assert left not in member.records
    assert left not in member.next_offsets
    member.client.seek(left, 2)
    await member.read(8)
    assert values(member.records[left]) == numbers(3, start=2)


async def test_without_quota_nothing_is_lost(cluster: Cluster, topic: str, member: Member) -> None:
    """Partitions without a quota, or with 0, keep all their records for later."""
    await cluster.create_topic(topic, 3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    for number in range(3):
        await cluster.produce(topic, numbered(20), partition=number)
    await member.join([topic])
    member.seek_all()
    await member.read(20, {first: 3, third: 0})
    assert set(member.records) == {first}
    await member.read(60, {second: 9, third: 9})
    assert values(member.records[second]) == values(member.records[third]) == numbers(20)


async def test_foreign_partitions_are_ignored(cluster: Cluster, topic: str, member: Member) -> None:
    """A quota or a seek for a partition that is not assigned changes nothing."""
    await cluster.create_topic(topic)
    mine, foreign = TopicPartition(topic, 0), TopicPartition(topic, 7)
    await member.join([topic])
    member.client.seek(foreign, 3)
    member.seek_all()
    await cluster.produce(topic, numbered(2))
    await member.read(2, {foreign: 5, mine: 5})
    assert values(member.records[mine]) == numbers(2)


async def test_seek_goes_back_and_forth(cluster: Cluster, topic: str, member: Member) -> None:
    """After seek() the next records begin at that offset, whatever was fetched before."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, numbered(20))
    await member.join([topic])
    member.seek_all()
    await member.read(5, {partition: 5})
    for offset in (12, 3, 19, 0):
        member.records.clear()
        member.next_offsets.clear()
        member.client.seek(partition, offset)
        await member.read(1, {partition: 1})
        assert values(member.records[partition]) == numbers(1, start=offset)


async def test_fetch_waits_for_records(cluster: Cluster, topic: str, member: Member) -> None:
    """Without data fetch() waits, and returns what arrives."""
    await cluster.create_topic(topic)
    await member.join([topic])
    member.seek_all()
    waiting = asyncio.create_task(member.fetch())
    await member.client.end_offsets(member.held, cluster.timing.deadline)
    assert not waiting.done()
    await cluster.produce(topic, numbered(1))
    assert await waiting == 1


async def test_seek_is_noticed_by_the_waiting_fetch(cluster: Cluster, topic: str, member: Member) -> None:
    """A fetch that waits for a partition without a position returns its records after seek()."""
    await cluster.create_topic(topic)
    await cluster.produce(topic, numbered(1))
    await member.join([topic])
    waiting = asyncio.create_task(member.fetch())
    await member.client.end_offsets(member.held, cluster.timing.deadline)
    assert not waiting.done()
    member.seek_all()
    assert await waiting == 1


async def test_fetch_with_no_quotas_waits_for_wake(cluster: Cluster, topic: str, member: Member) -> None:
    """No quotas means no partitions (not all): the fetch waits until wake()."""
    await cluster.create_topic(topic)
    await cluster.produce(topic, numbered(3))
    await member.join([topic])
    member.seek_all()
    waiting = asyncio.create_task(member.fetch({}))
    await member.client.end_offsets(member.held, cluster.timing.deadline)
    assert not waiting.done()
    member.client.wake()
    assert await waiting == 0
    await member.read(3)


async def test_wake_ends_the_waiting_fetch(cluster: Cluster, topic: str, member: Member) -> None:
    """wake() lets the waiting fetch return, empty. The next one waits again."""
    await cluster.create_topic(topic)
    await member.join([topic])
    member.seek_all()
    for _ in range(3):
        waiting = asyncio.create_task(member.fetch())
        await member.client.end_offsets(member.held, cluster.timing.deadline)
        assert not waiting.done()
        member.client.wake()
        assert await waiting == 0


async def test_wake_is_remembered_once(cluster: Cluster, topic: str, member: Member) -> None:
    """Without a waiting fetch, wake() lets the next one, and only that one, return without waiting."""
    await cluster.create_topic(topic)
    await member.join([topic])
    member.seek_all()
    member.client.wake()
    member.client.wake()
    assert await member.fetch() == 0
    waiting = asyncio.create_task(member.fetch())
    await member.client.end_offsets(member.held, cluster.timing.deadline)
    assert not waiting.done()
    await cluster.produce(topic, numbered(1))
    assert await waiting == 1


async def test_a_cancelled_fetch_loses_nothing(cluster: Cluster, topic: str, member: Member) -> None:
    """Whenever a fetch is cancelled, every record still arrives once and in order."""
    await cluster.create_topic(topic, 2)
    await member.join([topic])
    member.seek_all()
    rng = random.Random(7)
    for round_ in range(60):
        if round_ % 6 == 0:
            await cluster.produce(topic, numbered(5, start=round_ // 6 * 5), partition=round_ // 6 % 2)
        fetching = asyncio.create_task(member.fetch(dict.fromkeys(member.held, 2)))
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)
        fetching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await fetching
    await member.read(50)
    for number in range(2):
        kept = values(member.records[TopicPartition(topic, number)])
        assert kept == [value for block in range(number, 10, 2) for value in numbers(5, start=block * 5)]


async def test_the_end_seen_needs_no_request(cluster: Cluster, topic: str, member: Member) -> None:
    """end_offset_seen() is None before the first fetch, then at least the position, then the end."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, numbered(10))
    await member.join([topic])
    assert member.client.end_offset_seen(partition) is None
    member.seek_all()
    await member.read(10, {partition: 4})
    assert member.client.end_offset_seen(partition) == 10


@pytest.mark.needs("truncation")
async def test_a_position_outside_the_log_is_an_error_until_seek(cluster: Cluster, topic: str, member: Member) -> None:
    """If the log no longer contains the position, fetch() raises OffsetOutOfRange each time, while other partitions
    lose nothing. After seek() it continues."""
    await cluster.create_topic(topic, 2)
    cut, whole = (TopicPartition(topic, number) for number in range(2))
    await cluster.produce(topic, numbered(10), partition=0)
    await cluster.produce(topic, numbered(4), partition=1)
    await cluster.delete_records(cut, 6)
    await member.join([topic])
    await member.holds({cut, whole})
    member.seek_all()
    for _ in range(3):
        with pytest.raises(OffsetOutOfRange) as raised:
            await member.read(14)
        assert raised.value.partition == cut
        assert raised.value.offset == 0
    member.client.seek(cut, 6)
    await member.read(8)
    assert values(member.records[cut]) == numbers(4, start=6)
    assert values(member.records[whole]) == numbers(4)


@pytest.mark.needs("truncation")
async def test_a_position_past_the_end_is_outside_too(cluster: Cluster, topic: str, member: Member) -> None:
    """A position beyond the end (the log lost its tail) raises OffsetOutOfRange as well."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, numbered(3))
    await member.join([topic])
    member.client.seek(partition, 50)
    with pytest.raises(OffsetOutOfRange):
        await member.read(1)
    member.client.seek(partition, 2)
    await member.read(1)
    assert values(member.records[partition]) == numbers(1, start=2)


@pytest.mark.needs("compression")
@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_are_read(
    cluster: Cluster, topic: str, member: Member, compression: Compression
) -> None:
    """Every codec of Kafka's producers is read without another package."""
    await cluster.create_topic(topic)
    produced = [Produced(b"x" * 500 + str(number).encode()) for number in range(20)]
    await cluster.produce(topic, produced, compression=compression)
    await member.join([topic])
    member.seek_all()
    await member.read(20)
    assert values(member.records[TopicPartition(topic, 0)]) == [record.value for record in produced]
