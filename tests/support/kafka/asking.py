"""Messages of ``aioparallel.clients.messages`` to Apache Kafka, one by one, on aiokafka's connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aiokafka import TopicPartition as Place
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.coordination import FindCoordinatorRequest

from aioparallel.clients.aiokafka.metadata_messages import topic_ids_request
from aioparallel.clients.aiokafka.typed_requests import ask
from aioparallel.clients.messages import Api
from aioparallel.clients.messages.schema import Int8, Int16, Int32

__all__ = ["Asking", "asking"]

Q = TypeVar("Q")
R = TypeVar("R")

_GROUP: Final = 32
"""Among the types of resources that have configs."""
_NOT_YET: Final = frozenset({14, 15, 16})
"""The coordinator is loading, or another broker's."""


@dataclass(frozen=True)
class _Config:
    name: str
    config_operation: Int8
    value: str | None


@dataclass(frozen=True)
class _Resource:
    resource_type: Int8
    resource_name: str
    configs: tuple[_Config, ...]


@dataclass(frozen=True)
class _AlterConfigs:
    resources: tuple[_Resource, ...]
    validate_only: bool = False


@dataclass(frozen=True)
class _Altered:
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str


@dataclass(frozen=True)
class _AlteredConfigs:
    throttle_time_ms: Int32
    responses: tuple[_Altered, ...]


_INCREMENTAL_ALTER_CONFIGS: Final = Api("IncrementalAlterConfigs", 44, 1, 1, _AlterConfigs, _AlteredConfigs)


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
        resource = _Resource(_GROUP, group, tuple(_Config(name, 0, value) for name, value in configs.items()))
        answer = await self.ask(_INCREMENTAL_ALTER_CONFIGS, _AlterConfigs((resource,)), self.client.get_random_node())
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
