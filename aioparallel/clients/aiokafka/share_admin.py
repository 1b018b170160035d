"""Describes share groups (KIP-932), and changes the offsets of one without members."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import aiokafka.errors as kafka
from aiokafka.protocol.admin import DescribeConfigsRequest

from aioparallel.clients.aiokafka.group_admin import GroupAdmin
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.clients.aiokafka.typed_requests import ask
from aioparallel.clients.messages import Api
from aioparallel.clients.messages.configs import (
    INCREMENTAL_ALTER_CONFIGS,
    ChangedConfig,
    ChangedResource,
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from aioparallel.clients.messages.share_groups import (
    SHARE_GROUP_DESCRIBE,
    DescribedShareGroup,
    ShareGroupDescribeRequest,
)
from aioparallel.clients.messages.share_offsets import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    AlterShareGroupOffsetsRequest,
    AlterTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteTopic,
    DescribeGroup,
    DescribeShareGroupOffsetsRequest,
    StartOffset,
)
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition

__all__ = ["ShareAdmin", "ShareGroup", "ShareMember", "ShareOffset"]

_DESCRIBE: Final = "DESCRIBE on the group"
_NO_SHARE_GROUPS: Final = (
    "these brokers have no share groups: they need Kafka 4.2 or later, with the feature share.version=1 "
    "(kafka-features.sh upgrade --feature share.version=1). `aioparallel broker` is librdkafka's mock cluster, which "
    "has none; `aioparallel broker --kafka` starts Apache Kafka, which does"
)
_SET_FOR_GROUP: Final = 8
"""The source of a config, from version 1 of the answer on."""
_OTHER_TYPE: Final = "is not a share group"
"""In the message of a coordinator. A group that does not exist has the same code."""

Q = TypeVar("Q")
R = TypeVar("R")


class ShareMember(NamedTuple):
    """A member of a share group. ``topics``: those to which it has subscribed."""

    member_id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


class ShareGroup(NamedTuple):
    """A share group. ``state``: Empty, Stable or Dead (it does not exist)."""

    name: str
    state: str
    assignor: str
    members: tuple[ShareMember, ...]


class ShareOffset(NamedTuple):
    """Where the group is in a partition. ``start``: all records below have ended; None: nothing was read yet. ``lag``:
    how many have not ended; None if the broker does not know."""

    start: int | None
    lag: int | None


class ShareAdmin(GroupAdmin):
    """Also describes share groups, and sets their offsets. See :class:`~aioparallel.clients.aiokafka.admin.Admin` for
    errors."""

    async def share_groups(self) -> list[str]:
        """The share groups that this user may see, by name."""
        return [one.name for one in await self.list_groups() if one.type.lower() == "share"]

    async def describe(self, group: str) -> ShareGroup | None:
        """The group and its members; None if it does not exist. Raises ClientError for a group of another type."""

        async def describe() -> ShareGroup | None:
            request = ShareGroupDescribeRequest(group_ids=(group,))
            (found,) = (await self._coordinate(group, SHARE_GROUP_DESCRIBE, request)).groups
            if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                if _OTHER_TYPE in (found.error_message or ""):
                    raise ClientError(
                        f"group {group!r} is not a share group; `aioparallel groups show {group}` shows consumer groups"
                    )
                return None
            _raise(found.error_code)
            return _group(found)

        return await self._answer(f"asking for the members of share group {group!r}", describe, _DESCRIBE)

    async def offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        """Where the group is, in each partition that it knows."""

        async def offsets() -> dict[TopicPartition, ShareOffset]:
            request = DescribeShareGroupOffsetsRequest(groups=(DescribeGroup(group),))
            (found,) = (await self._coordinate(group, DESCRIBE_SHARE_GROUP_OFFSETS, request)).groups
            _raise(found.error_code)
            known = {}
            for topic in found.topics:
                for one in topic.partitions:
                    _raise(one.error_code)
                    start = None if one.start_offset < 0 else one.start_offset
                    lag = None if one.lag < 0 else one.lag
                    known[TopicPartition(topic.topic_name, one.partition_index)] = ShareOffset(start, lag)
            return known

        return await self._answer(f"asking for the offsets of share group {group!r}", offsets, _DESCRIBE)

    async def group_configs(self, group: str, *, only_set: bool = False) -> dict[str, str]:
        """The group's configs by name, including defaults, also if there is no such group. ``only_set``: those that
        were set for this group."""

        async def ask_for_configs() -> dict[str, str]:
            request = DescribeConfigsRequest([(ResourceType.GROUP, group, None)])
            answer: Any = await self._admin._client.send(self._admin._client.get_random_node(), request)
            code, _, _, _, entries = answer.resources[0]
            _raise(code)
            version = answer.API_VERSION
            return {
                entry[0]: entry[1]
                for entry in entries
                if entry[1] is not None and (not only_set or (entry[3] == _SET_FOR_GROUP if version else not entry[3]))
            }

        return await self._answer(
            f"asking for the configs of group {group!r}", ask_for_configs, "DESCRIBE_CONFIGS on the group"
        )

    async def set_group_configs(self, group: str, configs: Mapping[str, str | None]) -> None:
        """Set configs of a group, which may not exist yet; None: the default counts again. Raises ClientError."""
        changes = [
            ChangedConfig(name, ConfigOperation.DELETE if value is None else ConfigOperation.SET, value)
            for name, value in configs.items()
        ]
        request = IncrementalAlterConfigsRequest(
            resources=(ChangedResource(ResourceType.GROUP, group, tuple(changes)),)
        )

        async def alter() -> None:
            client = self._admin._client
            answer = await ask(client, client.get_random_node(), INCREMENTAL_ALTER_CONFIGS, request)
            for one in answer.responses:
                _refuse(group, one.error_code, one.error_message)

        await self._answer(f"setting the configs of group {group!r}", alter, "ALTER_CONFIGS on the group")

    async def set_starts(self, group: str, starts: Mapping[TopicPartition, int]) -> None:
        """Set the start offsets of a group without members. Sent once to each coordinator. Raises ClientError."""
        topics = grouped((topic, StartOffset(number, start)) for (topic, number), start in sorted(starts.items()))
        request = AlterShareGroupOffsetsRequest(
            group_id=group, topics=tuple(AlterTopic(name, tuple(some)) for name, some in topics.items())
        )

        async def alter() -> None:
            answer = await self._coordinate(group, ALTER_SHARE_GROUP_OFFSETS, request)
            _refuse(group, answer.error_code, answer.error_message)
            for topic in answer.responses:
                for one in topic.partitions:
                    place = TopicPartition(topic.topic_name, one.partition_index)
                    _refuse(group, one.error_code, one.error_message, str(place))

        await self._answer(f"setting the offsets of share group {group!r}", alter, "READ on the group and its topics")

    async def delete_offsets(self, group: str, topics: Collection[str]) -> None:
        """Delete what the group knows of these topics. It must have no members. Raises ClientError."""
        request = DeleteShareGroupOffsetsRequest(group_id=group, topics=tuple(map(DeleteTopic, topics)))

        async def delete() -> None:
            answer = await self._coordinate(group, DELETE_SHARE_GROUP_OFFSETS, request)
            _refuse(group, answer.error_code, answer.error_message)
            for topic in answer.responses:
                _refuse(group, topic.error_code, topic.error_message, topic.topic_name)

        await self._answer(
            f"deleting offsets of share group {group!r}", delete, "DELETE on the group and READ on its topics"
        )

    async def require_share_groups(self) -> None:
        """Raise ClientError if the brokers have none."""
        if not await self.supports(DESCRIBE_SHARE_GROUP_OFFSETS.key):
            raise ClientError(_NO_SHARE_GROUPS)

    async def _coordinate(self, group: str, api: Api[Q, R], request: Q) -> R:
        return await ask(self._admin._client, await self._admin.find_coordinator(group), api, request)


def _group(found: DescribedShareGroup) -> ShareGroup:
    members = [
        ShareMember(
            one.member_id,
            one.client_id,
            one.client_host.removeprefix("/"),
            one.subscribed_topic_names,
            tuple(
                sorted(
                    TopicPartition(topic.topic_name, number)
                    for topic in one.assignment.topic_partitions
                    for number in topic.partitions
                )
            ),
        )
        for one in found.members
    ]
    return ShareGroup(
        found.group_id,
        found.group_state,
        found.assignor_name,
        tuple(sorted(members, key=lambda one: (one.client_id, one.host, one.member_id))),
    )


def _refuse(group: str, code: int, message: str | None, place: str = "") -> None:
    """Raise ClientError for an error that does not pass."""
    if code == ErrorCode.NONE:
        return
    if code == ErrorCode.NON_EMPTY_GROUP:
        raise ClientError(f"share group {group!r} has members: stop all of them first")
    if message is None or code in (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        _raise(code)
    if kafka.for_code(code).retriable:
        _raise(code)
    raise ClientError(f"share group {group!r}{': ' * bool(place)}{place}: {message} (Kafka error {code})")


def _raise(code: int) -> None:
    if code == ErrorCode.UNSUPPORTED_VERSION:  # the feature is off
        raise ClientError(_NO_SHARE_GROUPS)
    if code != ErrorCode.NONE:
        raise kafka.for_code(code)
