"""Messages of ``aioparallel.clients.messages`` to Apache Kafka, one by one, on aiokafka's connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from aiokafka import TopicPartition as Place
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.coordination import FindCoordinatorRequest

from aioparallel.clients.aiokafka.metadata_messages import topic_ids_request
from aioparallel.clients.aiokafka.typed_requests import ask
from aioparallel.clients.messages import Api
from aioparallel.clients.messages.configs import (
    INCREMENTAL_ALTER_CONFIGS,
    ChangedConfig,
    ChangedResource,
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    ResourceType,
)

__all__ = ["Asking", "asking"]

Q = TypeVar("Q")
R = TypeVar("R")

_NOT_YET: Final = frozenset({14, 15, 16})
"""The coordinator is loading, or another broker's."""


class Asking:
    """A client of one cluster."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def ask(self, api: Api[Q, R], request: Q, node: int) -> R:
        """The broker's answer."""
        return await ask(self.client, node, api, request)

    async def coordinate(self, group: str, api: Api[Q, R], request: Q) -> R:
        """The answer of the group's coordinator, once it is one."""
        while True:
            found = await self.client.send(self.client.get_random_node(), FindCoordinatorRequest(group, 0))
            if found.error_code == 0:
                answer = await self.ask(api, request, found.coordinator_id)
                if getattr(answer, "error_code", 0) not in _NOT_YET:
                    return answer
            await asyncio.sleep(0.1)

    async def topic_id(self, topic: str) -> bytes:
        """The topic's id."""
        answer = await self.client.send(self.client.get_random_node(), topic_ids_request([topic]))
        ((code, _, topic_id, *_),) = answer.topics
        assert code == 0, code
        return bytes(topic_id)

    async def leader(self, topic: str, partition: int = 0) -> int:
        """The leader of the partition."""
        self.client.add_topic(topic)
        await self.client.force_metadata_update()
        node: int = self.client.cluster.leader_for_partition(Place(topic, partition))
        return node

    async def configure(self, group: str, configs: Mapping[str, str]) -> None:
        """Set the group's configs."""
        changes = tuple(ChangedConfig(name, ConfigOperation.SET, value) for name, value in configs.items())
        request = IncrementalAlterConfigsRequest(resources=(ChangedResource(ResourceType.GROUP, group, changes),))
        answer = await self.ask(INCREMENTAL_ALTER_CONFIGS, request, self.client.get_random_node())
        assert [one.error_code for one in answer.responses] == [0], answer


@asynccontextmanager
async def asking(servers: str) -> AsyncIterator[Asking]:
    """Connected, without anything of the package around aiokafka's client."""
    client = AIOKafkaClient(bootstrap_servers=servers)
    await client.bootstrap()
    try:
        yield Asking(client)
    finally:
        await client.close()
