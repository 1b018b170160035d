"""A member of a share group: heartbeats, which also join and leave, and bring assignments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aioparallel.clients.messages.share_groups import (
    JOIN,
    LEAVE,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.link import RETRY_BACKOFF, Link
from aioparallel.testing.memory.refused import RETRIABLE, Refused

__all__ = ["ShareMembership", "wrong_type"]

logger = logging.getLogger(__name__)

_TIMEOUT: Final = 5.0
"""Seconds to wait for an answer."""
_REJOIN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


def wrong_type(group_id: str) -> ClientError:
    """The group's id belongs to a consumer group."""
    return ClientError(f"group {group_id!r} is a consumer group, so it cannot be a share group; use another group id")


class ShareMembership:
    """The member, run by one coroutine, :meth:`run`. ``assigned`` is called with all partitions at each change."""

    def __init__(
        self,
        broker: InMemoryBroker,
        link: Link,
        group_id: str,
        member_id: str,
        topics: frozenset[str],
        assigned: Callable[[frozenset[TopicPartition]], None],
    ) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()
        self._broker = broker
        self._link = link
        self._group_id = group_id
        self._member_id = member_id
        self._topics = tuple(sorted(topics))
        self._assigned = assigned
        self._epoch = JOIN
        self._is_full = True  # the next heartbeat says everything, so that its answer does as well
        self._changed = asyncio.Event()

    def group_changed(self) -> None:
        """Do not wait for the next heartbeat's time."""
        self._changed.set()

    async def run(self) -> None:
        """Be a member until cancelled. Raises NotAuthorized, and ClientError for other permanent errors."""
        while True:
            self._changed.clear()
            try:
                answer = await self._heartbeat(self._epoch, _TIMEOUT)
            except (Refused, TimeoutError) as error:
                await self._recover(error)
                continue
            self._epoch, self._is_full = answer.member_epoch, False
            if answer.assignment is not None:
                self._adopt(
                    frozenset(
                        TopicPartition(name, number)
                        for topic in answer.assignment.topic_partitions
                        if (name := self._broker.topic_with_id(topic.topic_id)) is not None
                        for number in topic.partitions
                    )
                )
            await _wait(self._changed, answer.heartbeat_interval_ms / 1000)

    async def _recover(self, error: Refused | TimeoutError) -> None:
        self._is_full = True
        if isinstance(error, TimeoutError):
            logger.info("no answer from the coordinator, retrying", extra={**self._log_fields(), "action": "no_answer"})
        elif error.code in _REJOIN:
            logger.warning(
                "removed from the share group: %s", error.code.name, extra={**self._log_fields(), "action": "fenced"}
            )
            self._epoch = JOIN
            self._adopt(frozenset())
        elif error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise wrong_type(self._group_id) from None
        elif error.code in RETRIABLE:
            await asyncio.sleep(RETRY_BACKOFF)
        else:
            raise self._link.explain(error) from None

    def _adopt(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions != self.partitions:
            self.partitions = partitions
            logger.info(
                "%d partitions are assigned", len(partitions), extra={**self._log_fields(), "action": "assigned"}
            )
            self._assigned(partitions)

    async def leave(self, timeout: float) -> None:
        """Leave the group. Never raises."""
        if self._epoch == JOIN:
            return
        try:
            await self._heartbeat(LEAVE, timeout)
        except (Refused, TimeoutError) as error:
            logger.info(
                "could not leave share group %s (%s): the session will expire by itself",
                self._group_id,
                str(error) or "no answer",
                extra={**self._log_fields(), "action": "leave"},
            )

    async def _heartbeat(self, epoch: int, timeout: float) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            subscribed_topic_names=self._topics if self._is_full else None,
        )
        return await self._link.call(
            Request.SHARE_HEARTBEAT,
            lambda now: self._broker.coordinate_share(self._group_id).heartbeat(request, now),
            timeout,
        )

    def _log_fields(self) -> dict[str, object]:
        return {"group_id": self._group_id, "member_id": self._member_id}


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
