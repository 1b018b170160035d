"""Commits with a generation, and committed offsets with their texts.

aiokafka's ``commit`` takes the generation that is current when the request is sent, tries for ever, and hides the
results of single partitions. An old commit was seen to overwrite a new owner's: it was retried across a rebalance and
then sent under the new generation. Its ``fetch_committed_offsets`` does not look at the answer's own error code (Kafka
since 0.10.2 answers a coordinator that is still loading with that code and no partitions), so that nothing seems to be
committed. Here both requests are sent as they are, one attempt each.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final, cast

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from aioparallel.clients.aiokafka.errors import deadline
from aioparallel.clients.aiokafka.internals import (
    Connections,
    Coordinator,
    OffsetCommitAnswer,
    OffsetFetchAnswer,
)
from aioparallel.codes import ErrorCode
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.offset_commits import is_large
from aioparallel.records import TopicPartition

__all__ = ["GroupOffsets"]

logger = logging.getLogger(__name__)


_FAULTS: Final[Mapping[int, CommitFault]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: CommitFault.REFUSED,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: CommitFault.METADATA_TOO_LARGE,
    ErrorCode.ILLEGAL_GENERATION: CommitFault.FENCED,
    ErrorCode.INVALID_GROUP_ID: CommitFault.REFUSED,
    ErrorCode.UNKNOWN_MEMBER_ID: CommitFault.FENCED,
    # The whole request is one batch of the offsets topic, and larger than that topic takes.
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: CommitFault.METADATA_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: CommitFault.REFUSED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: CommitFault.REFUSED,
    ErrorCode.UNSUPPORTED_VERSION: CommitFault.REFUSED,
    ErrorCode.INVALID_REQUEST: CommitFault.REFUSED,
    ErrorCode.FENCED_INSTANCE_ID: CommitFault.FENCED,
    ErrorCode.FENCED_MEMBER_EPOCH: CommitFault.FENCED,
    ErrorCode.STALE_MEMBER_EPOCH: CommitFault.FENCED,
}
"""What each code means for a commit; any other may work later."""

_COORDINATOR_GONE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})

_BROKERS_RETENTION: Final = OffsetCommitRequest.DEFAULT_RETENTION_TIME


class GroupOffsets:
    """The offsets of one group, at its coordinator."""

    def __init__(
        self,
        group_id: str,
        coordinator: Coordinator,
        connections: Connections,
        *,
        retry_backoff: float,
        on_fenced: Callable[[Generation], None],
        offset_retention: float | None = None,
    ) -> None:
        self._retention_ms = _BROKERS_RETENTION if offset_retention is None else round(offset_retention * 1000)
        self._group_id = group_id
        self._coordinator = coordinator
        self._connections = connections
        self._retry_backoff = retry_backoff
        self._on_fenced = on_fenced

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> dict[TopicPartition, CommitFault | None]:
        """One request, one attempt. Raises nothing but CancelledError; then the request may still arrive."""
        if not offsets:
            return {}
        topics: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for (topic, partition), (offset, metadata) in offsets.items():
            topics[topic].append((partition, offset, metadata))
        request = OffsetCommitRequest(
            self._group_id, generation.id, generation.member_id, self._retention_ms, list(topics.items())
        )
        try:
            async with asyncio.timeout(timeout):
                answer = cast("OffsetCommitAnswer", await self._send(request))
        except kafka.GroupAuthorizationFailedError:
            return dict.fromkeys(offsets, CommitFault.REFUSED)
        except (kafka.KafkaError, TimeoutError) as error:
            _log_fault(self._group_id, f"no answer ({error!r})", len(offsets))
            return dict.fromkeys(offsets, CommitFault.RETRIABLE)
        return self._results(answer, offsets, generation)

    def _results(
        self,
        answer: OffsetCommitAnswer,
        offsets: Mapping[TopicPartition, Committed],
        generation: Generation,
    ) -> dict[TopicPartition, CommitFault | None]:
        # A partition that the answer leaves out was not acknowledged.
        results: dict[TopicPartition, CommitFault | None] = dict.fromkeys(offsets, CommitFault.RETRIABLE)
        codes: set[int] = set()
        for topic, partitions in answer.topics:
            for partition, code in partitions:
                codes.add(code)
                results[TopicPartition(topic, partition)] = self._fault(code, offsets)
        if codes & _COORDINATOR_GONE:
            self._coordinator.coordinator_dead()
        if CommitFault.FENCED in results.values():
            self._on_fenced(generation)
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
        """The committed offsets of these partitions, tried again until the time is up."""
        if not partitions:
            return {}
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append(partition)
        request = OffsetFetchRequest(self._group_id, list(topics.items()))
        async with deadline(timeout, f"asking for the committed offsets of group {self._group_id!r}"):
            while True:
                try:
                    answer = cast("OffsetFetchAnswer", await self._send(request))
                    return self._read(answer, set(partitions))
                except kafka.KafkaError as error:
                    if not error.retriable:
                        raise
                await asyncio.sleep(self._retry_backoff)

    def _read(self, answer: OffsetFetchAnswer, wanted: set[TopicPartition]) -> dict[TopicPartition, Committed]:
        self._check(answer.error_code if answer.API_VERSION >= 2 else ErrorCode.NONE, f"group {self._group_id!r}")
        found: dict[TopicPartition, Committed] = {}
        for topic, partitions in answer.topics:
            for partition, offset, metadata, code in partitions:
                if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._check(code, topic)
                if offset >= 0 and code == ErrorCode.NONE:
                    found[TopicPartition(topic, partition)] = Committed(offset, metadata or "")
                wanted.discard(TopicPartition(topic, partition))
        if wanted:
            # Not the same as "nothing committed", which is offset -1: the log must not be read from its start.
            raise kafka.GroupLoadInProgressError(f"no answer about {sorted(wanted)[:5]}")
        return found

    def _check(self, code: int, what: str) -> None:
        if code == ErrorCode.NONE:
            return
        if code in _COORDINATOR_GONE:
            self._coordinator.coordinator_dead()
        raise kafka.for_code(code)(what)

    async def _send(self, request: object) -> object:
        """Send to the group's coordinator, found first if need be; one attempt."""
        await self._coordinator.ensure_coordinator_known()
        node = self._coordinator.coordinator_id
        if node is None:
            raise kafka.GroupCoordinatorNotAvailableError("closing, or the coordinator has just been lost")
        try:
            return await self._connections.send(node, request, group=ConnectionGroup.COORDINATION)
        except kafka.KafkaError:
            # Unless somebody has found another one meanwhile.
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
