"""Lists and describes groups, and changes the offsets of a group without members."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.commit import OffsetCommitRequest

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.clients.aiokafka.admin_messages import (
    DescribeGroup,
    GroupMember,
    GroupState,
    ListedGroup,
    ListGroups,
    consumer_group_state,
    stable_offsets_request,
)
from aioparallel.clients.aiokafka.aiokafka_errors import deadline
from aioparallel.clients.aiokafka.group_messages import CommitRequest
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.clients.aiokafka.typed_requests import ask
from aioparallel.clients.messages.consumer_groups import CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest
from aioparallel.group.client import Committed
from aioparallel.group.offset_commits import MetadataLimit
from aioparallel.records.error_codes import COORDINATOR_MOVED, ErrorCode
from aioparallel.records.errors import NotAuthorized
from aioparallel.records.record import TopicPartition

__all__ = ["LIST_GROUPS", "GroupAdmin", "GroupMember", "GroupState", "ListedGroup"]

LIST_GROUPS: Final = 16
"""The key of the request in Kafka's protocol. The embedded broker does not answer it."""
_DEAD: Final = "Dead"
"""The state of a group that does not exist."""
_DESCRIBE: Final = "DESCRIBE on the group"
_LIMIT: Final = "offset.metadata.max.bytes"
_NO_MEMBER: Final = (-1, "")
"""Generation and member id of a commit from outside the group. Brokers accept it only while the group has no members,
and answer UNKNOWN_MEMBER_ID otherwise."""
_AGAIN: Final = 0.1
"""Seconds before the commit is sent to the coordinator that is found then."""


class GroupAdmin(Admin):
    """Also lists and describes groups, and changes offsets. See :class:`Admin` for errors."""

    async def list_groups(self) -> list[ListedGroup]:
        """The groups that this user may see, by name."""

        async def ask() -> list[ListedGroup]:
            nodes = [broker.nodeId for broker in (await self._metadata()).brokers()]
            answers = await asyncio.gather(*(self._admin._client.send(node, ListGroups()) for node in nodes))
            for answer in answers:
                _raise(answer.error_code)
            return sorted({group for answer in answers for group in ListGroups.results(answer)})

        return await self._answer("asking for the groups", ask, "DESCRIBE on the groups")

    async def describe_group(self, group: str) -> GroupState:
        """The state of a group, and its members."""

        async def ask() -> GroupState:
            code, found = DescribeGroup.results(await self._ask_coordinator(group, DescribeGroup(group)))
            if code == ErrorCode.NONE and found.state != _DEAD:
                return found
            if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                _raise(code)
            return await self._consumer_group(group)

        return await self._answer(f"asking for the members of group {group!r}", ask, _DESCRIBE)

    async def _consumer_group(self, group: str) -> GroupState:
        """A group of the newer protocol, which DescribeGroups reports as dead."""
        missing = GroupState(_DEAD, "", ())
        client, node = self._admin._client, await self._admin.find_coordinator(group)
        try:
            answer = await ask(client, node, CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(group_ids=(group,)))
        except kafka.IncompatibleBrokerVersion:
            return missing
        (found,) = answer.groups
        if found.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return missing
        _raise(found.error_code)
        return consumer_group_state(found)

    async def stable_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Committed | int]:
        """The committed offsets of these partitions with their leader epochs; an error code if there is one, such as
        UNSTABLE_OFFSET_COMMIT while a transaction may change the offset. Needs Kafka 2.5."""

        async def ask() -> dict[TopicPartition, Committed | int]:
            answer = await self._ask_coordinator(group, stable_offsets_request(group, partitions))
            _raise(answer.error_code)
            found: dict[TopicPartition, Committed | int] = {}
            for topic, answers, _ in answer.topics:
                for number, offset, epoch, metadata, code, _ in answers:
                    if code != ErrorCode.NONE:
                        found[TopicPartition(topic, number)] = code
                    elif offset >= 0:
                        found[TopicPartition(topic, number)] = Committed(offset, metadata or "", epoch)
            return found

        return await self._answer(f"asking for the committed offsets of group {group!r}", ask, _DESCRIBE)

    async def commit(self, group: str, positions: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int]:
        """Commit for a group without members, in one request. It is sent once; again only if that broker is not, or not
        yet, the group's coordinator. Returns the error code of each partition; without an answer TimeoutError or
        ClientError is raised, and the commit may have been carried out."""
        topics = grouped((topic, (number, one)) for (topic, number), one in positions.items())
        plain = [
            (topic, [(number, one.offset, one.metadata) for number, one in some]) for topic, some in topics.items()
        ]
        older = OffsetCommitRequest(group, *_NO_MEMBER, OffsetCommitRequest.DEFAULT_RETENTION_TIME, plain)
        request = CommitRequest(group, *_NO_MEMBER, None, topics, older)
        doing = f"committing to group {group!r}"
        async with deadline(self._timeout, doing):
            while True:
                node = await self._answer(doing, lambda: self._admin.find_coordinator(group), _DESCRIBE)
                codes = request.results(await self._admin._client.send(node, request))
                if not codes or not COORDINATOR_MOVED.issuperset(codes.values()):
                    break
                await asyncio.sleep(_AGAIN)
        # A partition that is missing from the answer was not acknowledged.
        return {**dict.fromkeys(positions, int(ErrorCode.UNKNOWN_SERVER_ERROR)), **codes}

    async def metadata_limit(self) -> int:
        """The characters of a commit's metadata that brokers accept; Kafka's default if this user may not read it."""

        limit = await self.broker_config(_LIMIT)
        return MetadataLimit.DEFAULT if limit is None else int(limit)

    async def broker_config(self, name: str) -> str | None:
        """The value of this config at a broker; None if it has none, or if this user may not read it."""

        async def ask() -> str | None:
            node = next(iter((await self._metadata()).brokers())).nodeId
            (answer,) = await self._admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, str(node))])
            code, _, _, _, entries = answer.resources[0]
            _raise(code)
            return next((entry[1] for entry in entries if entry[0] == name), None)

        try:
            return await self._answer(f"asking for {name}", ask, "DESCRIBE_CONFIGS on the cluster")
        except NotAuthorized:
            return None

    async def _ask_coordinator(self, group: str, request: object) -> Any:
        return await self._admin._client.send(await self._admin.find_coordinator(group), request)


def _raise(code: int) -> None:
    if code != ErrorCode.NONE:
        raise kafka.for_code(code)
