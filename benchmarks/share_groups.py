"""What the benchmark sets and asks of share groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.coordination import FindCoordinatorRequest

from aioparallel.clients.aiokafka.typed_requests import ask
from aioparallel.clients.messages import Api
from aioparallel.clients.messages.schema import Int8, Int16, Int32
from aioparallel.clients.messages.share_offsets import (
    DESCRIBE_SHARE_GROUP_OFFSETS,
    DescribeGroup,
    DescribeShareGroupOffsetsRequest,
)
from aioparallel.records.errors import AioparallelError

__all__ = ["left_of", "read_from_the_beginning"]

_GROUP: Final = 32
"""Among the types of resources that have configs."""


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


@asynccontextmanager
async def _connected(servers: str) -> AsyncIterator[Any]:
    client = AIOKafkaClient(bootstrap_servers=servers)
    await client.bootstrap()
    try:
        yield client
    finally:
        await client.close()


async def read_from_the_beginning(servers: str, group: str) -> None:
    """Let a new group begin with the first records; by default it begins with those that are written after it."""
    resource = _Resource(_GROUP, group, (_Config("share.auto.offset.reset", 0, "earliest"),))
    async with _connected(servers) as client:
        answer = await ask(client, client.get_random_node(), _INCREMENTAL_ALTER_CONFIGS, _AlterConfigs((resource,)))
    if any(one.error_code for one in answer.responses):
        raise AioparallelError(f"group {group!r} was not configured: {answer}")


async def left_of(servers: str, group: str, each: int) -> int:
    """How many records of a topic, of which each partition has so many, have not ended in this group."""
    async with _connected(servers) as client:
        found = await client.send(client.get_random_node(), FindCoordinatorRequest(group, 0))
        request = DescribeShareGroupOffsetsRequest(groups=(DescribeGroup(group),))
        answer = await ask(client, found.coordinator_id, DESCRIBE_SHARE_GROUP_OFFSETS, request)
    partitions = [one for some in answer.groups for topic in some.topics for one in topic.partitions]
    if not partitions or any(one.start_offset >= 0 > one.lag for one in partitions):
        raise AioparallelError(f"group {group!r} does not know what is left: {answer}")
    return sum(each if one.start_offset < 0 else one.lag for one in partitions)
