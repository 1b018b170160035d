"""The coordinator's state of consumer groups of the new protocol (KIP-848): members, epochs, and what each member has
on the way to its target. Plain data; time is passed in. Requests and responses are Kafka's messages.

A group's epoch goes up with each change of its members, subscriptions or partitions. Each epoch has a target
assignment, and each member moves there by itself, with its heartbeats:

* What it has and will not keep is taken out of its assignment. Its epoch stays until a heartbeat no longer lists these
  partitions as owned. Without that, the rebalance timeout removes it.
* Then its epoch is the target's, and it gets what nobody else has. It gets the others when they are released.

Committed offsets are those of :class:`~aioparallel.testing.memory.groups.Group`. So a group whose members have all left
may continue with the other protocol. Members of both in one group (KIP-848's online migration) are not implemented.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from aioparallel.clients.messages.assignments import Assignment, TopicPartitions
from aioparallel.clients.messages.consumer_groups import (
    JOIN,
    LEAVE,
    LEAVE_TO_RETURN,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aioparallel.group.client import Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.assignor import Subscription, plan
from aioparallel.testing.memory.refused import Refused

if TYPE_CHECKING:
    from aioparallel.testing.memory.broker import InMemoryBroker

__all__ = ["ConsumerGroup", "ConsumerGroups", "ConsumerMember", "named", "numbered"]

_NONE: Final = frozenset[TopicPartition]()


@dataclass(slots=True)
class ConsumerMember:
    """A member. Times are seconds on the clock that is passed in."""

    id: str
    instance_id: str | None = None
    epoch: int = JOIN
    previous_epoch: int = JOIN
    """Also accepted, as the answer with the current one may be lost."""
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    session_timeout: float = math.inf
    rebalance_timeout: float = math.inf
    expires_at: float = math.inf
    assigned: dict[TopicPartition, int] = field(default_factory=dict)
    """What it may use, each with the epoch since which it has it."""
    revoking: dict[TopicPartition, int] = field(default_factory=dict)
    """What it must give up, and may still be using."""
    revokes_until: float = math.inf

    @property
    def subscribed(self) -> tuple[frozenset[str], str]:
        """Topics and pattern."""
        return self.topics, self.pattern

    def has_had_since(self, partition: TopicPartition, epoch: int) -> bool:
        """Whether the member has this partition since that epoch, or longer."""
        since = self.assigned.get(partition, self.revoking.get(partition))
        return since is not None and since <= epoch


@dataclass(slots=True)
class ConsumerGroup:
    """A group."""

    id: str
    epoch: int = 0
    assignment_epoch: int = 0
    """The epoch that the target belongs to."""
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    assigned_for: frozenset[TopicPartition] = _NONE
    """The partitions that existed then."""

    def with_instance(self, instance_id: str) -> ConsumerMember | None:
        """The static member with this id."""
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def is_free(self, partition: TopicPartition) -> bool:
        """Whether no member has the partition."""
        return not any(partition in one.assigned or partition in one.revoking for one in self.members.values())


class ConsumerGroups:
    """All groups of a broker whose members use the new protocol."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self.accepts_older_epochs = False
        """True: a member may commit with an older epoch, for partitions that it has had since then (KIP-1251, brokers
        from Kafka 4.3). False: only with the current one, as earlier brokers."""
        self._broker = broker
        self._groups: dict[str, ConsumerGroup] = {}
        self._ids_given = 0

    def new_member_id(self) -> str:
        """An unused id, for a client. (Those of real clients are random, which tests could not repeat.)"""
        self._ids_given += 1
        return f"consumer-member-{self._ids_given}"

    def group(self, group_id: str) -> ConsumerGroup | None:
        """The group, for inspection in tests."""
        return self._groups.get(group_id)

    def has_members(self, group_id: str) -> bool:
        """Whether the group has members of this protocol."""
        group = self._groups.get(group_id)
        return group is not None and bool(group.members)

    def expire(self, group_id: str, member_id: str) -> None:
        """Remove a member, as when its session expires."""
        self._remove(self._groups[group_id], member_id)

    # -- heartbeats

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, session_timeout: float, now: float
    ) -> ConsumerGroupHeartbeatResponse:
        """ConsumerGroupHeartbeat. ``session_timeout``: an option of real brokers; here each member has its own. Raises
        Refused."""
        if request.member_epoch in (LEAVE, LEAVE_TO_RETURN):
            return self._leave(request, now)
        owned = None if request.topic_partitions is None else named(self._broker, request.topic_partitions)
        group, member = self._joined(request) if request.member_epoch == JOIN else self._known(request, owned)
        member.session_timeout = session_timeout
        member.expires_at = now + session_timeout
        self._subscribe(group, member, request)
        self._assign(group)
        told = frozenset(member.assigned)
        self._reconcile(group, member, owned, now)
        is_full = owned is not None and request.rebalance_timeout_ms >= 0
        partitions = frozenset(member.assigned)
        return ConsumerGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            assignment=Assignment(numbered(self._broker, partitions)) if is_full or told != partitions else None,
        )

    def _joined(self, request: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, ConsumerMember]:
        if request.rebalance_timeout_ms < 0 or request.topic_partitions != ():
            raise Refused(ErrorCode.INVALID_REQUEST)
        classic = self._broker.group(request.group_id)
        if classic.members:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        group = self._groups.setdefault(request.group_id, ConsumerGroup(request.group_id))
        if group.epoch < classic.generation:
            group.epoch = group.assignment_epoch = classic.generation
        if request.instance_id is not None and (before := group.with_instance(request.instance_id)) is not None:
            if before.epoch != LEAVE_TO_RETURN:
                raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID)  # also to itself
            self._replace(group, before, request.member_id)
        member = group.members.get(request.member_id)
        if member is None:
            member = ConsumerMember(request.member_id, request.instance_id)
            group.members[member.id] = member
            self._changed(group)
        return group, member

    def _replace(self, group: ConsumerGroup, member: ConsumerMember, member_id: str) -> None:
        """Give a member that has left to return another id, for the process that has returned."""
        del group.members[member.id]
        group.target[member_id] = group.target.pop(member.id, _NONE)
        member.id, member.epoch, member.previous_epoch = member_id, JOIN, JOIN
        group.members[member_id] = member

    def _known(
        self, request: ConsumerGroupHeartbeatRequest, owned: frozenset[TopicPartition] | None
    ) -> tuple[ConsumerGroup, ConsumerMember]:
        group, member = self._find(request)
        epoch = request.member_epoch
        is_previous = (
            epoch == member.previous_epoch < member.epoch and owned is not None and owned <= member.assigned.keys()
        )
        if epoch != member.epoch and not is_previous:
            raise Refused(ErrorCode.FENCED_MEMBER_EPOCH)
        return group, member

    def _find(self, request: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, ConsumerMember]:
        group = self._groups.get(request.group_id)
        if group is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if request.instance_id is not None:
            owner = group.with_instance(request.instance_id)
            if owner is not None and owner.id != request.member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID)
        if (member := group.members.get(request.member_id)) is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return group, member

    def _subscribe(self, group: ConsumerGroup, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
        if request.rebalance_timeout_ms >= 0:
            member.rebalance_timeout = request.rebalance_timeout_ms / 1000
        before = member.subscribed
        if request.subscribed_topic_names is not None:
            member.topics = frozenset(request.subscribed_topic_names)
        if request.subscribed_topic_regex is not None:
            member.pattern = request.subscribed_topic_regex
        if before != member.subscribed:
            self._changed(group)

    def _leave(self, request: ConsumerGroupHeartbeatRequest, now: float) -> ConsumerGroupHeartbeatResponse:
        group, member = self._find(request)
        if request.member_epoch == LEAVE:
            self._remove(group, member.id)
        else:
            member.epoch, member.expires_at = LEAVE_TO_RETURN, now + member.session_timeout
            member.revoking.clear()
            member.revokes_until = math.inf
        return ConsumerGroupHeartbeatResponse(member_id=member.id, member_epoch=request.member_epoch)

    def _remove(self, group: ConsumerGroup, member_id: str) -> None:
        if group.members.pop(member_id, None) is not None:
            group.target.pop(member_id, None)
            self._changed(group)

    def _changed(self, group: ConsumerGroup) -> None:
        """It needs a new target."""
        if group.epoch == group.assignment_epoch:
            group.epoch += 1
            self._broker.group(group.id).generation = group.epoch

    # -- assignments

    def _assign(self, group: ConsumerGroup) -> None:
        """Make a new target if something has changed. Members keep what they have, up to their share."""
        # Most members of a group subscribe to the same: with many partitions, each subscription costs milliseconds.
        wanted = {one: self._wanted(*one) for one in {member.subscribed for member in group.members.values()}}
        every = _NONE.union(*wanted.values())
        if every != group.assigned_for:
            group.assigned_for = every
            self._changed(group)
        if group.assignment_epoch == group.epoch:
            return
        subscriptions = {
            member.id: Subscription(wanted[member.subscribed], group.target.get(member.id, _NONE))
            for member in group.members.values()
        }
        group.target = {name: frozenset(some) for name, some in plan(subscriptions).items()}
        group.assignment_epoch = group.epoch

    def _wanted(self, topics: frozenset[str], pattern: str) -> frozenset[TopicPartition]:
        by_name = self._broker.partitions_of(topics)
        return by_name | self._broker.partitions_of(re.compile(pattern)) if pattern else by_name

    @staticmethod
    def _reconcile(
        group: ConsumerGroup, member: ConsumerMember, owned: frozenset[TopicPartition] | None, now: float
    ) -> None:
        """Move the member towards its target. ``owned``: what it says that it has; None: unchanged."""
        target = group.target.get(member.id, _NONE)
        if member.revoking:
            if owned is None or owned & member.revoking.keys():
                return
            member.revoking.clear()
        going = {partition: since for partition, since in member.assigned.items() if partition not in target}
        for partition in going:
            del member.assigned[partition]
        if going and (owned is None or owned & going.keys()):
            member.revoking, member.revokes_until = going, now + member.rebalance_timeout
            return
        member.revokes_until = math.inf
        if member.epoch != group.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, group.assignment_epoch
        free = [one for one in sorted(target - member.assigned.keys()) if group.is_free(one)]
        member.assigned |= dict.fromkeys(free, member.epoch)

    # -- commits

    def refusals(
        self, group_id: str, partitions: Collection[TopicPartition], generation: Generation
    ) -> dict[TopicPartition, ErrorCode]:
        """Which of these partitions a member may not commit, and why. Raises Refused if it may commit none."""
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(generation.member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation.id == member.epoch:
            return {}
        if generation.id > member.epoch or not self.accepts_older_epochs:
            raise Refused(ErrorCode.STALE_MEMBER_EPOCH)
        stale = [one for one in partitions if not member.has_had_since(one, generation.id)]
        return dict.fromkeys(stale, ErrorCode.STALE_MEMBER_EPOCH)

    # -- time

    def advance(self, now: float) -> None:
        """Let time pass: sessions expire, and members that do not give up what they must are removed."""
        for group in self._groups.values():
            late = [m.id for m in group.members.values() if now >= min(m.expires_at, m.revokes_until)]
            for member_id in late:
                self._remove(group, member_id)

    def restart_sessions(self, now: float) -> None:
        """Give every member all its time again, as a coordinator does that has just loaded the group."""
        for group in self._groups.values():
            for member in group.members.values():
                member.expires_at = now + member.session_timeout
                if member.revoking:
                    member.revokes_until = now + member.rebalance_timeout


def numbered(broker: InMemoryBroker, partitions: Collection[TopicPartition]) -> tuple[TopicPartitions, ...]:
    """Partitions as messages have them: by the topic's id. Those of missing topics are left out."""
    by_topic = groupby(sorted(partitions), key=lambda partition: partition.topic)
    return tuple(
        TopicPartitions(topic_id, tuple(one.partition for one in some))
        for topic, some in by_topic
        if (topic_id := broker.topic_id(topic))
    )


def named(broker: InMemoryBroker, topics: Collection[TopicPartitions]) -> frozenset[TopicPartition]:
    """The opposite of :func:`numbered`."""
    return frozenset(
        TopicPartition(name, number)
        for topic in topics
        if (name := broker.topic_with_id(topic.topic_id)) is not None
        for number in topic.partitions
    )
