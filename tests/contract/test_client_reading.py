"""Reading partitions outside the group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

import pytest

from aioparallel.group.client import Client, Span
from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster, Produced


async def all_of(
    cluster: Cluster, client: Client, spans: Mapping[TopicPartition, Span | list[Span]]
) -> tuple[dict[TopicPartition, list[bytes | None]], dict[TopicPartition, int]]:
    """Values by partition, and the last reported position of each."""
    values: dict[TopicPartition, list[bytes | None]] = {partition: [] for partition in spans}
    ends: dict[TopicPartition, int] = {}
    async with asyncio.timeout(cluster.timing.deadline), aclosing(client.read(spans)) as reads:
        async for partition, records, next_offset, *_ in reads:
            assert all(record.topic_partition == partition for record in records)
            assert all(record.offset < next_offset for record in records)
            values[partition] += [record.value for record in records]
            ends[partition] = next_offset
    return values, ends


async def test_spans_are_read_to_their_ends(cluster: Cluster, topic: str, group_id: str) -> None:
    """Of unassigned partitions: from the middle, to the middle, and nothing of an empty span."""
    await cluster.create_topic(topic, 3)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    for number in range(3):
        records = [Produced(b"%d-%d" % (number, index), key=b"k") for index in range(1_500 if number == 0 else 20)]
        await cluster.produce(topic, records, number)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    spans: dict[TopicPartition, Span | list[Span]] = {first: Span(0, 1_500), second: Span(5, 12), third: Span(7, 7)}
    values, ends = await all_of(cluster, client, spans)
    assert values[first] == [b"0-%d" % index for index in range(1_500)]
    assert values[second] == [b"1-%d" % index for index in range(5, 12)]
    assert values[third] == []
    assert ends == {first: 1_500, second: 12, third: 7}
    assert await all_of(cluster, client, {}) == ({}, {})


async def test_several_spans_of_a_partition(cluster: Cluster, topic: str, group_id: str) -> None:
    """One after the other: near, far, empty, and adjacent. The last reported end is that of the last span."""
    await cluster.create_topic(topic, 2)
    first, second = (TopicPartition(topic, number) for number in range(2))
    for number in range(2):
        await cluster.produce(topic, [Produced(b"%d" % index, key=b"k") for index in range(1_500)], number)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    spans: dict[TopicPartition, Span | list[Span]] = {
        first: [Span(3, 5), Span(5, 6), Span(9, 9), Span(700, 702), Span(1_499, 1_500)],
        second: [Span(3, 5), Span(7, 7), Span(9, 9)],
    }
    values, ends = await all_of(cluster, client, spans)
    assert values == {first: [b"3", b"4", b"5", b"700", b"701", b"1499"], second: [b"3", b"4"]}
    assert ends == {first: 1_500, second: 9}


async def test_it_may_be_left_early_and_begun_again(cluster: Cluster, topic: str, group_id: str) -> None:
    """From the last reported position."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, [Produced(b"%d" % index) for index in range(1_200)])
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    async with asyncio.timeout(cluster.timing.deadline), aclosing(client.read({partition: Span(0, 1_200)})) as reads:
        async for _, records, position, *_ in reads:
            next_offset = position
            if records:
                break
    values, _ = await all_of(cluster, client, {partition: Span(next_offset, 1_200)})
    assert values[partition] == [b"%d" % index for index in range(next_offset, 1_200)]
    assert 0 < next_offset < 1_200


@pytest.mark.needs("truncation")
async def test_what_retention_took_away_is_passed(cluster: Cluster, topic: str, group_id: str) -> None:
    """The remaining records are read."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, [Produced(b"%d" % index) for index in range(10)])
    await cluster.delete_records(partition, 6)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    values, ends = await all_of(cluster, client, {partition: Span(0, 10)})
    assert values[partition] == [b"6", b"7", b"8", b"9"]
    assert ends == {partition: 10}


@pytest.mark.needs("transactions")
async def test_what_was_aborted_is_not_read(cluster: Cluster, topic: str, group_id: str) -> None:
    """And the end after it is reached."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, [Produced(b"before")])
    transaction = await cluster.open_transaction(topic, [Produced(b"aborted")] * 3)
    await transaction.end(commit=False)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    end = (await client.end_offsets([partition], cluster.timing.deadline))[partition]
    values, ends = await all_of(cluster, client, {partition: Span(0, end)})
    assert values[partition] == [b"before"]
    assert ends == {partition: end}


@pytest.mark.needs("transactions")
async def test_what_is_undecided_is_waited_for(cluster: Cluster, topic: str, group_id: str) -> None:
    """A span that ends after an open transaction is read to its end when the transaction has ended."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, [Produced(b"before")])
    transaction = await cluster.open_transaction(topic, [Produced(b"open")])
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    end = (await client.written_end_offsets([partition], cluster.timing.deadline))[partition]
    seen: list[bytes | None] = []
    async with aclosing(client.read({partition: Span(0, end)})) as reads:
        async for fetched in reads:
            seen += [record.value for record in fetched.records]
            if seen == [b"before"]:
                assert fetched.next_offset < end
                await transaction.end(commit=True)
    assert (seen, fetched.next_offset) == ([b"before", b"open"], end)


@pytest.mark.needs("compacted topics")
async def test_the_cleanup_policy_is_returned(cluster: Cluster, topic: str, group_id: str) -> None:
    """Of a compacted topic, of another one, and of a missing one."""
    await cluster.create_topic(topic)
    await cluster.create_topic(f"{topic}-compacted", compacted=True)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    assert await client.cleanup_policy(topic, cluster.timing.deadline) == "delete"
    assert await client.cleanup_policy(f"{topic}-compacted", cluster.timing.deadline) == "compact"
    assert await client.cleanup_policy(f"{topic}-missing", cluster.timing.deadline) in (None, "delete")


async def test_a_cleanup_policy_that_is_not_available(cluster: Cluster, topic: str, group_id: str) -> None:
    """Whatever the cluster supports, it raises nothing."""
    await cluster.create_topic(topic)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    assert await client.cleanup_policy(topic, cluster.timing.deadline) in (None, "delete")
