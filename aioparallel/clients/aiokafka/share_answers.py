"""Applies the answers of one leader to a member's partitions: records, and results of acknowledgements. Synchronous."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from aioparallel.clients.aiokafka.acquired_records import decode_acquired
from aioparallel.clients.aiokafka.share_acks import Group
from aioparallel.clients.aiokafka.share_partitions import SharePartition
from aioparallel.clients.aiokafka.share_requests import Place
from aioparallel.clients.aiokafka.share_state import ShareState
from aioparallel.clients.messages.share_records import (
    AcquiredRange,
    FetchedPartition,
    Leader,
    ShareAcknowledgeResponse,
    ShareFetchResponse,
)
from aioparallel.group.share_client import Acquired, Unreadable
from aioparallel.records.error_codes import RETRIABLE, ErrorCode
from aioparallel.records.errors import NotAuthorized

__all__ = ["Fetched", "Sent", "ShareAnswers", "not_authorized"]

logger = logging.getLogger(__name__)

_NOT_ENABLED: Final = "not enabled"
"""In the message of a broker whose group forbids RENEW. It has the code of a record that is not held."""
_REFUSED: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
_OTHER_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_NO_TOPIC: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)
_NOT_PROCESSED: Final = RETRIABLE | {
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
}
"""Codes of acknowledgements that the broker has not processed, or has rolled back."""


class Sent(NamedTuple):
    """A group of acknowledgements under way, and its partition."""

    partition: SharePartition
    group: Group


class Fetched(NamedTuple):
    """What a fetch has brought."""

    has_records: bool
    is_well: bool
    """No partition had an error."""


class ShareAnswers:
    """See the module. ``node``: the leader.

    ``refresh_leaders()``, ``refresh_topics()``: leaders, or the ids of topics, have changed.
    ``reroute()``: the broker has named another leader.
    """

    def __init__(
        self,
        node: int,
        state: ShareState,
        *,
        refresh_leaders: Callable[[], object],
        refresh_topics: Callable[[], object],
        reroute: Callable[[], object],
    ) -> None:
        self._node = node
        self._state = state
        self._refresh_leaders = refresh_leaders
        self._refresh_topics = refresh_topics
        self._reroute = reroute

    def fetched(
        self,
        answer: ShareFetchResponse,
        places: Mapping[Place, SharePartition],
        groups: Mapping[Place, Sent],
        *,
        sent_at: float,
        now: float,
    ) -> Fetched:
        """Records, and the results of acknowledgements that were sent with the request at ``sent_at``."""
        seconds = answer.acquisition_lock_timeout_ms / 1000
        if seconds > 0:
            self._state.lock_seconds = seconds
        is_well = True
        found = {(topic.topic_id, one.partition_index): one for topic in answer.responses for one in topic.partitions}
        for place, sent in groups.items():
            if (one := found.get(place)) is None:
                sent.partition.acks.unknown(sent.group)
            else:
                code, message = one.acknowledge_error_code, one.acknowledge_error_message
                is_well &= self._apply(sent, code, message, one.current_leader, sent_at + seconds, now + seconds, now)
        acquired: list[Acquired] = []
        for requested in places.values():
            requested.is_failing = False
        for place, one in found.items():
            if (partition := places.get(place)) is None:
                continue
            if one.error_code != ErrorCode.NONE:
                is_well = False
                partition.is_failing = True
                self._trouble(partition, one.error_code, one.error_message, one.current_leader, now)
            if one.acquired_records:
                acquired.append(self._acquired(partition, one, sent_at + seconds, now + seconds))
        acquired = [one for one in acquired if one.records or one.unreadable]
        self._state.add(acquired)
        return Fetched(bool(acquired), is_well)

    def acknowledged(
        self, answer: ShareAcknowledgeResponse, groups: Mapping[Place, Sent], *, sent_at: float, now: float
    ) -> bool:
        """The results of acknowledgements. Returns whether no partition had an error."""
        seconds = answer.acquisition_lock_timeout_ms / 1000 or self._state.lock_seconds or 0.0
        is_well = True
        found = {(topic.topic_id, one.partition_index): one for topic in answer.responses for one in topic.partitions}
        for place, sent in groups.items():
            if (one := found.get(place)) is None:
                sent.partition.acks.unknown(sent.group)
            else:
                code, message = one.error_code, one.error_message
                is_well &= self._apply(sent, code, message, one.current_leader, sent_at + seconds, now + seconds, now)
        return is_well

    def _acquired(self, partition: SharePartition, found: FetchedPartition, until: float, over: float) -> Acquired:
        decoded = decode_acquired(partition.partition, found.records, found.acquired_records)
        acks = partition.acks
        acks.acquired([record.offset for record, _ in decoded.records], until, over)
        for first, last in decoded.gaps:
            acks.gap(first, last, until, over)
        for first, last, _ in decoded.unreadable:
            acks.acquired(range(first, last + 1), until, over)
        if partition.leader != self._node:
            acks.released()
        return Acquired(
            partition.partition,
            [record for record, _ in decoded.records],
            [count for _, count in decoded.records],
            until,
            [
                Unreadable(first, last, reason, _count_of(first, found.acquired_records))
                for first, last, reason in decoded.unreadable
            ],
        )

    def _apply(
        self, sent: Sent, code: int, message: str | None, leader: Leader, until: float, over: float, now: float
    ) -> bool:
        """Apply the result for one partition. ``until``, ``over``: when renewed locks end. Returns whether the next
        request may follow at once."""
        acks = sent.partition.acks
        if code == ErrorCode.NONE:
            acks.done(sent.group, now, until, over)
        elif code in _REFUSED:
            if sent.group.renews and _NOT_ENABLED in (message or ""):
                self._state.may_renew = False
                acks.renewing_refused(sent.group)
            else:
                acks.refused(sent.group, now)
        elif code in _NO_TOPIC:
            acks.not_held(sent.group)  # also the answer of a new leader that has not fetched for the group yet
        else:
            if code in _NOT_PROCESSED:
                acks.again(sent.group, now)
            else:
                acks.unknown(sent.group)
            self._trouble(sent.partition, code, message, leader, now)
            return False
        return True

    def _trouble(self, partition: SharePartition, code: int, message: str | None, leader: Leader, now: float) -> None:
        """An error of one partition."""
        logger.info(
            "%s: broker %d answers error code %d (%s)",
            partition.partition,
            self._node,
            code,
            message,
            extra={"action": "share_partition_error", "node": self._node, "code": code},
        )
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            name = partition.partition.topic
            self._state.fail(NotAuthorized(f"topic {name!r}: this user needs the permission READ on it"))
        elif code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._state.fail(not_authorized(self._state.group_id))
        elif code in _NO_TOPIC:
            self._refresh_topics()
            self._refresh_leaders()
        else:
            if code in _OTHER_LEADER:
                partition.named_leader(leader.leader_id, now)
                self._reroute()
            self._refresh_leaders()


def not_authorized(group_id: str) -> NotAuthorized:
    """The user may not read as a member of the group."""
    return NotAuthorized(f"group {group_id!r}: this user needs the permission READ on it")


def _count_of(offset: int, ranges: Collection[AcquiredRange]) -> int:
    return next((one.delivery_count for one in ranges if one.first_offset <= offset <= one.last_offset), 1)
