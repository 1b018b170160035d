"""What a share group's own configuration says. It may change while members run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NamedTuple

import aiokafka.errors as kafka
from aiokafka.protocol.admin import DescribeConfigsRequest

from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.messages.configs import ResourceType
from aioparallel.records.error_codes import ErrorCode

__all__ = ["GroupConfigs", "group_configs"]

logger = logging.getLogger(__name__)

_TIMEOUT: Final = 2.0
"""Seconds for the answer, without which a member starts as well."""
_TOPIC: Final = "errors.deadletterqueue.topic.name"
_COPY: Final = "errors.deadletterqueue.copy.record.enable"
_LIMIT: Final = "share.delivery.count.limit"


class GroupConfigs(NamedTuple):
    """None: no answer, no permission to ask, or it is not a setting of groups in this version of Kafka (or not set)."""

    delivery_limit: int | None = None
    """How often a record is delivered at most."""
    dead_letter_topic: str | None = None
    """Where the brokers write records that the group gives up or rejects."""


async def group_configs(
    connections: Connections, node: int, group_id: str, before: GroupConfigs | None = None
) -> GroupConfigs:
    """Return what the group's configuration says; ``before`` if there is no answer: what it said before.

    Logs a limit that has changed, and where the brokers themselves write records that the group gives up or rejects
    (KIP-1191, from Kafka 4.4).
    """
    unknown = before or GroupConfigs()
    try:
        async with asyncio.timeout(_TIMEOUT):
            request = DescribeConfigsRequest([(ResourceType.GROUP, group_id, [_LIMIT, _TOPIC, _COPY])])
            answer: Any = await connections.send(node, request)
    except (TimeoutError, kafka.KafkaError, OSError) as error:
        logger.debug("The group's configs were not read: %r", error, extra={"action": "share_configs_unread"})
        return unknown
    code, _, _, _, entries = answer.resources[0]
    if code != ErrorCode.NONE:
        logger.debug("The group's configs were not read: code %d", code, extra={"action": "share_configs_unread"})
        return unknown
    configs = {entry[0]: entry[1] for entry in entries}
    limit = int(configs[_LIMIT]) if configs.get(_LIMIT) else None
    if unknown.delivery_limit is not None and limit != unknown.delivery_limit:
        logger.warning(
            "Share group %s: share.delivery.count.limit is %s now, and was %s",
            group_id,
            limit,
            unknown.delivery_limit,
            extra={"action": "share_delivery_limit", "group": group_id, "limit": limit},
        )
    topic = configs.get(_TOPIC) or None
    if topic is not None and topic != unknown.dead_letter_topic:
        parts = "with key and value" if configs.get(_COPY) == "true" else "without key and value"
        logger.info(
            "Share group %s: its brokers write records that it rejects or gives up to %s, %s. `aioparallel dlq` reads "
            "them. Records that this consumer dead-letters itself (dead_letter=) are accepted, so they are not there",
            group_id,
            topic,
            parts,
            extra={"action": "share_brokers_letters", "group": group_id, "topic": topic},
        )
    return GroupConfigs(limit, topic)
