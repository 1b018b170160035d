"""Commits with a generation, and committed offsets with their metadata.

aiokafka's ``commit`` uses the generation that is current when it sends the request. It retries for ever, and hides the
results of single partitions. An old commit overwrote a new owner's in a test: it was retried across a rebalance and
sent with the new generation. aiokafka's ``fetch_committed_offsets`` ignores the answer's top-level error code. Since
Kafka 0.10.2, a coordinator that is loading answers with that code and no partitions, so nothing seems to be committed.
Here each request is sent once, unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from aioparallel.clients.aiokafka.aiokafka_errors import deadline
from aioparallel.clients.aiokafka.group_messages import CommitRequest, OffsetFetch
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.offset_commits import is_large
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition

__all__ = ["GroupOffsets"]

logger = logging.getLogger(__name__)


_FAULTS: Final[Mapping[int, CommitFault]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: CommitFault.REFUSED,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: CommitFault.METADATA_TOO_LARGE,
    ErrorCode.ILLEGAL_GENERATION: CommitFault.FENCED,
    ErrorCode.INVALID_GROUP_ID: CommitFault.REFUSED,
    ErrorCode.UNKNOWN_MEMBER_ID: CommitFault.FENCED,
    # The whole request is one batch of the offsets topic, and exceeds that topic's limit.
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: CommitFault.METADATA_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: CommitFault.REFUSED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: CommitFault.REFUSED,
    ErrorCode.UNSUPPORTED_VERSION: CommitFault.REFUSED,
    ErrorCode.INVALID_REQUEST: CommitFault.REFUSED,
    # The topic was recreated, and the offset belongs to the old one.
    ErrorCode.UNKNOWN_TOPIC_ID: CommitFault.REFUSED,
    ErrorCode.FENCED_INSTANCE_ID: CommitFault.FENCED,
    ErrorCode.FENCED_MEMBER_EPOCH: CommitFault.FENCED,
}
"""What an error code means for a commit. All other codes are retriable. So is STALE_MEMBER_EPOCH: the partition may
still be this member's, in a newer epoch."""

_COORDINATOR_GONE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})

_SOON: Final = 2.0
"""Timeout of the request for topic ids, in seconds."""
_BROKERS_RETENTION: Final = OffsetCommitRequest.DEFAULT_RETENTION_TIME


class CoordinatorNode(Protocol):
    """Where the coordinator of the group is. aiokafka's own one fits."""

    coordinator_id: int | None

    def coordinator_dead(self) -> None: ...
    async def ensure_coordinator_known(self) -> None: ...


class GroupOffsets:
    """The offsets of one group at its coordinator. ``on_stale(generation)`` is called if a commit had an older epoch
    than the member's at the coordinator."""

    def __init__(
        self,
        group_id: str,
        coordinator: CoordinatorNode,
        connections: Connections,
        topic_ids: Callable[[Collection[str], float], Awaitable[Mapping[str, bytes]]],
        *,
        retry_backoff: float,
        instance_id: str | None,
        on_fenced: Callable[..., None],
        on_stale: Callable[[Generation], None],
        offset_retention: float | None = None,
    ) -> None:
        self._retention_ms = _BROKERS_RETENTION if offset_retention is None else round(offset_retention * 1000)
        self._group_id = group_id
        self._coordinator = coordinator
        self._connections = connections
        self._topic_ids = topic_ids
        self._retry_backoff = retry_backoff
        self._instance_id = instance_id
        self._on_fenced = on_fenced
        self._on_stale = on_stale

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> dict[TopicPartition, CommitFault | None]:
        """Send one request, once. Raises only CancelledError, after which the request may still arrive."""
        if not offsets:
            return {}
        request = self._request(offsets, generation)
        try:
            async with asyncio.timeout(timeout):
                answer = await self._send(request)
        except kafka.GroupAuthorizationFailedError:
            return dict.fromkeys(offsets, CommitFault.REFUSED)
        except (kafka.KafkaError, TimeoutError) as error:
            _log_fault(self._group_id, f"no answer ({error!r})", len(offsets))
            return dict.fromkeys(offsets, CommitFault.RETRIABLE)
        return self._results(request.results(answer), offsets, generation)

    def _request(self, offsets: Mapping[TopicPartition, Committed], generation: Generation) -> CommitRequest:
        topics = grouped((topic, (number, one)) for (topic, number), one in offsets.items())
        plain = [
            (topic, [(number, one.offset, one.metadata) for number, one in some]) for topic, some in topics.items()
        ]
        member = self._group_id, generation.id, generation.member_id
        older = OffsetCommitRequest(*member, self._retention_ms, plain)
        return CommitRequest(
            *member,
            self._instance_id,
            topics,
            older,
            keeps_retention=self._retention_ms != _BROKERS_RETENTION,
        )

    def _results(
        self,
        codes_by_partition: Mapping[TopicPartition, int],
        offsets: Mapping[TopicPartition, Committed],
        generation: Generation,
    ) -> dict[TopicPartition, CommitFault | None]:
        # A partition missing from the answer was not acknowledged.
        results: dict[TopicPartition, CommitFault | None] = dict.fromkeys(offsets, CommitFault.RETRIABLE)
        codes: set[int] = set()
        for partition, code in codes_by_partition.items():
            codes.add(code)
            results[partition] = self._fault(code, offsets)
        if codes & _COORDINATOR_GONE:
            self._coordinator.coordinator_dead()
        if ErrorCode.STALE_MEMBER_EPOCH in codes:
            self._on_stale(generation)
        if CommitFault.FENCED in results.values():
            self._on_fenced(generation, instance_fenced=ErrorCode.FENCED_INSTANCE_ID in codes)
        if bad := codes - {ErrorCode.NONE}:
            _log_fault(self._group_id, f"error codes {sorted(bad)}", len(offsets))
        return results

    def _fault(self, code: int, offsets: Mapping[TopicPartition, Committed]) -> CommitFault | None:
        if code == ErrorCode.NONE:
            return None
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            return CommitFault.METADATA_TOO_LARGE if is_large(offsets.values()) else CommitFault.RETRIABLE
        return _FAULTS.get(code, CommitFault.RETRIABLE)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, Committed]:
        """The committed offsets of these partitions. Retries until the timeout."""
        if not partitions:
            return {}
        topics = grouped(partitions)
        wanted = list(topics.items())
        older = OffsetFetchRequest(self._group_id, wanted)
        async with deadline(timeout, f"asking for the committed offsets of group {self._group_id!r}"):
            while True:
                try:
                    request = OffsetFetch(self._group_id, wanted, await self._ids_of(list(topics)), older)
                    return self._read(*request.results(await self._send(request)), set(partitions))
                except kafka.KafkaError as error:
                    if not error.retriable:
                        raise
                await asyncio.sleep(self._retry_backoff)

    async def _ids_of(self, topics: Collection[str]) -> Mapping[str, bytes]:
        """The topic ids, if available at once. Otherwise the offsets are requested by topic name."""
        try:
            return await self._topic_ids(topics, _SOON)
        except TimeoutError:
            return {}

    def _read(
        self,
        error_code: int,
        answers: Collection[tuple[TopicPartition, int, int, str | None, int]],
        wanted: set[TopicPartition],
    ) -> dict[TopicPartition, Committed]:
        self._check(error_code, f"group {self._group_id!r}")
        found: dict[TopicPartition, Committed] = {}
        for partition, offset, leader_epoch, metadata, code in answers:
            if code == ErrorCode.UNKNOWN_TOPIC_ID:
                continue  # the id or the coordinator is outdated: retry with a new id
            if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._check(code, partition.topic)
            if offset >= 0 and code == ErrorCode.NONE:
                found[partition] = Committed(offset, metadata or "", leader_epoch)
            wanted.discard(partition)
        if wanted:
            # Unlike offset -1 this does not mean "nothing committed": the log must not be read from its start.
            raise kafka.GroupLoadInProgressError(f"no answer about {sorted(wanted)[:5]}")
        return found

    def _check(self, code: int, what: str) -> None:
        if code == ErrorCode.NONE:
            return
        if code in _COORDINATOR_GONE:
            self._coordinator.coordinator_dead()
        raise kafka.for_code(code)(what)

    async def _send(self, request: object) -> object:
        """Send once to the group's coordinator, which is looked up if unknown."""
        await self._coordinator.ensure_coordinator_known()
        node = self._coordinator.coordinator_id
        if node is None:
            raise kafka.GroupCoordinatorNotAvailableError("closing, or the coordinator has just been lost")
        try:
            return await self._connections.send(node, request, group=ConnectionGroup.COORDINATION)
        except kafka.KafkaError:
            # Unless another coordinator was found meanwhile.
            if self._coordinator.coordinator_id == node:
                self._coordinator.coordinator_dead()
            raise


def _log_fault(group_id: str, what: str, count: int) -> None:
    logger.debug(
        "A commit of %d partitions in group %s was not acknowledged: %s",
        count,
        group_id,
        what,
        extra={"action": "commit_failed", "group_id": group_id, "count": count},
    )
