"""The coordinator's state of share groups (KIP-932): members, epochs, sessions and assignments. Plain data; time is
passed in. Requests and responses are Kafka's messages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from aioparallel.clients.messages.assignments import Assignment, TopicPartitions
from aioparallel.clients.messages.share_groups import (
    JOIN,
    LEAVE,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.refused import Refused
from aioparallel.testing.memory.share_assignor import assign_shared
from aioparallel.testing.memory.share_options import ShareGroupOptions

if TYPE_CHECKING:
    from aioparallel.testing.memory.broker import InMemoryBroker

__all__ = ["ShareGroup", "ShareGroups", "ShareMember"]

_NONE: Final = frozenset[TopicPartition]()


@dataclass(slots=True)
class ShareMember:
    """A member."""

    id: str
    epoch: int = 0
    previous_epoch: int = 0
    """Also accepted, as the answer with the current one may be lost."""
    topics: frozenset[str] = frozenset()
    expires_at: float = 0.0
    assignment: frozenset[TopicPartition] = _NONE


@dataclass(slots=True)
class ShareGroup:
    """A group. ``epoch`` goes up with each change that needs a new assignment."""

    id: str
    members: dict[str, ShareMember] = field(default_factory=dict)
    epoch: int = 0
    is_stale: bool = True
    """Whether the assignment is older than the last change."""
    assigned_epoch: int = 0
    assigned_at: float = -math.inf
    assigned_for: frozenset[TopicPartition] = _NONE
    """The partitions that existed then."""
    target: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)

    def changed(self) -> None:
        """It needs a new assignment."""
        self.epoch += 1
        self.is_stale = True


class ShareGroups:
    """All share groups of a broker. A group exists from its first member on, until :meth:`delete`."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self._broker = broker
        self._groups: dict[str, ShareGroup] = {}
        self._ids_given = 0

    def new_member_id(self) -> str:
        """An unused id, for a client. (Those of real clients are random, which tests could not repeat.)"""
        self._ids_given += 1
        return f"share-member-{self._ids_given}"

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def group(self, group_id: str) -> ShareGroup | None:
        """The group, for inspection in tests."""
        return self._groups.get(group_id)

    def delete(self, group_id: str) -> None:
        """Delete the group. Its members join it anew, as they notice."""
        self._groups.pop(group_id, None)

    def expire(self, group_id: str, member_id: str) -> None:
        """Remove a member, as when its session expires."""
        self._remove(self._groups[group_id], member_id)

    # -- heartbeats

    def heartbeat(self, request: ShareGroupHeartbeatRequest, now: float) -> ShareGroupHeartbeatResponse:
        """ShareGroupHeartbeat. Raises Refused."""
        if self._broker.share_version < 1:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION)
        options = self._broker.share.options(request.group_id)
        if request.member_epoch == LEAVE:
            group = self._groups.get(request.group_id)
            if group is None or request.member_id not in group.members:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            self._remove(group, request.member_id)
            return ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE)
        group, member = self._member(request, options)
        member.expires_at = now + options.session_timeout
        if request.subscribed_topic_names is not None and member.topics != set(request.subscribed_topic_names):
            member.topics = frozenset(request.subscribed_topic_names)
            group.changed()
        self._assign(group, options, now)
        told = member.assignment
        if member.epoch != group.assigned_epoch:
            member.previous_epoch, member.epoch = request.member_epoch, group.assigned_epoch
            member.assignment = group.target.get(member.id, _NONE)
        is_full = request.member_epoch == JOIN or request.subscribed_topic_names is not None
        return ShareGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=round(options.heartbeat_interval * 1000),
            assignment=self._as_message(member.assignment) if is_full or told != member.assignment else None,
        )

    def _member(
        self, request: ShareGroupHeartbeatRequest, options: ShareGroupOptions
    ) -> tuple[ShareGroup, ShareMember]:
        group_id, member_id, epoch = request.group_id, request.member_id, request.member_epoch
        group = self._groups.get(group_id)
        if epoch == JOIN:
            if not request.subscribed_topic_names:
                raise Refused(ErrorCode.INVALID_REQUEST)
            if group is None:
                if self._broker.has_consumer_group(group_id):
                    raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
                group = self._groups[group_id] = ShareGroup(group_id)
            member = group.members.get(member_id)
            if member is None:
                if len(group.members) >= options.max_size:
                    raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
                member = group.members[member_id] = ShareMember(member_id)
            return group, member
        if group is None and self._broker.has_consumer_group(group_id):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        known = None if group is None else group.members.get(member_id)
        if group is None or known is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch not in (known.epoch, known.previous_epoch):
            raise Refused(ErrorCode.FENCED_MEMBER_EPOCH)
        return group, known

    def _remove(self, group: ShareGroup, member_id: str) -> None:
        if group.members.pop(member_id, None) is not None:
            group.changed()
            self._broker.notify_group(group.id)

    # -- assignments

    def _assign(self, group: ShareGroup, options: ShareGroupOptions, now: float) -> None:
        """Assign anew, if something has changed and the last time is long enough ago."""
        wanted = {member.id: self._broker.partitions_of(member.topics) for member in group.members.values()}
        every = _NONE.union(*wanted.values())
        if every != group.assigned_for:
            group.assigned_for = every
            group.changed()
        if not group.is_stale:
            return
        if group.assigned_at == -math.inf:
            group.assigned_at = now  # a new group waits, too
        if now < group.assigned_at + options.assignment_interval:
            group.assigned_epoch = max(group.assigned_epoch, 1)
            return
        group.target = assign_shared(wanted, group.target)
        group.epoch = group.assigned_epoch = max(group.epoch, group.assigned_epoch + 1)
        group.is_stale, group.assigned_at = False, now
        self._broker.notify_group(group.id)

    def _as_message(self, partitions: frozenset[TopicPartition]) -> Assignment:
        by_topic = groupby(sorted(partitions), key=lambda partition: partition.topic)
        return Assignment(
            tuple(
                TopicPartitions(self._broker.topic_id(topic), tuple(one.partition for one in some))
                for topic, some in by_topic
                if self._broker.topic_id(topic)
            )
        )

    # -- time

    def advance(self, now: float) -> None:
        """Let sessions expire."""
        for group in self._groups.values():
            for member in [member for member in group.members.values() if now >= member.expires_at]:
                self._remove(group, member.id)

    def restart_sessions(self, now: float) -> None:
        """Give every member a full session, as a coordinator does that has just loaded the group."""
        for group in self._groups.values():
            for member in group.members.values():
                member.expires_at = now + self._broker.share.options(group.id).session_timeout
