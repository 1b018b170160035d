"""Reads what groups have committed, where the logs end, and who the members are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from aioparallel.cli.cluster import Cluster, connecting_options
from aioparallel.cli.groups.work import PartitionWork, work_of
from aioparallel.cli.kmq.status import PartitionStatus
from aioparallel.cli.reading_client import REQUEST_TIMEOUT, offset_ranges, reading_client
from aioparallel.clients.aiokafka.group_admin import LIST_GROUPS, GroupAdmin, GroupMember, GroupState
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.group.client import Client, Committed
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition

__all__ = [
    "Connected",
    "GroupView",
    "PartitionView",
    "Sampled",
    "connected",
    "group_not_found",
    "read_groups",
]

_AT_ONCE: Final = 8
"""Groups that are asked about at once."""
_READER: Final = "aioparallel-groups"
"""The client's group, which it never joins."""

PositionsOf = Callable[[str], Awaitable[Mapping[TopicPartition, Committed]]]


class Sampled(NamedTuple):
    """What records of a partition show. ``oldest_at``: when the oldest incomplete record was written, in seconds since
    the epoch; None if unknown. ``has_gaps``: whether offsets without a record were found, or may exist. ``records``:
    how many are not complete, if all were read."""

    oldest_at: float | None
    has_gaps: bool
    records: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition of a group as it is shown. ``open``: the open records of its KMQ queue. ``open_committed``: how many
    of these are complete by the commit. Others were started after it, so it counts them as incomplete."""

    work: PartitionWork
    member: GroupMember | None
    in_database: bool = False
    sampled: Sampled | None = None
    open: PartitionStatus | None = None
    open_committed: int = 0

    @property
    def remaining(self) -> int:
        """Records that are not complete."""
        counted = None if self.sampled is None else self.sampled.records
        left = self.work.remaining if counted is None else counted
        return left + self.open_committed

    @property
    def is_exact(self) -> bool:
        """Whether each remaining offset is a record, as far as known. Without remaining offsets there is no doubt."""
        if not self.work.remaining:
            return True
        return self.sampled is not None and (self.sampled.records is not None or not self.sampled.has_gaps)

    def oldest_age(self, now: float) -> float | None:
        """Seconds since the oldest incomplete record was written or, in a KMQ queue, begun; None if unknown."""
        at = None if self.sampled is None else self.sampled.oldest_at
        ages = [] if at is None else [max(0.0, now - at)]
        if self.open is not None and self.open.oldest is not None:
            ages.append(self.open.oldest)
        return max(ages, default=None)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as it is shown."""

    name: str
    state: GroupState
    partitions: Sequence[PartitionView]

    @property
    def lag(self) -> int:
        """Of all partitions, as Kafka's tools count it."""
        return sum(one.work.lag for one in self.partitions)

    @property
    def remaining(self) -> int:
        """Records that are not complete."""
        return sum(one.remaining for one in self.partitions)

    @property
    def is_exact(self) -> bool:
        """Whether this holds for all partitions."""
        return all(one.is_exact for one in self.partitions)


class Connected(NamedTuple):
    """Connections to a cluster."""

    admin: GroupAdmin
    client: Client


@asynccontextmanager
async def connected(where: Cluster) -> AsyncIterator[Connected]:
    """Connect. Raises ClientError if the broker cannot list groups."""
    options = connecting_options(where)
    async with (
        GroupAdmin(where.bootstrap_servers, options, timeout=REQUEST_TIMEOUT) as admin,
        reading_client(where, _READER, isolation_level="read_committed") as client,
    ):
        if not await admin.supports(LIST_GROUPS):
            raise ClientError(
                "this broker does not describe groups: `aioparallel broker` is librdkafka's mock cluster; "
                "`aioparallel broker --kafka` starts Apache Kafka, which does"
            )
        yield Connected(admin, client)


async def read_groups(
    to: Connected, names: Collection[str], positions_of: PositionsOf | None = None, also: Collection[str] = ()
) -> list[GroupView]:
    """These groups, in this order. ``positions_of``: reads positions that are not in Kafka. ``also``: topics that each
    group reads, even if it has committed nothing of them.

    Commits are read before the ends of the logs, so a figure is never too small for the time of the commit.
    """
    read, turns = positions_of or to.admin.committed, asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> tuple[GroupState, Mapping[TopicPartition, Committed]]:
        async with turns:
            return await to.admin.describe_group(name), await read(name)

    asking = [asyncio.ensure_future(one(name)) for name in names]
    try:
        found = dict(zip(names, await asyncio.gather(*asking), strict=True))
    finally:
        for task in asking:  # if one has failed
            task.cancel()
    assigned = {name: _members_by_partition(state) for name, (state, _) in found.items()}
    topics = {place.topic for name, (_, commits) in found.items() for place in (*commits, *assigned[name])} | {*also}
    exist = await to.client.partitions(topics, REQUEST_TIMEOUT) if topics else set()
    ranges = await offset_ranges(to.admin, exist)
    by_topic = grouped((place.topic, place) for place in sorted(ranges))
    views = []
    for name, (state, commits) in found.items():
        of_group = {place.topic for place in (*commits, *assigned[name])} | {*also}
        partitions = [
            PartitionView(
                work_of(place, commits.get(place), *ranges[place]),
                assigned[name].get(place),
                in_database=positions_of is not None,
            )
            for topic in sorted(of_group)
            for place in by_topic.get(topic, ())
        ]
        views.append(GroupView(name, state, partitions))
    return views


def group_not_found(view: GroupView) -> bool:
    """Whether the group does not exist: no state, and no commit."""
    return view.state.state == "Dead" and not view.partitions


def _members_by_partition(state: GroupState) -> dict[TopicPartition, GroupMember]:
    return {place: member for member in state.members for place in member.partitions}
