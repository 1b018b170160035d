"""A member of a consumer group of the new protocol (KIP-848), without I/O: its epoch, what it owns, what its heartbeats
say, and what follows from their answers.

The coordinator sends the partitions that the member should have. The member gives away those that are missing, and says
so with the next heartbeat. Only then its epoch goes up, and others get them. It gets new partitions when their owners
have given them away. So no partition stops that does not move.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.clients.messages.assignments import TopicPartitions
from aioparallel.clients.messages.consumer_groups import (
    JOIN,
    LEAVE,
    LEAVE_TO_RETURN,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aioparallel.records.error_codes import COORDINATOR_MOVED, RETRIABLE, ErrorCode

__all__ = ["GroupMember", "Place", "Subscribed", "Then"]

_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_SHORTEST: Final = 0.05
_FIRST_INTERVAL: Final = 0.5


class Then(enum.Enum):
    """What follows from an answer."""

    WAIT = enum.auto()
    """The next heartbeat when it is due."""
    RETRY = enum.auto()
    """The same after a while."""
    LOOK_UP = enum.auto()
    """The same after a while, at the current coordinator."""
    LOST = enum.auto()
    """The coordinator does not know this member any more. It joins again."""
    LEAVE = enum.auto()
    """The coordinator knows this member in a later epoch, and refuses that it joins again (before Kafka 4.3)."""
    INSTANCE_IN_USE = enum.auto()
    """Another member has the instance id, and has not left."""
    INSTANCE_FENCED = enum.auto()
    """Another process is the static member now."""
    FAIL = enum.auto()


class Place(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: bytes
    partition: int


class Subscribed(NamedTuple):
    """What a member reads, and who it is."""

    group_id: str
    topics: tuple[str, ...] | None
    pattern: str | None = None
    """In the syntax of RE2/J, in place of topics."""
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout: float = 60.0
    assignor: str | None = None


class GroupMember:
    """See the module. ``epoch`` is the member epoch that the last answer had."""

    def __init__(self, subscribed: Subscribed, member_id: str) -> None:
        self.subscribed = subscribed
        self.member_id = member_id
        self.epoch = JOIN
        self.interval = _FIRST_INTERVAL
        """Seconds between two heartbeats."""
        self.owned: frozenset[Place] = frozenset()
        """The partitions that this member has, also while it gives them away."""
        self.target: frozenset[Place] = frozenset()
        """Those that it should have, from the last answer that had an assignment."""
        self.is_acknowledged = True
        """Whether the coordinator knows what is owned."""
        self._says_all = True

    @property
    def is_member(self) -> bool:
        return self.epoch > JOIN

    @property
    def leaving(self) -> frozenset[Place]:
        """What must be given away."""
        return self.owned - self.target

    @property
    def arriving(self) -> frozenset[Place]:
        """What may be taken."""
        return self.target - self.owned

    @property
    def is_unsure(self) -> bool:
        """Whether the last heartbeat has no answer that counts. The coordinator may have taken back at once what the
        member did not have yet, so nothing may be taken until the next answer, which has the assignment."""
        return self._says_all

    # -- heartbeats

    def heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat. A member that joins, or is unsure what the coordinator knows, says everything."""
        what = self.subscribed
        owned: tuple[TopicPartitions, ...] | None = None
        if not self.is_member:
            owned = ()
        elif self._says_all or not self.is_acknowledged:
            owned = _by_topic(self.owned)
        if not self._says_all and self.is_member:
            return ConsumerGroupHeartbeatRequest(
                group_id=what.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=what.instance_id,
                topic_partitions=owned,
            )
        return ConsumerGroupHeartbeatRequest(
            group_id=what.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=what.instance_id,
            rack_id=what.rack,
            rebalance_timeout_ms=round(what.rebalance_timeout * 1000),
            subscribed_topic_names=what.topics,
            # librdkafka's mock cluster aborts the process if names come without a pattern. Empty: there is none.
            subscribed_topic_regex=what.pattern or "",
            server_assignor=what.assignor,
            topic_partitions=owned,
        )

    def leave(self) -> ConsumerGroupHeartbeatRequest:
        """The last heartbeat. The partitions of a static member stay its own until it returns."""
        what = self.subscribed
        return ConsumerGroupHeartbeatRequest(
            group_id=what.group_id,
            member_id=self.member_id,
            instance_id=what.instance_id,
            member_epoch=LEAVE if what.instance_id is None else LEAVE_TO_RETURN,
        )

    def answered(self, sent: ConsumerGroupHeartbeatRequest, answer: ConsumerGroupHeartbeatResponse) -> Then:
        """Take an answer in. ``sent``: the heartbeat that it answers. What is owned may have changed since."""
        if not self.is_member and sent.member_epoch != JOIN:
            return Then.WAIT  # all was lost meanwhile, and the next heartbeat joins
        code = answer.error_code
        if code != ErrorCode.NONE:
            return Then.LEAVE if code == ErrorCode.FENCED_MEMBER_EPOCH and not self.is_member else self._refused(code)
        self._says_all = False
        self.epoch = answer.member_epoch
        self.interval = max(_SHORTEST, answer.heartbeat_interval_ms / 1000)
        if sent.topic_partitions is not None and sent.topic_partitions == _by_topic(self.owned):
            self.is_acknowledged = True
        if answer.assignment is not None:
            target = frozenset(
                Place(one.topic_id, number) for one in answer.assignment.topic_partitions for number in one.partitions
            )
            if self.arriving - target:
                # It was not taken yet, and the coordinator waits until the member says that it does not have it.
                self.is_acknowledged = False
            self.target = target
        return Then.WAIT

    def _refused(self, code: int) -> Then:
        if code == ErrorCode.UNRELEASED_INSTANCE_ID:
            return Then.INSTANCE_IN_USE
        if code == ErrorCode.FENCED_INSTANCE_ID:
            return Then.INSTANCE_FENCED
        if code in _LOST or (code == ErrorCode.GROUP_ID_NOT_FOUND and self.is_member):
            # A group that has lost all its members may be deleted, or have another type. Joining tells.
            return Then.LOST
        self._says_all = True
        if code in COORDINATOR_MOVED:
            return Then.LOOK_UP
        if code in RETRIABLE or code == ErrorCode.UNKNOWN_SERVER_ERROR:
            return Then.RETRY
        return Then.FAIL

    def unanswered(self) -> None:
        """A heartbeat has no answer, which may have had an assignment."""
        self._says_all = True

    # -- partitions

    def take(self, places: Collection[Place]) -> None:
        """These are owned now."""
        self.owned |= frozenset(places)
        self.is_acknowledged = False

    def drop(self, places: Collection[Place]) -> None:
        """These are given away. The next heartbeat says so."""
        self.owned -= frozenset(places)
        self.is_acknowledged = False

    def lose(self) -> None:
        """All partitions are gone. The next heartbeat joins the group."""
        self.epoch = JOIN
        self.owned = self.target = frozenset()
        self.is_acknowledged = self._says_all = True


def _by_topic(places: Iterable[Place]) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic_id, tuple(numbers)) for topic_id, numbers in grouped(sorted(places)).items())
