"""A member of a group with a real client, and nothing behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

from aioparallel.clients import AiokafkaClient
from aioparallel.engine.client import Generation
from aioparallel.records import TopicPartition

__all__ = ["Member", "joined"]

_TIMEOUT = 30.0


class Member(NamedTuple):
    """The client, and the generation under which it holds all partitions of the topic."""

    client: AiokafkaClient
    generation: Generation


class _Assigned:
    """Hears the first assignment."""

    def __init__(self) -> None:
        self.generation: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        if not self.generation.done():
            self.generation.set_result(generation)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        pass


@contextlib.asynccontextmanager
async def joined(servers: str, topic: str) -> AsyncIterator[Member]:
    """The only member of a group of its own, once the topic's partitions are assigned to it."""
    client = AiokafkaClient(servers, f"{topic}-group")
    listener = _Assigned()
    await client.start(_TIMEOUT)
    try:
        client.subscribe([topic], listener)
        async with asyncio.timeout(_TIMEOUT):
            generation = await listener.generation
        yield Member(client, generation)
    finally:
        await client.stop(_TIMEOUT)
