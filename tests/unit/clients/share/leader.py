"""A leader of share partitions for tests of sessions: as strict as Kafka's about epochs and locks, and with faults."""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import aiokafka.errors as kafka

from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.share_records import (
    CLOSE_SESSION,
    OPEN_SESSION,
    AcknowledgedPartition,
    AcknowledgedTopic,
    AcknowledgeTopic,
    AcknowledgeType,
    AcquiredRange,
    FetchedPartition,
    FetchedTopic,
    Leader,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from aioparallel.records.error_codes import ErrorCode
from tests.unit.clients.test_acquired_records import full

__all__ = ["LOCK", "FakeLeader", "Fault"]

Place = tuple[bytes, int]
LOCK = 30.0
_TRIP = 0.001
_NO_LEADER = Leader(-1, -1)
_NO_ANSWER = 12.0


class Fault(enum.Enum):
    """What happens to one request."""

    NONE = enum.auto()
    NOT_SENT = enum.auto()
    REQUEST_LOST = enum.auto()
    ANSWER_LOST = enum.auto()
    HANGS = enum.auto()
    """Until the client gives up; the request is processed then."""
    SESSION_LOST = enum.auto()
    """The broker has ended the session before."""
    WRONG_EPOCH = enum.auto()
    SESSION_LIMIT = enum.auto()
    SERVER_ERROR = enum.auto()
    """After the epoch was advanced."""
    NOT_LEADER = enum.auto()
    NOT_STORED = enum.auto()
    """Acknowledgements cannot be stored now."""


@dataclass
class _Offset:
    locked_until: float = 0.0
    is_done: bool = False
    deliveries: int = 0


class FakeLeader:
    """The leader of some partitions with this many records each, and one member's session."""

    def __init__(self, places: list[Place], count: int) -> None:
        self.offsets = {place: [_Offset() for _ in range(count)] for place in places}
        self.data = full(0, count)
        self.epoch: int | None = None
        self.session: set[Place] = set()
        self.faults: deque[Fault] = deque()
        self.accepted: list[tuple[int, int]] = []
        self.requests: list[ShareFetchRequest | ShareAcknowledgeRequest] = []
        self.may_renew = True
        self._is_busy = False

    @property
    def is_done(self) -> bool:
        return all(one.is_done for some in self.offsets.values() for one in some)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def release_all(self) -> None:
        self.epoch = None
        for some in self.offsets.values():
            for one in some:
                one.locked_until = 0.0

    async def send(self, node: int, api: Api[Any, Any], request: Any) -> Any:
        assert not self._is_busy, "one request at a time"
        self._is_busy = True
        try:
            self.requests.append(request)
            fault = self.faults.popleft() if self.faults else Fault.NONE
            return await self._send(fault, request)
        finally:
            self._is_busy = False

    async def _send(self, fault: Fault, request: Any) -> Any:
        if fault is Fault.NOT_SENT:
            raise kafka.NodeNotReadyError("refused")
        await asyncio.sleep(_TRIP)
        if fault is Fault.REQUEST_LOST:
            self.release_all()
            raise kafka.KafkaConnectionError("reset")
        if fault is Fault.SESSION_LOST:
            self.release_all()
        answer = await self._process(fault, request)
        if fault is Fault.HANGS:
            await asyncio.sleep(_NO_ANSWER)
        if fault in {Fault.ANSWER_LOST, Fault.HANGS}:
            self.release_all()
            raise kafka.RequestTimedOutError("no answer")
        await asyncio.sleep(_TRIP)
        return answer

    async def _process(self, fault: Fault, request: Any) -> Any:
        response = ShareFetchResponse if isinstance(request, ShareFetchRequest) else ShareAcknowledgeResponse
        epoch = request.share_session_epoch
        acknowledges = any(one.acknowledgement_batches for topic in request.topics for one in topic.partitions)
        if code := self._check_epoch(fault, epoch, acknowledges or response is ShareAcknowledgeResponse):
            return response(error_code=code)
        if epoch == CLOSE_SESSION:
            self.release_all()
            return response()
        assert self.epoch is not None
        self.epoch += 1
        if fault is Fault.SERVER_ERROR:
            return response(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        results = self._acknowledge(fault, request.topics)
        if response is ShareAcknowledgeResponse:
            return ShareAcknowledgeResponse(
                acquisition_lock_timeout_ms=round(LOCK * 1000), responses=_acknowledged(results)
            )
        return await self._fetch(fault, request, results)

    def _check_epoch(self, fault: Fault, epoch: int, acknowledges: bool) -> int:
        """An error code of the whole response."""
        if fault is Fault.SESSION_LIMIT:
            self.epoch = None
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        if epoch == OPEN_SESSION:
            if acknowledges:
                return ErrorCode.INVALID_REQUEST
            self.session = set()
            self.epoch = 0
        elif self.epoch is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        elif fault is Fault.WRONG_EPOCH or (epoch not in {CLOSE_SESSION, self.epoch}):
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        return ErrorCode.NONE

    def _acknowledge(self, fault: Fault, topics: tuple[AcknowledgeTopic, ...]) -> dict[Place, int]:
        results: dict[Place, int] = {}
        for topic in topics:
            for partition in topic.partitions:
                place = (topic.topic_id, partition.partition_index)
                kinds = {
                    offset: (batch.acknowledge_types * (batch.last_offset - batch.first_offset + 1))[at]
                    for batch in partition.acknowledgement_batches
                    for at, offset in enumerate(range(batch.first_offset, batch.last_offset + 1))
                }
                if kinds:
                    results[place] = self._result(fault, place, kinds)
        return results

    def _result(self, fault: Fault, place: Place, kinds: dict[int, int]) -> int:
        if fault is Fault.NOT_LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if fault is Fault.NOT_STORED:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        offsets = {offset: self.offsets[place][offset] for offset in kinds}
        if not all(one.locked_until > self.now() and not one.is_done for one in offsets.values()):
            return ErrorCode.INVALID_RECORD_STATE
        if AcknowledgeType.RENEW in kinds.values() and not self.may_renew:
            return ErrorCode.INVALID_RECORD_STATE
        for offset, kind in kinds.items():
            one = offsets[offset]
            one.locked_until = self.now() + LOCK if kind == AcknowledgeType.RENEW else 0.0
            if kind in {AcknowledgeType.ACCEPT, AcknowledgeType.REJECT}:
                one.is_done = True
                self.accepted.append((place[1], offset))
        return ErrorCode.NONE

    async def _fetch(self, fault: Fault, request: ShareFetchRequest, results: dict[Place, int]) -> ShareFetchResponse:
        self.session |= {(topic.topic_id, one.partition_index) for topic in request.topics for one in topic.partitions}
        self.session -= {(topic.topic_id, one) for topic in request.forgotten_topics_data for one in topic.partitions}
        ends = self.now() + request.max_wait_ms / 1000
        while not (found := self._acquire(request.max_records)) and self.now() < ends and fault is not Fault.NOT_LEADER:
            await asyncio.sleep(min(ends, self._next_end()) - self.now() + 1e-5)
        partitions = defaultdict(list)
        for place in self.session | results.keys():
            ranges = found.get(place, ())
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if fault is Fault.NOT_LEADER else ErrorCode.NONE
            if ranges or place in results or code:
                partitions[place[0]].append(
                    FetchedPartition(
                        partition_index=place[1],
                        error_code=code,
                        acknowledge_error_code=results.get(place, 0),
                        current_leader=_NO_LEADER,
                        records=self.data if ranges else b"",
                        acquired_records=tuple(ranges),
                    )
                )
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=round(LOCK * 1000),
            responses=tuple(FetchedTopic(topic_id, tuple(some)) for topic_id, some in partitions.items()),
        )

    def _next_end(self) -> float:
        """When the next lock ends."""
        locks = [one.locked_until for some in self.offsets.values() for one in some if one.locked_until > self.now()]
        return min(locks, default=1e9)

    def _acquire(self, most: int) -> dict[Place, list[AcquiredRange]]:
        found: defaultdict[Place, list[AcquiredRange]] = defaultdict(list)
        for place in sorted(self.session):
            for offset, one in enumerate(self.offsets[place]):
                if most <= 0:
                    return found
                if not one.is_done and one.locked_until <= self.now():
                    one.locked_until = self.now() + LOCK
                    one.deliveries += 1
                    found[place].append(AcquiredRange(offset, offset, one.deliveries))
                    most -= 1
        return found


def _acknowledged(results: dict[Place, int]) -> tuple[AcknowledgedTopic, ...]:
    found = []
    for (topic_id, number), code in results.items():
        one = AcknowledgedPartition(partition_index=number, error_code=code, current_leader=_NO_LEADER)
        found.append(AcknowledgedTopic(topic_id, (one,)))
    return tuple(found)
