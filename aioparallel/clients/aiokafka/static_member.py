"""A member with a ``group.instance.id``, so that two that have the same one do not throw each other out for ever.

When another process joins with this one's instance id, the group gives it this one's place, and answers each request
of this one that names the id with FENCED_INSTANCE_ID (KIP-345). aiokafka's heartbeats do not name it: they are answered
as of an unknown member, whereupon aiokafka joins as a new one, and takes the place back::

    A holds the place   B joins with A's id: the place is B's
    A's heartbeat       UNKNOWN_MEMBER_ID; A joins without a member id: the place is A's
    B's heartbeat       UNKNOWN_MEMBER_ID; ... and so on, once a heartbeat, each time without a last commit

So heartbeats name the id here. And who has lost its session joins again under the member id it had: the coordinator
says then whether the place has another owner (FENCED_INSTANCE_ID), whatever the loss was found out by, or whether it
was only forgotten (UNKNOWN_MEMBER_ID), and only then it joins as a new one.

Whose place is another one's sends nothing more.

One may be fenced by itself: a join without a member id gets no answer, is sent again, and the group handles the first
one late. So who has had no answer to one within the last minute joins once more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, cast

import aiokafka.errors as kafka
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from aioparallel.clients.aiokafka.heartbeats import Heartbeat
from aioparallel.clients.aiokafka.internals import Coordinator, JoinAnswer, JoinRequest, MemberAnswer
from aioparallel.codes import ErrorCode

__all__ = ["StaticMember"]

_NAME_THE_MEMBER: Final = (HeartbeatRequest, JoinGroupRequest, SyncGroupRequest)
_UNKNOWN: Final[str] = JoinGroupRequest.UNKNOWN_MEMBER_ID
_LATE: Final = 60.0
"""Seconds for which a join that got no answer may still be handled."""


class StaticMember:
    """Puts itself before the coordinator's ``_send_req``, once. ``on_fenced()``: the place is another one's, once."""

    def __init__(self, coordinator: Coordinator, instance_id: str, on_fenced: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._instance_id = instance_id
        self._on_fenced = on_fenced
        self._send = coordinator._send_req
        self._time = asyncio.get_running_loop().time
        self._is_fenced = False
        self._member_id = _UNKNOWN  # that the group gave it last
        self._unanswered_at = -math.inf  # a join without a member id
        coordinator._send_req = self.send

    def fenced(self, member_id: str) -> None:
        """A commit in the name of ``member_id`` was answered FENCED_INSTANCE_ID. Of an older one that says nothing:
        this member has got another id since, and nobody else its place."""
        if member_id != self._member_id or self._is_fenced:
            return
        if self._may_be_our_own():
            self._coordinator.reset_generation()
        else:
            self._end()

    async def send(self, request: object) -> object:
        """``GroupCoordinator._send_req``. Returns no answer any more once the place is another one's, and raises when
        the coordinator is closed."""
        if not self._is_fenced:
            answer = await self._send_named(request)
            if isinstance(request, _NAME_THE_MEMBER):
                self._hear(request, cast("MemberAnswer", answer))
            if not self._is_fenced:
                return answer
        # A failure would be tried again by aiokafka, all the time.
        await asyncio.wait([self._coordinator._closing])
        if isinstance(request, HeartbeatRequest):
            # The task that sends them is cancelled when the one that joins has ended.
            await asyncio.get_running_loop().create_future()
        raise kafka.IllegalStateError("another process has the group_instance_id of this member")

    async def _send_named(self, request: object) -> object:
        if isinstance(request, HeartbeatRequest):
            coordinator = self._coordinator
            request = Heartbeat(coordinator.group_id, coordinator.generation, coordinator.member_id, self._instance_id)
        if not isinstance(request, JoinGroupRequest):
            return await self._send(request)
        joining = cast("JoinRequest", request)
        joining._member_id = joining._member_id or self._member_id
        try:
            return await self._send(request)
        except BaseException:
            if joining._member_id == _UNKNOWN:
                self._unanswered_at = self._time()
            raise

    def _hear(self, request: object, answer: MemberAnswer) -> None:
        if answer.error_code == ErrorCode.FENCED_INSTANCE_ID:
            # aiokafka has one of these under way at a time, and none across a join: it is about who this member is now.
            if self._may_be_our_own():
                answer.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                self._end()
        elif isinstance(request, JoinGroupRequest):
            if answer.error_code == ErrorCode.NONE:
                self._member_id = cast("JoinAnswer", answer).member_id
            elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = _UNKNOWN

    def _may_be_our_own(self) -> bool:
        """Whether a join of this member may have taken its place; then it is to join once more, as a new one."""
        is_late = self._time() - self._unanswered_at < _LATE
        self._unanswered_at = -math.inf
        if is_late:
            self._member_id = _UNKNOWN
        return is_late

    def _end(self) -> None:
        if not self._is_fenced:
            self._is_fenced = True
            self._on_fenced()
