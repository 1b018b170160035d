"""A client that reads topics and joins no group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from aioparallel.cli.cluster import Cluster, connecting_options
from aioparallel.cli.console import counted, say
from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.group.client import Client
from aioparallel.records.errors import ConfigurationError, TopicNotFound
from aioparallel.records.record import TopicPartition

__all__ = ["CONNECT_TIMEOUT", "REQUEST_TIMEOUT", "STOP_TIMEOUT", "chosen_partitions", "offset_ranges", "reading_client"]

CONNECT_TIMEOUT: Final = 10.0
REQUEST_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 5.0
# Seconds.


@asynccontextmanager
async def reading_client(where: Cluster, group: str, **client_options: object) -> AsyncIterator[Client]:
    """Connect. ``group``: its committed offsets can be read. ``client_options``: override those of ``where``.

    Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized and ConfigurationError.
    """
    client: Client = AiokafkaClient(
        where.bootstrap_servers, group, client_options={**connecting_options(where), **client_options}
    )
    try:
        await client.start(CONNECT_TIMEOUT)
        yield client
    finally:
        await client.stop(STOP_TIMEOUT)


async def chosen_partitions(client: Client, topic: str, numbers: Collection[int], servers: str) -> set[TopicPartition]:
    """The partitions with these numbers; all if there are no numbers. ``servers``: for the message.

    Raises TopicNotFound, ConfigurationError for a partition that does not exist, and TimeoutError.
    """
    found = await client.partitions([topic], REQUEST_TIMEOUT)
    if not found:
        raise TopicNotFound([topic], servers)
    wanted = {TopicPartition(topic, number) for number in numbers} or found
    if missing := wanted - found:
        raise ConfigurationError(
            "partition", min(missing).partition, f"{topic} has the partitions 0 to {len(found) - 1}"
        )
    return wanted


async def offset_ranges(admin: Admin, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """The first and the next offset of each log, without those that nobody can be asked about. Partitions that are
    deleted meanwhile are left out."""
    if not partitions:
        return {}
    if unknown := sorted(await admin.leaderless() & set(partitions)):
        what = f"{', '.join(map(str, unknown[:3]))}{', ...' if unknown[3:] else ''}"
        say(f"WARNING {counted(len(unknown), 'partition')} without a leader: the offsets of {what} are not counted")
    return await admin.log_ranges(partitions)
