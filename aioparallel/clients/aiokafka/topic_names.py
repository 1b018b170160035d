"""The names of topics that a coordinator calls by their ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.first_answer import first_answer
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.metadata_messages import topic_names_request
from aioparallel.records.error_codes import ErrorCode

__all__ = ["TopicNames"]

logger = logging.getLogger(__name__)


class TopicNames:
    """Names by id, as far as they are known. ``brokers()``: in the order to ask them."""

    def __init__(self, connections: Connections, brokers: Callable[[], Collection[int]]) -> None:
        self._connections = connections
        self._brokers = brokers
        self.known: dict[bytes, str] = {}

    async def look_up(self, topic_ids: Collection[bytes]) -> None:
        """Request these. A broker may learn of a new topic later than the coordinator, so some may stay unknown."""
        answer = await first_answer(self._brokers(), lambda node: self._ask(node, topic_ids))
        if answer is not None:
            self.known |= {topic[2]: topic[1] for topic in answer.topics if topic[0] == ErrorCode.NONE and topic[1]}

    async def _ask(self, node: int, topic_ids: Collection[bytes]) -> Any:
        try:
            return await self._connections.send(node, topic_names_request(topic_ids))
        except (kafka.KafkaError, OSError) as error:
            logger.debug("No topic names from broker %d: %r", node, error, extra={"action": "no_topic_names"})
            return None

    def forget_all_but(self, topic_ids: Collection[bytes]) -> None:
        """Weeks of topics that are made and deleted would pile up."""
        self.known = {topic_id: name for topic_id, name in self.known.items() if topic_id in topic_ids}
