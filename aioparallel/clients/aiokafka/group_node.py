"""Finds the coordinator of a group. aiokafka has that only as a part of its own member of a group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.coordination import FindCoordinatorRequest

from aioparallel.clients.aiokafka.first_answer import first_answer
from aioparallel.clients.aiokafka.group_configs import session_timeout
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.typed_requests import ask
from aioparallel.clients.messages import Api
from aioparallel.records.error_codes import RETRIABLE, ErrorCode

__all__ = ["GroupNode", "LookUpRefused"]

logger = logging.getLogger(__name__)


class LookUpRefused(Exception):
    """The brokers refuse to name the coordinator, for the reason in ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class GroupNode:
    """The node that coordinates a group. ``brokers()``: in the order to ask them."""

    def __init__(self, connections: Connections, group_id: str, brokers: Callable[[], Collection[int]]) -> None:
        self._connections = connections
        self._group_id = group_id
        self._brokers = brokers
        self.coordinator_id: int | None = None

    def coordinator_dead(self) -> None:
        """Look it up again at the next request."""
        self.coordinator_id = None

    async def ensure_coordinator_known(self) -> None:
        """Raises KafkaError if the brokers refuse that, or none knows it now."""
        try:
            await self.node()
        except LookUpRefused as refused:
            raise kafka.for_code(refused.code)(self._group_id) from refused

    async def node(self) -> int:
        """Raises LookUpRefused, and KafkaError or OSError if no broker knows it now."""
        if self.coordinator_id is None:
            answer = await first_answer(self._brokers(), self._look_up)
            if answer is None:
                raise kafka.GroupCoordinatorNotAvailableError("no broker knows the coordinator of the group")
            if answer.error_code != ErrorCode.NONE:
                raise LookUpRefused(answer.error_code)
            self.coordinator_id = int(answer.coordinator_id)
        return self.coordinator_id

    async def _look_up(self, node: int) -> Any:
        try:
            answer = await self._connections.send(node, FindCoordinatorRequest(self._group_id, 0))
        except (kafka.KafkaError, OSError) as error:
            logger.debug("No coordinator from broker %d: %r", node, error, extra={"action": "coordinator_unknown"})
            return None
        return None if answer.error_code in RETRIABLE else answer

    async def ask(self, api: Api[Any, Any], request: object) -> Any:
        """The coordinator's response, over a connection that no fetch uses: one that waits holds up what follows."""
        return await ask(self._connections, await self.node(), api, request, group=int(ConnectionGroup.COORDINATION))

    async def session_timeout(self) -> float:
        """The seconds without heartbeats after which the coordinator removes a member of the new protocol."""
        return await session_timeout(self._connections, await self.node(), self._group_id)
