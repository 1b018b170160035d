"""What the leaders of partitions do for share groups: sessions, ShareFetch and ShareAcknowledge (KIP-932).

The requests and responses are Kafka's messages, without the bytes of records: a client reads those from the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioparallel.clients.messages.share_records import (
    CLOSE_SESSION,
    OPEN_SESSION,
    AcknowledgedPartition,
    AcknowledgedTopic,
    AcknowledgeTopic,
    AcquiredRange,
    AcquireMode,
    FetchedPartition,
    FetchedTopic,
    Leader,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.share_denials import Denial, mistyped
from aioparallel.testing.memory.share_options import ShareGroupOptions
from aioparallel.testing.memory.share_partition import Acquisition, SharePartition

if TYPE_CHECKING:
    from aioparallel.testing.memory.broker import InMemoryBroker
    from aioparallel.testing.memory.connection import Connection

__all__ = ["ShareLeaders"]

_Place = tuple[bytes, int]
"""A partition by the id of its topic."""


@dataclass(slots=True)
class _Session:
    """What one member fetches from one node."""

    group_id: str
    member_id: str
    connection: Connection | None
    epoch: int = 1
    """Of the next request."""
    places: dict[_Place, None] = field(default_factory=dict)


class ShareLeaders:
    """The share partitions and share sessions of all nodes of a broker."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self.max_sessions = 2000
        """Share sessions of each node (``group.share.max.share.sessions``)."""
        self.stores_first = False
        """Whether the acknowledgements of a fetch are stored before it acquires records, so that it may acquire again
        what it releases. Real brokers do either, depending on which is faster."""
        self._broker = broker
        self._options: dict[str, ShareGroupOptions] = {}
        self._partitions: dict[tuple[str, _Place], SharePartition] = {}
        self._sessions: dict[tuple[int, str, str], _Session] = {}

    # -- for tests

    def configure(self, group_id: str, options: ShareGroupOptions) -> None:
        """Set the options of a group. Locks that exist stay as they are."""
        self._options[group_id] = options
        for (group, _), partition in self._partitions.items():
            if group == group_id:
                partition.options = options

    def options(self, group_id: str) -> ShareGroupOptions:
        """The options of a group."""
        return self._options.get(group_id) or ShareGroupOptions()

    def partition(self, group_id: str, partition: TopicPartition) -> SharePartition | None:
        """The group's state of a partition; None before the first fetch."""
        place = self._broker.topic_id(partition.topic), partition.partition
        return self._partitions.get((group_id, place))

    def sessions(self, group_id: str) -> list[tuple[int, str]]:
        """The group's share sessions: node and member id."""
        return sorted((node, member) for node, group, member in self._sessions if group == group_id)

    def evict(self, node: int, group_id: str, member_id: str) -> None:
        """Forget a session, as a node does that has too many. Locks stay until they end."""
        self._sessions.pop((node, group_id, member_id), None)

    def delete_group(self, group_id: str) -> None:
        """Forget the group's state of all partitions."""
        for key in [key for key in self._partitions if key[0] == group_id]:
            del self._partitions[key]

    # -- requests

    def fetch(
        self, node: int, request: ShareFetchRequest, now: float, connection: Connection | None = None
    ) -> ShareFetchResponse:
        """ShareFetch. Never waits: a client asks again when there may be something."""
        group_id, member_id = str(request.group_id), str(request.member_id)
        code = self._fetch_refused(group_id, request)
        key = (node, group_id, member_id)
        if code is None and request.share_session_epoch == OPEN_SESSION:
            code = self._open(key, request, connection)
        elif code is None:
            code = self._check_epoch(key, request.share_session_epoch)
        if code is not None:
            return ShareFetchResponse(error_code=code)
        session, is_closing = self._sessions[key], request.share_session_epoch == CLOSE_SESSION
        if not is_closing:
            session.places |= {
                (topic.topic_id, one.partition_index): None for topic in request.topics for one in topic.partitions
            }
            for topic in request.forgotten_topics_data:
                for number in topic.partitions:
                    session.places.pop((topic.topic_id, number), None)
        denials = self._acknowledge(node, group_id, member_id, request.topics, now, renewing=request.is_renew_ack)
        acquired: dict[_Place, list[AcquiredRange]] = {}
        errors: dict[_Place, ErrorCode] = {}
        is_fetching = not (is_closing or request.is_renew_ack)
        # If there is nothing to read, a fetch waits for what it has released itself.
        if self.stores_first or not self._has_records(session):
            self._complete(group_id, denials)
        if is_fetching:
            acquired, errors = self._acquire(node, session, request, now)
        self._complete(group_id, denials)
        if is_closing:
            self._close(key)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=round(self.options(group_id).lock_duration * 1000),
            responses=tuple(
                FetchedTopic(place[0], (self._fetched(place, acquired, errors, denials),))
                for place in {**denials, **errors, **acquired}
            ),
        )

    def acknowledge(self, node: int, request: ShareAcknowledgeRequest, now: float) -> ShareAcknowledgeResponse:
        """ShareAcknowledge."""
        group_id, member_id = str(request.group_id), str(request.member_id)
        key = (node, group_id, member_id)
        code = self._group_refused(group_id)
        if code is None and request.share_session_epoch == OPEN_SESSION:
            code = ErrorCode.INVALID_SHARE_SESSION_EPOCH
        if code is None:
            code = self._check_epoch(key, request.share_session_epoch)
        if code is not None:
            return ShareAcknowledgeResponse(error_code=code)
        denials = self._acknowledge(node, group_id, member_id, request.topics, now, renewing=request.is_renew_ack)
        self._complete(group_id, denials)
        if request.share_session_epoch == CLOSE_SESSION:
            self._close(key)
        return ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=round(self.options(group_id).lock_duration * 1000),
            responses=tuple(
                AcknowledgedTopic(
                    place[0],
                    (
                        AcknowledgedPartition(
                            partition_index=place[1],
                            error_code=0 if denial is None else denial.code,
                            error_message=None if denial is None else denial.message,
                            current_leader=self._leader_hint(place, denial and denial.code),
                        ),
                    ),
                )
                for place, denial in denials.items()
            ),
        )

    def _fetched(
        self,
        place: _Place,
        acquired: Mapping[_Place, Sequence[AcquiredRange]],
        errors: Mapping[_Place, ErrorCode],
        denials: Mapping[_Place, Denial | None],
    ) -> FetchedPartition:
        code, denial = errors.get(place), denials.get(place)
        return FetchedPartition(
            partition_index=place[1],
            error_code=code or 0,
            acknowledge_error_code=0 if denial is None else denial.code,
            acknowledge_error_message=None if denial is None else denial.message,
            current_leader=self._leader_hint(place, code or (denial and denial.code)),
            acquired_records=tuple(acquired.get(place, ())),
        )

    def _leader_hint(self, place: _Place, code: ErrorCode | None) -> Leader:
        partition = self._named(place)
        if code is not ErrorCode.NOT_LEADER_OR_FOLLOWER or partition is None:
            return Leader()
        log = self._broker.log(partition)
        return Leader(self._broker.leader(partition) or -1, log.leader_epoch if log is not None else -1)

    # -- sessions

    def _group_refused(self, group_id: str) -> ErrorCode | None:
        if self._broker.share_version < 1:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.GROUP_AUTHORIZATION_FAILED if self._broker.is_group_denied(group_id) else None

    def _fetch_refused(self, group_id: str, request: ShareFetchRequest) -> ErrorCode | None:
        limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
        if request.is_renew_ack and any(limits):
            return ErrorCode.INVALID_REQUEST
        return self._group_refused(group_id)

    def _check_epoch(self, key: tuple[int, str, str], epoch: int) -> ErrorCode | None:
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == CLOSE_SESSION:
            return None
        if session.epoch != epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.epoch += 1
        return None

    def _open(
        self, key: tuple[int, str, str], request: ShareFetchRequest, connection: Connection | None
    ) -> ErrorCode | None:
        if any(one.acknowledgement_batches for topic in request.topics for one in topic.partitions):
            return ErrorCode.INVALID_REQUEST
        self._sessions.pop(key, None)  # releases nothing
        node, group_id, member_id = key
        if sum(1 for other, *_ in self._sessions if other == node) >= self.max_sessions:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        self._sessions[key] = _Session(group_id, member_id, connection)
        return None

    def _close(self, key: tuple[int, str, str]) -> None:
        session = self._sessions.pop(key)
        for place in session.places:
            partition, named = self._partitions.get((session.group_id, place)), self._named(place)
            if partition is None or named is None or self._broker.leader(named) != key[0]:
                continue  # what the node does not lead any more was acquired from another one
            if partition.release(session.member_id):
                self._notify(place)

    def connection_lost(self, connection: Connection | None) -> None:
        """A connection was closed: its sessions are, too."""
        for key in [key for key, session in self._sessions.items() if session.connection is connection]:
            self._close(key)

    def close_connections(self) -> None:
        """Close the connections of all sessions."""
        for session in list(self._sessions.values()):
            if session.connection is not None:
                session.connection.close()

    # -- records

    def _acknowledge(
        self,
        node: int,
        group_id: str,
        member_id: str,
        topics: Iterable[AcknowledgeTopic],
        now: float,
        *,
        renewing: bool,
    ) -> dict[_Place, Denial | None]:
        results: dict[_Place, Denial | None] = {}
        for topic in topics:
            for one in topic.partitions:
                if one.acknowledgement_batches:
                    place = topic.topic_id, one.partition_index
                    batches = one.acknowledgement_batches
                    code = self._misplaced(node, place)
                    partition = self._partitions.get((group_id, place))
                    if code is None and partition is None:
                        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if code is not None or partition is None:
                        results[place] = Denial(code or ErrorCode.NONE, "")
                        continue
                    denial = mistyped(batches, partition.options, renewing=renewing)
                    results[place] = denial or partition.begin_acknowledge(member_id, batches, now)
        return results

    def _complete(self, group_id: str, places: Iterable[_Place]) -> None:
        for place in places:
            partition = self._partitions.get((group_id, place))
            if partition is not None and partition.complete():
                self._notify(place)

    def _acquire(
        self, node: int, session: _Session, request: ShareFetchRequest, now: float
    ) -> tuple[dict[_Place, list[AcquiredRange]], dict[_Place, ErrorCode]]:
        acquired: dict[_Place, list[AcquiredRange]] = {}
        errors: dict[_Place, ErrorCode] = {}
        left = request.max_records
        places = list(session.places)
        turn = request.share_session_epoch % max(1, len(places))
        for place in places[turn:] + places[:turn]:
            code = self._misplaced(node, place)
            if code is not None:
                errors[place] = code
                continue
            wanted = Acquisition(
                session.member_id,
                left,
                request.share_acquire_mode == AcquireMode.RECORD_LIMIT,
                request.batch_size,
            )
            taken = self._share_partition(session.group_id, place).acquire(wanted, now)
            if taken:
                acquired[place] = taken
                left -= sum(some.last_offset - some.first_offset + 1 for some in taken)
        return acquired, errors

    def _has_records(self, session: _Session) -> bool:
        """Whether there is something to read in a partition of the session."""
        found = [self._partitions.get((session.group_id, place)) for place in session.places]
        return any(one is not None and one.has_records() for one in found)

    def _share_partition(self, group_id: str, place: _Place) -> SharePartition:
        """The group's state of an existing partition."""
        found = self._partitions.get((group_id, place))
        if found is None:
            named = self._named(place)
            log = None if named is None else self._broker.log(named)
            assert log is not None
            options = self.options(group_id)
            start = log.start_offset if options.auto_offset_reset == "earliest" else log.end_offset
            found = self._partitions[group_id, place] = SharePartition(log, options, start)
        return found

    def _named(self, place: _Place) -> TopicPartition | None:
        name = self._broker.topic_with_id(place[0])
        return None if name is None else TopicPartition(name, place[1])

    def _misplaced(self, node: int, place: _Place) -> ErrorCode | None:
        """Why this node does not serve the partition."""
        partition = self._named(place)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self._broker.is_denied(partition.topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if self._broker.log(partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return None if self._broker.leader(partition) == node else ErrorCode.NOT_LEADER_OR_FOLLOWER

    # -- time and changes of the cluster

    def advance(self, now: float) -> None:
        """Let locks end."""
        for (_, place), partition in self._partitions.items():
            if partition.advance(now):
                self._notify(place)

    def next_deadline(self, group_id: str, partitions: Collection[TopicPartition]) -> float | None:
        """When the next lock of the group may end in one of these partitions."""
        found = [self.partition(group_id, one) for one in partitions]
        times = [time for one in found if one is not None and (time := one.next_deadline()) is not None]
        return min(times, default=None)

    def has_records(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether a member of the group could acquire something there."""
        found = self.partition(group_id, partition)
        return found is None or found.has_records()

    def leader_changed(self, partition: TopicPartition) -> None:
        """Another node leads the partition, or the same one after a restart."""
        place = self._broker.topic_id(partition.topic), partition.partition
        for (_, one), found in self._partitions.items():
            if one == place:
                found.reload()

    def topic_deleted(self, topic_id: bytes) -> None:
        """All state of the topic is gone."""
        for key in [key for key in self._partitions if key[1][0] == topic_id]:
            del self._partitions[key]

    def _notify(self, place: _Place) -> None:
        partition = self._named(place)
        if partition is not None:
            self._broker.notify_log(partition)
