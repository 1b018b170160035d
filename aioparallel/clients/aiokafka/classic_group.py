"""A member of a group of the classic protocol: aiokafka's own, with what it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection
from typing import Final

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.group import LeaveGroupRequest

from aioparallel.clients.aiokafka.internals import Consumer, Coordinator
from aioparallel.clients.aiokafka.membership import Membership
from aioparallel.clients.aiokafka.metadata import WholeName
from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records.record import TopicPartition

__all__ = ["ClassicGroup"]

_LOOK: Final = 0.01
_PART: Final = 0.2
"""The part of a timeout for leaving while a join is unanswered. aiokafka leaves when it is closed, after that."""


class ClassicGroup:
    """See :class:`~aioparallel.clients.aiokafka.client.Group` for each method."""

    assigns_in_steps = False

    def __init__(
        self,
        consumer: Consumer,
        coordinator: Coordinator,
        *,
        group_id: str,
        park: Callable[[TopicPartition], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._consumer = consumer
        self.coordinator = coordinator
        self._group_id = group_id
        self._park = park
        self._on_failure = on_failure
        self._membership: Membership | None = None

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        self._membership = membership = Membership(
            listener,
            self.coordinator,
            group_id=self._group_id,
            park=self._park,
            on_failure=self._on_failure,
        )
        if isinstance(topics, re.Pattern):
            self._consumer._subscription.subscribe_pattern(WholeName(topics), listener=membership)
        else:
            self._consumer._subscription.subscribe(set(topics), listener=membership)

    def check(self) -> None:
        self.coordinator.check_errors()

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        if self._membership is not None:
            self._membership.fenced(generation, instance_fenced=instance_fenced)

    removed = fenced

    def stale(self, generation: Generation) -> None:
        """The classic protocol has no epochs."""

    def close(self) -> None:
        if self._membership is not None:
            self._membership.close()

    async def leave(self, timeout: float) -> None:
        """Leave the group while a JoinGroup request is unanswered; aiokafka leaves by itself otherwise.

        The coordinator answers it when every other member has given up its partitions, after the rebalance timeout at
        the latest. Until then it reads nothing more from that connection. If the member did not leave, the group would
        assign partitions to it and wait for its session to expire. So the LeaveGroup request, which also ends the join,
        uses another connection.
        """
        if self.coordinator._group_instance_id is not None:
            return  # a static member returns with the same id
        with contextlib.suppress(kafka.KafkaError, TimeoutError):
            async with asyncio.timeout(timeout * _PART):
                if (node := await self._joining_at()) is not None:
                    request = LeaveGroupRequest(self._group_id, self.coordinator.member_id)
                    await self._consumer._client.send(node, request, group=ConnectionGroup.DEFAULT)

    async def _joining_at(self) -> int | None:
        """The coordinator that this member is joining at; None if it has joined, or will not join.

        While the coordinator or the id of the member is unknown, the join is just beginning. aiokafka completes that
        even when it is closed, so it is waited for.
        """
        coordinator = self.coordinator
        if self._membership is None:
            return None
        while self._consumer._subscription.reassignment_in_progress and not coordinator._coordination_task.done():
            if coordinator.coordinator_id is not None and coordinator.member_id:
                return coordinator.coordinator_id
            await asyncio.sleep(_LOOK)
        return None
