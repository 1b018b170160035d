"""Requests about a consumer group without joining it: who uses it, and commits from outside.

Kafka accepts a commit from outside only while a group has no members, and checks that at each commit
(``UNKNOWN_MEMBER_ID`` otherwise). A group that is empty for a moment, as during a restart of its consumers, would
accept it; but it keeps its protocol type, so this is checked here. A consumer that assigns its own partitions is no
member and has no protocol, so the commits of a group are checked as well. A mark in the metadata of a commit tells from
which query its offset is.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, cast
from uuid import UUID

import aiokafka.errors as kafka
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from aioparallel.clients.aiokafka.checking import GivenOptions, check_connection
from aioparallel.clients.aiokafka.connecting import close_or_cut_off, find_broker
from aioparallel.clients.aiokafka.internals import Connections, MetadataAnswer, OffsetFetchAnswer
from aioparallel.clients.aiokafka.log_noise import calm
from aioparallel.clients.aiokafka.metadata_messages import Metadata, cluster_id_of
from aioparallel.clients.aiokafka.secure_connection import renewed
from aioparallel.clients.aiokafka.settings import check_servers, connection_options, option_names
from aioparallel.group.client import Committed
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import BrokerUnreachable, ClusterChanged
from aioparallel.records.record import TopicPartition

__all__ = ["GroupCoordinator", "GroupSettings", "Position", "Users", "mark_of", "stranger"]

_RETRY_PAUSE: Final = 0.1
# Seconds for closing connections.
_CLOSE_TIMEOUT: Final = 2.0
_MARK: Final = "aioparallel.spark query "
_NO_MEMBER: Final = (-1, "")
"""Generation and member id of a commit from outside."""
_OURS: Final[Mapping[str, str]] = {
    "api_version": "leave it out, aiokafka ignores it and asks each broker",
    "bootstrap_servers": "use bootstrap_servers with commit_group",
    "loop": "leave it out, it has its own event loop",
}


class _Groups(Protocol):
    """Responses about groups in aiokafka's form: ``(error code, group, state, protocol type, protocol, members)``,
    members ``(id, client id, host, ...)``."""

    groups: Sequence[tuple[int, str, str, str, str, Sequence[tuple[str, str, str, bytes, bytes]]]]


class _GroupList(Protocol):
    error_code: int
    groups: Sequence[tuple[str, str]]


class _Commits(Protocol):
    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]


class Position(NamedTuple):
    """The next offset to read, and the mark of the query that has read up to it."""

    offset: int
    mark: str


class Users(NamedTuple):
    """The users of a group."""

    text: str
    are_members: bool
    """Whether they are members now; otherwise they were before."""


class GroupSettings:
    """Connection settings. ``client_options``: aiokafka's options for a connection, including TLS and SASL.

    Raises ConfigurationError for a wrong one.
    """

    def __init__(self, bootstrap_servers: str, client_options: Mapping[str, object]) -> None:
        check_servers(bootstrap_servers)
        given = GivenOptions(client_options, lambda _name: "client_options")
        given.names(option_names(AIOKafkaClient), _OURS)
        check_connection(given)
        self.bootstrap_servers = bootstrap_servers
        self.options: dict[str, object] = {"client_id": "aioparallel-spark", **client_options}
        self._cluster_id: str | None = None

    @contextlib.asynccontextmanager
    async def coordinator(self, group: str, timeout: float) -> AsyncIterator[GroupCoordinator]:
        """The group's coordinator, with a connection for the length of the block.

        Raises BrokerUnreachable and NotAuthorized within ``timeout`` seconds, ClusterChanged for another cluster than
        before, and aiokafka's errors.
        """
        calm()
        try:
            server = await find_broker(self.bootstrap_servers, connection_options(self.options), timeout, _RETRY_PAUSE)
        except TimeoutError as error:
            raise BrokerUnreachable(self.bootstrap_servers, timeout, str(error)) from None
        client = AIOKafkaClient(bootstrap_servers=server, **renewed(self.options))
        try:
            await client.bootstrap()
            await self._check_cluster(client)
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
            yield GroupCoordinator(client, node, group)
        finally:
            await close_or_cut_off(cast("Connections", client), client.close(), _CLOSE_TIMEOUT)

    async def _check_cluster(self, client: AIOKafkaClient) -> None:
        found = cluster_id_of(cast("MetadataAnswer", await client.send(client.get_random_node(), Metadata([]))))
        if self._cluster_id is None:
            self._cluster_id = found
        elif found not in {None, self._cluster_id}:
            raise ClusterChanged(self.bootstrap_servers, self._cluster_id, str(found))


class GroupCoordinator:
    """Requests to the coordinator of a group. Methods raise aiokafka's errors and have no deadline of their own."""

    def __init__(self, client: AIOKafkaClient, node: int, group: str) -> None:
        self._client = client
        self._node = node
        self._group = group

    async def users(self) -> Users | None:
        """Current or past members of the group; None if there are none."""
        found = cast("_Groups", await self._send(DescribeGroupsRequest([self._group])))
        code, _, _, kind, _, members = found.groups[0]
        _check(code, self._group)
        if members:
            names = sorted({f"{client} at {host.lstrip('/')}" for _, client, host, *_ in members})
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            return Users(f"has live members ({', '.join(names[:3])}{more})", are_members=True)
        # This request does not describe groups of newer protocols (KIP-848), but ListGroups lists them.
        listed = cast("_GroupList", await self._send(ListGroupsRequest()))
        _check(listed.error_code, self._group)
        kind = kind or dict(listed.groups).get(self._group, "")
        return Users(f"belongs to consumers (its protocol is {kind!r})", are_members=False) if kind else None

    async def committed(self) -> dict[TopicPartition, Committed]:
        """All committed offsets with metadata."""
        answer = cast("OffsetFetchAnswer", await self._send(OffsetFetchRequest(self._group, None)))
        _check(answer.error_code, self._group)
        found = {}
        for topic, partitions in answer.topics:
            for number, offset, metadata, code in partitions:
                _check(code, self._group)
                found[TopicPartition(topic, number)] = Committed(offset, metadata or "")
        return {partition: one for partition, one in found.items() if one.offset >= 0}

    async def commit(self, offsets: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
        """Commit with the marks as metadata. Returns the error codes of partitions that were not committed."""
        topics: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for (topic, partition), (offset, mark) in offsets.items():
            topics[topic].append((partition, offset, mark))
        request = OffsetCommitRequest(
            self._group, *_NO_MEMBER, OffsetCommitRequest.DEFAULT_RETENTION_TIME, list(topics.items())
        )
        answer = cast("_Commits", await self._send(request))
        codes = {TopicPartition(topic, p): code for topic, partitions in answer.topics for p, code in partitions}
        # A partition that is missing from the response was not acknowledged.
        missing = dict.fromkeys(offsets, int(ErrorCode.UNKNOWN_SERVER_ERROR))
        return {partition: code for partition, code in {**missing, **codes}.items() if code != ErrorCode.NONE}

    async def _send(self, request: object) -> object:
        return await self._client.send(self._node, request, group=ConnectionGroup.COORDINATION)


def _check(code: int, group: str) -> None:
    if code != ErrorCode.NONE:
        raise kafka.for_code(code)(group)


def mark_of(query_id: UUID) -> str:
    """The metadata of a commit. The query id belongs to the checkpoint and survives restarts."""
    return f"{_MARK}{query_id}"


def stranger(
    committed: Mapping[TopicPartition, Committed],
    offered: Mapping[TopicPartition, Position],
    acknowledged: Mapping[TopicPartition, str],
    *,
    take_over: bool,
) -> str | None:
    """Describes a foreign commit whose position would be moved; None if there is none.

    ``acknowledged``: marks of this process's last commits; a query may replace another one of its process.
    ``take_over``: foreign positions count only if this process has committed before: then the other is still running.
    """
    for partition, (offset, metadata, *_) in sorted(committed.items()):
        is_ours = metadata.startswith(_MARK)
        mine = acknowledged.get(partition)
        if metadata == mine or (partition in offered and metadata == offered[partition].mark):
            continue
        if is_ours and partition not in offered:
            continue  # another query, of other partitions
        if take_over and mine is None:
            continue
        who = f"the {metadata.removeprefix('aioparallel.spark ')}" if is_ours else "another program"
        return f"has offset {offset} of {partition} committed by {who}"
    return None
