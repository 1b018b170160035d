"""Reads share groups: members, offsets, configs, and where the logs end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from aioparallel.cli.cluster import Cluster, connecting_options
from aioparallel.cli.console import say
from aioparallel.cli.reading_client import REQUEST_TIMEOUT, offset_ranges, reading_client
from aioparallel.clients.aiokafka.share_admin import ShareAdmin, ShareGroup, ShareMember, ShareOffset
from aioparallel.group.client import Client
from aioparallel.records.errors import ClientError, NotAuthorized
from aioparallel.records.record import TopicPartition

__all__ = ["Connected", "GroupView", "PartitionView", "connected", "existing", "find_group", "read_group", "read_lag"]

_READER: Final = "aioparallel-share"
"""The client's group, which it never joins."""


class Connected(NamedTuple):
    """Connections to a cluster. ``servers``: its address, for messages."""

    admin: ShareAdmin
    client: Client
    servers: str


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition of a group as it is shown. ``begin``, ``end``: the first offset of the log, and that of the next
    record; None without a leader."""

    partition: TopicPartition
    offset: ShareOffset
    begin: int | None
    end: int | None
    members: Sequence[ShareMember]

    @property
    def lag(self) -> int | None:
        """Offsets that have not ended; None if unknown: the broker counts once a record has ended."""
        if self.offset.lag is None and self.end is not None and self.begin == self.end:
            return 0
        return self.offset.lag


@dataclass(frozen=True, slots=True)
class GroupView:
    """A share group as it is shown. ``configs``: empty if this user may not read them."""

    group: ShareGroup
    partitions: Sequence[PartitionView]
    configs: Mapping[str, str]

    @property
    def lag(self) -> int | None:
        """Of all partitions; None if that of one is unknown."""
        return None if self.unknown else self.known_lag

    @property
    def known_lag(self) -> int:
        """Of the partitions whose lag is known."""
        return sum(one.lag for one in self.partitions if one.lag is not None)

    @property
    def unknown(self) -> int:
        """Partitions whose lag is unknown."""
        return sum(one.lag is None for one in self.partitions)


@asynccontextmanager
async def connected(where: Cluster) -> AsyncIterator[Connected]:
    """Connect. Raises ClientError if the brokers have no share groups."""
    async with (
        ShareAdmin(where.bootstrap_servers, connecting_options(where), timeout=REQUEST_TIMEOUT) as admin,
        reading_client(where, _READER) as client,
    ):
        await admin.require_share_groups()
        yield Connected(admin, client, where.bootstrap_servers)


async def existing(to: Connected, name: str) -> ShareGroup:
    """The group. Raises ClientError if there is none."""
    if (group := await to.admin.describe(name)) is None:
        raise _missing(to, name)
    return group


def _missing(to: Connected, name: str) -> ClientError:
    return ClientError(
        f"there is no share group {name!r} at {to.servers}; `aioparallel share list` names those that exist"
    )


async def read_group(to: Connected, name: str) -> GroupView:
    """The group, as :func:`find_group` returns it. Raises ClientError if there is none."""
    if (found := await find_group(to, name)) is None:
        raise _missing(to, name)
    return found


async def find_group(to: Connected, name: str) -> GroupView | None:
    """The group with its partitions; None if there is none. Offsets are read before the ends of the logs. A group that
    does not exist, but is configured, has the state Dead."""
    group = await to.admin.describe(name)
    if group is None:
        if any(one.startswith("share.") for one in await _configs(to.admin, name, only_set=True)):
            return GroupView(ShareGroup(name, "Dead", "", ()), (), await _configs(to.admin, name))
        return None
    partitions, configs = await asyncio.gather(_partitions(to, group), _configs(to.admin, name))
    return GroupView(group, partitions, configs)


async def read_lag(to: Connected, name: str) -> GroupView | None:
    """The group with its partitions, without its configs; None if it does not exist. Raises ClientError."""
    group = await to.admin.describe(name)
    return None if group is None else GroupView(group, await _partitions(to, group), {})


async def _partitions(to: Connected, group: ShareGroup) -> list[PartitionView]:
    offsets = await to.admin.offsets(group.name)
    members: dict[TopicPartition, list[ShareMember]] = {}
    for member in group.members:
        for place in member.partitions:
            members.setdefault(place, []).append(member)
    places = sorted(offsets.keys() | members.keys())
    exist = await to.client.partitions({place.topic for place in places}, REQUEST_TIMEOUT) if places else set()
    ranges = await offset_ranges(to.admin, exist.intersection(places))
    views = []
    for place in places:
        begin, end = ranges.get(place, (None, None))
        offset = offsets.get(place, ShareOffset(None, None))
        views.append(PartitionView(place, offset, begin, end, members.get(place, ())))
    return views


async def _configs(admin: ShareAdmin, name: str, *, only_set: bool = False) -> dict[str, str]:
    try:
        return await admin.group_configs(name, only_set=only_set)
    except NotAuthorized as error:
        say(f"WARNING the group's configs are not shown: {error}")
        return {}
