"""Membership in a share group (KIP-932): joins, sends heartbeats, follows the assignment, leaves.

The coordinator gives a member partitions by the ids of their topics. Other members may have the same ones, and nothing
has to be given up first. Leaders of partitions do not ask the coordinator, so acquired records are not affected when a
member has to join again.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.group_node import GroupNode, LookUpRefused
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.messages.share_groups import (
    JOIN,
    LEAVE,
    SHARE_GROUP_HEARTBEAT,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aioparallel.records.error_codes import COORDINATOR_MOVED, RETRIABLE, ErrorCode
from aioparallel.records.errors import ClientError, NotAuthorized

__all__ = ["MemberState", "ShareCoordinator", "ShareMembership", "Then", "refusal"]

logger = logging.getLogger(__name__)

_JOIN_AGAIN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_LONGEST_BACKOFF: Final = 1.0
_SOON: Final = 0.5
"""Seconds until the ids of topics are requested again, or a heartbeat is sent again to a member without partitions."""
_NAMES: Final = 3.0
"""Timeout of a request for the ids of topics."""


class Then(enum.Enum):
    """What follows from an answer."""

    WAIT = enum.auto()
    """Until the next heartbeat is due."""
    AT_ONCE = enum.auto()
    """Another heartbeat: the member joins again."""
    RETRY = enum.auto()
    """The same after a while."""
    LOOK_UP = enum.auto()
    """The same after a while, at the current coordinator."""
    FAIL = enum.auto()


class MemberState:
    """A member, and what its heartbeats say. Synchronous."""

    def __init__(self, group_id: str, member_id: str, topics: Collection[str], rack: str | None = None) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self._topics = tuple(sorted(topics))
        self._rack = rack
        self._epoch = JOIN
        self._fenced = 0
        self.interval = _SOON
        """Seconds between two heartbeats."""
        self.assignment: Mapping[bytes, tuple[int, ...]] = {}
        """Partitions by the ids of their topics."""

    @property
    def is_member(self) -> bool:
        return self._epoch > JOIN

    def heartbeat(self) -> ShareGroupHeartbeatRequest:
        joins = self._epoch == JOIN
        return ShareGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self._epoch,
            rack_id=self._rack if joins else None,
            subscribed_topic_names=self._topics if joins else None,
        )

    def leave(self) -> ShareGroupHeartbeatRequest:
        return ShareGroupHeartbeatRequest(group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVE)

    def answered(self, answer: ShareGroupHeartbeatResponse) -> Then:
        code = answer.error_code
        if code == ErrorCode.NONE:
            self._fenced = 0
            self._epoch = answer.member_epoch
            self.interval = max(0.05, answer.heartbeat_interval_ms / 1000)
            if answer.assignment is not None:
                self.assignment = {one.topic_id: one.partitions for one in answer.assignment.topic_partitions}
            return Then.WAIT
        if code in COORDINATOR_MOVED:
            return Then.LOOK_UP
        if code in _JOIN_AGAIN or (code == ErrorCode.GROUP_ID_NOT_FOUND and self.is_member):
            # A group is not found if it has lost all of its members, or if it is of another type. Joining tells.
            self._epoch = JOIN
            self._fenced += 1
            return Then.AT_ONCE if self._fenced == 1 else Then.RETRY
        if code in RETRIABLE or code == ErrorCode.UNKNOWN_SERVER_ERROR:
            return Then.RETRY
        return Then.FAIL

    def unanswered(self) -> None:
        """A heartbeat was sent and not answered. Its answer may have had an assignment, which only a member that joins
        gets again."""
        self._epoch = JOIN


class Identities(Protocol):
    """Of topics."""

    async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]: ...


class ShareCoordinator:
    """Finds the coordinator of a group and asks it. ``brokers()``: in the order to ask them."""

    def __init__(self, connections: Connections, group_id: str, brokers: Callable[[], Collection[int]]) -> None:
        self._group_id = group_id
        self._node = GroupNode(connections, group_id, brokers)

    def forget(self) -> None:
        self._node.coordinator_dead()

    async def node(self) -> int:
        """Raises NotAuthorized, and KafkaError or OSError if no broker knows it now."""
        try:
            return await self._node.node()
        except LookUpRefused as error:
            raise refusal(error.code, None, self._group_id, ()) from error

    async def heartbeat(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        try:
            answer: ShareGroupHeartbeatResponse = await self._node.ask(SHARE_GROUP_HEARTBEAT, request)
        except LookUpRefused as error:
            raise refusal(error.code, None, self._group_id, ()) from error
        return answer


class ShareMembership:
    """See the module.

    ``on_assigned(partitions, existing)`` is called after each change, with the topic ids of assigned partitions by
    topic name and number, and with the ids of all topics that may exist. ``on_failure(error)`` is called once if the
    member cannot continue."""

    def __init__(
        self,
        state: MemberState,
        coordinator: ShareCoordinator,
        identities: Identities,
        topics: Collection[str],
        *,
        retry_backoff: float,
        on_assigned: Callable[[Mapping[tuple[str, int], bytes], Collection[bytes]], object],
        on_failure: Callable[[Exception], object],
    ) -> None:
        self._state = state
        self._coordinator = coordinator
        self._identities = identities
        self._topics = tuple(topics)
        self._retry_backoff = self._backoff = retry_backoff
        self._on_assigned = on_assigned
        self._on_failure = on_failure
        self._names: dict[bytes, str] = {}
        self._told: Mapping[bytes, tuple[int, ...]] | None = None
        self._look_again = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def refresh_topics(self) -> None:
        """The ids of topics may have changed. The assignment is applied again when they are known."""
        self._names.clear()
        self._told = None
        self._look_again.set()

    async def run(self) -> None:
        """Until it is cancelled or has failed."""
        due = 0.0
        while True:
            if self._loop.time() >= due:
                wait = await self._beat()
                if wait is None:
                    return
                due = self._loop.time() + wait
            if self._state.assignment is not self._told:
                await self._apply()
            is_settled = self._state.assignment is self._told
            self._look_again.clear()
            left = due - self._loop.time()
            try:
                async with asyncio.timeout(max(0.0, left if is_settled else min(_SOON, left))):
                    await self._look_again.wait()
            except TimeoutError:
                continue

    async def _beat(self) -> float | None:
        """Send one heartbeat. Returns the seconds until the next one; None after a failure."""
        try:
            answer = await self._coordinator.heartbeat(self._state.heartbeat())
        except (kafka.KafkaError, OSError) as error:
            if isinstance(error, kafka.IncompatibleBrokerVersion):
                self._on_failure(refusal(ErrorCode.UNSUPPORTED_VERSION, str(error), self._state.group_id, self._topics))
                return None
            if not isinstance(error, kafka.NodeNotReadyError | kafka.GroupCoordinatorNotAvailableError):
                self._state.unanswered()
            self._coordinator.forget()
            self._log(str(error) or type(error).__name__)
            return self._next_backoff()
        except ClientError as error:
            self._on_failure(error)
            return None
        then = self._state.answered(answer)
        if then is Then.WAIT:
            self._backoff = self._retry_backoff
            return self._state.interval if self._state.assignment else min(self._state.interval, _SOON)
        if then is Then.FAIL:
            self._on_failure(refusal(answer.error_code, answer.error_message, self._state.group_id, self._topics))
            return None
        self._log(f"{answer.error_message} (error code {answer.error_code})")
        if then is Then.LOOK_UP:
            self._coordinator.forget()
        return 0.0 if then is Then.AT_ONCE else self._next_backoff()

    def _next_backoff(self) -> float:
        backoff, self._backoff = self._backoff, min(_LONGEST_BACKOFF, self._backoff * 2)
        return backoff

    def _log(self, why: str) -> None:
        logger.info(
            "A heartbeat in share group %s failed: %s; trying again",
            self._state.group_id,
            why,
            extra={"action": "share_heartbeat_failed", "group_id": self._state.group_id},
        )

    async def _apply(self) -> None:
        """Find the names of the assigned topics. While one is unknown, the member has the partitions of the others:
        a broker may learn of a new topic later than the coordinator."""
        assignment = self._state.assignment
        # Also without an assignment: what is acquired of topics that exist must not be forgotten.
        if not self._names or not assignment.keys() <= self._names.keys():
            try:
                found = await self._identities.topic_ids(self._topics, _NAMES)
            except TimeoutError as error:
                logger.debug("No topic ids: %r", error, extra={"action": "no_topic_ids"})
                return
            self._names = {topic_id: name for name, topic_id in found.items()}
        if assignment.keys() <= self._names.keys() and assignment is self._state.assignment:
            self._told = assignment
        partitions = {
            (self._names[topic_id], number): topic_id
            for topic_id, numbers in assignment.items()
            if topic_id in self._names
            for number in numbers
        }
        self._on_assigned(partitions, self._names.keys() | assignment.keys())

    async def leave(self) -> None:
        """Leave the group, so that others get its partitions at once."""
        if self._state.is_member:
            await self._coordinator.heartbeat(self._state.leave())


def refusal(code: int, message: str | None, group_id: str, topics: Collection[str]) -> ClientError:
    """Why a coordinator will not have this member."""
    doing = f"taking part in share group {group_id!r}"
    if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        return NotAuthorized(f"group {group_id!r}: this user needs the permission READ on it ({doing})")
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return NotAuthorized(f"topics {', '.join(topics)}: this user needs the permission DESCRIBE on them ({doing})")
    advice = {
        ErrorCode.GROUP_ID_NOT_FOUND: "a group of another type has this id (kafka-groups.sh --list shows it); use "
        "another group_id",
        ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as its brokers allow (group.share.max.size): "
        "start fewer members, or raise that",
        ErrorCode.UNSUPPORTED_VERSION: "the brokers have no share groups: they need Kafka 4.2 or later, with the "
        "feature share.version=1 (kafka-features.sh upgrade --feature share.version=1). The embedded broker has none "
        "either; `aioparallel broker --kafka` starts one that has. For older brokers there is KmqConsumer",
        ErrorCode.INVALID_GROUP_ID: "the broker refuses the group_id",
    }.get(ErrorCode(code) if code in {*ErrorCode} else ErrorCode.NONE, "the broker refuses it")
    return ClientError(f"{doing}: {advice} ({message or 'no message'}, error code {code})")
