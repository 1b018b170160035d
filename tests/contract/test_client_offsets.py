"""Asking the cluster about offsets."""

from __future__ import annotations

import time

import pytest

from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster, Produced


async def test_beginning_and_end(cluster: Cluster, topic: str, group_id: str) -> None:
    """The end is the offset of the next record. An empty log begins and ends at 0."""
    await cluster.create_topic(topic, 2)
    full, empty = (TopicPartition(topic, number) for number in range(2))
    await cluster.produce(topic, [Produced(b"x")] * 7)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    assert await client.beginning_offsets([full, empty], cluster.timing.deadline) == {full: 0, empty: 0}
    assert await client.end_offsets([full, empty], cluster.timing.deadline) == {full: 7, empty: 0}


@pytest.mark.needs("truncation")
async def test_the_beginning_moves(cluster: Cluster, topic: str, group_id: str) -> None:
    """When old records are deleted, the beginning is the first remaining offset, and the end stays."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, [Produced(b"x")] * 7)
    await cluster.delete_records(partition, 5)
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    assert await client.beginning_offsets([partition], cluster.timing.deadline) == {partition: 5}
    assert await client.end_offsets([partition], cluster.timing.deadline) == {partition: 7}


@pytest.mark.needs("timestamps")
async def test_offsets_for_times(cluster: Cluster, topic: str, group_id: str) -> None:
    """The first offset at or after a time; None after the last record and in an empty log."""
    await cluster.create_topic(topic, 2)
    full, empty = (TopicPartition(topic, number) for number in range(2))
    base = int(time.time() * 1000) - 60_000
    await cluster.produce(topic, [Produced(b"x", timestamp=base + 1000 * number) for number in range(5)])
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    for asked, offset in [(base - 1, 0), (base + 2000, 2), (base + 2001, 3), (base + 4001, None)]:
        found = await client.offsets_for_times({full: asked, empty: asked}, cluster.timing.deadline)
        assert found == {full: offset, empty: None}


async def test_asking_about_nothing(cluster: Cluster, group_id: str) -> None:
    """No partitions, no answers."""
    client = cluster.client(group_id)
    await client.start(cluster.timing.deadline)
    assert await client.beginning_offsets([], cluster.timing.deadline) == {}
    assert await client.end_offsets([], cluster.timing.deadline) == {}
    assert await client.offsets_for_times({}, cluster.timing.deadline) == {}
    assert await client.committed([], cluster.timing.deadline) == {}
