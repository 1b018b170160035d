"""Conversations with a broker that have an end; the benchmark's, which is about to leave this package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from aioparallel.errors import BrokerUnreachable

__all__ = ["conversation", "delete_topic"]

DEADLINE = 60.0  # seconds for each conversation with the broker


@asynccontextmanager
async def conversation(bootstrap_servers: str) -> AsyncIterator[None]:
    """Talk to the broker within a minute, or raise BrokerUnreachable."""
    try:
        async with asyncio.timeout(DEADLINE):
            yield
    except (KafkaError, TimeoutError) as error:
        raise BrokerUnreachable(bootstrap_servers, DEADLINE, type(error).__name__) from error


async def delete_topic(bootstrap_servers: str, topic: str) -> None:
    """Delete the demo's topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        await admin.delete_topics([topic])
    finally:
        await admin.close()
