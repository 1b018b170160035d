"""Steps that contract tests of share groups have in common."""

from __future__ import annotations

from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import ShareGroupOptions
from tests.support.clusters.share_cluster import ShareCluster
from tests.support.clusters.share_member import ShareMember

__all__ = ["configured", "filled", "idle", "joined", "numbered", "partitions_of"]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """The values b"0", b"1", ..."""
    return [b"%d" % number for number in range(start, start + count)]


def partitions_of(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in range(count)}


async def filled(shared: ShareCluster, topic: str, group_id: str, count: int, **options: object) -> None:
    """A topic of one partition with so many records, for a group that begins with the first."""
    await shared.create_topic(topic)
    await configured(shared, group_id, **options)
    if count:
        await shared.produce(topic, numbered(count))


async def configured(shared: ShareCluster, group_id: str, **options: object) -> None:
    settings = {"auto_offset_reset": "earliest", "lock_duration": shared.timing.lock_duration} | options
    await shared.configure(group_id, ShareGroupOptions(**settings))  # type: ignore[arg-type]


async def joined(shared: ShareCluster, topic: str, group_id: str, partitions: int | None = None) -> ShareMember:
    """A member that has an assignment, of all partitions if their number is given."""
    member = ShareMember(shared.client(group_id), shared.timing.deadline)
    await member.join([topic], None if partitions is None else partitions_of(topic, partitions))
    return member


async def idle(shared: ShareCluster, member: ShareMember) -> None:
    """Time for the client to do something wrong: as much as a few requests take."""
    for _ in range(3):
        await member.client.partitions(["missing"], shared.timing.deadline)
