"""Keeps two processes with the same ``group.instance.id`` from fencing each other without end.

When another process joins with the same instance id, the group gives it the membership of this one. Requests of this
one that contain the id are answered FENCED_INSTANCE_ID (KIP-345). aiokafka's heartbeats do not contain the id, and are
answered UNKNOWN_MEMBER_ID. aiokafka then joins as a new member, and takes the membership back::

    A is the member     B joins with A's id: B is the member
    A's heartbeat       UNKNOWN_MEMBER_ID; A joins without a member id: A is the member
    B's heartbeat       UNKNOWN_MEMBER_ID; ... and so on, at each heartbeat, each time without a last commit

So the heartbeats here contain the id. A member that has lost its session rejoins with its old member id. The
coordinator then says whether another process has the membership (FENCED_INSTANCE_ID), or the member was only forgotten
(UNKNOWN_MEMBER_ID). Only in the second case it joins as a new member. In the first case it sends nothing more.

A member may fence itself: if a join without a member id gets no answer and is repeated, the group may handle the first
one late. So a member that had such a join within the last minute joins once more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from aioparallel.clients.aiokafka.group_messages import Heartbeat
from aioparallel.clients.aiokafka.internals import Coordinator
from aioparallel.records.error_codes import ErrorCode

__all__ = ["StaticMember"]

_NAME_THE_MEMBER: Final = (HeartbeatRequest, JoinGroupRequest, SyncGroupRequest)
_UNKNOWN: Final[str] = JoinGroupRequest.UNKNOWN_MEMBER_ID
_LATE: Final = 60.0
"""Seconds for which an unanswered join may still be handled."""


class StaticMember:
    """Wraps the coordinator's ``_send_req``. ``on_fenced()`` is called once when another process is the member."""

    def __init__(self, coordinator: Coordinator, instance_id: str, on_fenced: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._instance_id = instance_id
        self._on_fenced = on_fenced
        self._send = coordinator._send_req
        self._time = asyncio.get_running_loop().time
        self._is_fenced = False
        self._member_id = _UNKNOWN  # the last one from the group
        self._unanswered_at = -math.inf  # the last join without a member id and without an answer
        coordinator._send_req = self.send

    def fenced(self, member_id: str) -> None:
        """A commit of ``member_id`` was answered FENCED_INSTANCE_ID. Ignored for an earlier member id: the group has
        given this process a new one since."""
        if member_id != self._member_id or self._is_fenced:
            return
        if self._may_be_itself():
            self._coordinator.reset_generation()
        else:
            self._end()

    async def send(self, request: object) -> Any:
        """``GroupCoordinator._send_req``. Once fenced, it does not return, and raises when the coordinator closes."""
        if not self._is_fenced:
            answer = await self._send_named(request)
            if isinstance(request, _NAME_THE_MEMBER):
                self._hear(request, answer)
            if not self._is_fenced:
                return answer
        # Do not raise: aiokafka would retry at once, again and again.
        await asyncio.wait([self._coordinator._closing])
        if isinstance(request, HeartbeatRequest):
            # aiokafka cancels the heartbeat task when the join task has ended.
            await asyncio.get_running_loop().create_future()
        raise kafka.IllegalStateError("another process has the group_instance_id of this member")

    async def _send_named(self, request: Any) -> Any:
        if isinstance(request, HeartbeatRequest):
            coordinator = self._coordinator
            request = Heartbeat(coordinator.group_id, coordinator.generation, coordinator.member_id, self._instance_id)
        if not isinstance(request, JoinGroupRequest):
            return await self._send(request)
        request._member_id = request._member_id or self._member_id
        try:
            return await self._send(request)
        except BaseException:
            if request._member_id == _UNKNOWN:
                self._unanswered_at = self._time()
            raise

    def _hear(self, request: object, answer: Any) -> None:
        if answer.error_code == ErrorCode.FENCED_INSTANCE_ID:
            # aiokafka has one such request in flight, and none across a join: the answer concerns the current member.
            if self._may_be_itself():
                answer.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                self._end()
        elif isinstance(request, JoinGroupRequest):
            if answer.error_code == ErrorCode.NONE:
                self._member_id = answer.member_id
            elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = _UNKNOWN

    def _may_be_itself(self) -> bool:
        """Whether a late join of this process may have fenced it. It must then rejoin as a new member."""
        is_late = self._time() - self._unanswered_at < _LATE
        self._unanswered_at = -math.inf
        if is_late:
            self._member_id = _UNKNOWN
        return is_late

    def _end(self) -> None:
        if not self._is_fenced:
            self._is_fenced = True
            self._on_fenced()
