"""What the configuration of a consumer group says (KIP-848)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka.protocol.admin import DescribeConfigsRequest

from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.messages.configs import ResourceType
from aioparallel.records.error_codes import ErrorCode

__all__ = ["session_timeout"]

logger = logging.getLogger(__name__)

_TIMEOUT: Final = 2.0
_NAME: Final = "consumer.session.timeout.ms"
_UNKNOWN: Final = 60.0
"""The longest that brokers allow by default, in seconds."""


async def session_timeout(connections: Connections, node: int, group_id: str) -> float:
    """The seconds without heartbeats after which the coordinator removes a member; 60 if it does not say."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            request = DescribeConfigsRequest([(ResourceType.GROUP, group_id, [_NAME])])
            answer: Any = await connections.send(node, request)
    except (TimeoutError, kafka.KafkaError, OSError) as error:
        logger.debug("The group's configs were not read: %r", error, extra={"action": "group_configs_unread"})
        return _UNKNOWN
    code, *_, entries = answer.resources[0]
    found = {entry[0]: entry[1] for entry in entries}.get(_NAME) if code == ErrorCode.NONE else None
    return int(found) / 1000 if found else _UNKNOWN
