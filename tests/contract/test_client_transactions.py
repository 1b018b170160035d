"""Transactions under both isolation levels."""

from __future__ import annotations

import pytest

from aioparallel.records.record import TopicPartition
from tests.support.clusters.cluster import Cluster, Produced
from tests.support.clusters.member import Member, values

pytestmark = pytest.mark.needs("transactions")


def records(*texts: bytes) -> list[Produced]:
    """Records with these values."""
    return [Produced(text) for text in texts]


@pytest.fixture
def committed_reader(cluster: Cluster, group_id: str) -> Member:
    """A member that reads read_committed."""
    client = cluster.client(group_id, isolation_level="read_committed")
    return Member(client, cluster.timing.deadline)


async def test_aborted_records_are_passed_over(cluster: Cluster, topic: str, committed_reader: Member) -> None:
    """read_committed returns committed records, and next_offset passes aborted records and markers."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await (await cluster.open_transaction(topic, records(b"a", b"b"))).end(commit=True)
    await (await cluster.open_transaction(topic, records(b"no"))).end(commit=False)
    await cluster.produce(topic, records(b"c"))
    await committed_reader.join([topic])
    committed_reader.seek_all()
    await committed_reader.reach(partition, 6)
    assert values(committed_reader.records[partition]) == [b"a", b"b", b"c"]
    assert [record.offset for record in committed_reader.records[partition]] == [0, 1, 5]


async def test_the_position_reaches_the_end_behind_aborted_ones(
    cluster: Cluster, topic: str, committed_reader: Member
) -> None:
    """If only aborted records are left, next_offset still reaches the end, so the lag can become 0."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, records(b"a", b"b"))
    for _ in range(3):
        await (await cluster.open_transaction(topic, records(b"no", b"no"))).end(commit=False)
    await committed_reader.join([topic])
    end = (await committed_reader.client.end_offsets([partition], cluster.timing.deadline))[partition]
    assert end == 11
    committed_reader.seek_all()
    await committed_reader.reach(partition, end)
    assert values(committed_reader.records[partition]) == [b"a", b"b"]
    committed_reader.client.seek(partition, 5)
    committed_reader.next_offsets.clear()
    await committed_reader.reach(partition, end)
    assert values(committed_reader.records[partition]) == [b"a", b"b"]


async def test_what_is_undecided_is_waited_for(cluster: Cluster, topic: str, committed_reader: Member) -> None:
    """read_committed reads up to the first record of an open transaction; that is its end offset as well. When the
    transaction ends, it continues."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await cluster.produce(topic, records(b"a"))
    transaction = await cluster.open_transaction(topic, records(b"b"))
    await cluster.produce(topic, records(b"c"))
    await committed_reader.join([topic])
    client, deadline = committed_reader.client, cluster.timing.deadline
    assert await client.end_offsets([partition], deadline) == {partition: 1}
    assert await client.written_end_offsets([partition], deadline) == {partition: 3}
    assert await client.end_offsets([partition], deadline) == {partition: 1}
    committed_reader.seek_all()
    await committed_reader.reach(partition, 1)
    assert values(committed_reader.records[partition]) == [b"a"]
    await transaction.end(commit=True)
    await committed_reader.reach(partition, 4)
    assert values(committed_reader.records[partition]) == [b"a", b"b", b"c"]


async def test_read_uncommitted_sees_all_but_markers(cluster: Cluster, topic: str, member: Member) -> None:
    """read_uncommitted returns open, aborted and committed records at once, and passes the markers."""
    await cluster.create_topic(topic)
    partition = TopicPartition(topic, 0)
    await (await cluster.open_transaction(topic, records(b"aborted"))).end(commit=False)
    await cluster.open_transaction(topic, records(b"open"))
    await member.join([topic])
    member.seek_all()
    await member.reach(partition, 3)
    assert values(member.records[partition]) == [b"aborted", b"open"]
    await (await cluster.open_transaction(topic, records(b"committed"))).end(commit=True)
    await member.reach(partition, 5)
    assert values(member.records[partition]) == [b"aborted", b"open", b"committed"]
