"""Asks the cluster, on the driver, for partitions of topics and their first and last offsets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aioparallel.records.record import TopicPartition

if TYPE_CHECKING:
    from aioparallel.clients.aiokafka import AiokafkaClient

__all__ = ["Log", "cluster_of", "offsets_at", "survey"]

_GROUP: Final = "aioparallel-check"
"""The group id of the client. It does not join the group and commits nothing."""
_STOP_TIMEOUT: Final = 2.0

T = TypeVar("T")


class Log(NamedTuple):
    """The first offset of a partition, and its last stable offset (read_committed)."""

    beginning: int
    end: int


def survey(
    bootstrap_servers: str,
    topics: Collection[str],
    *,
    timeout: float,
    client_options: Mapping[str, object] | None = None,
) -> dict[str, dict[int, Log]]:
    """The logs by topic and partition. Topics that do not exist are left out, and not created.

    ``timeout``: seconds for each of four steps. ``client_options``: of aiokafka's consumer, for TLS and SASL. Runs in a
    thread with its own event loop, as notebooks already run one. Raises BrokerUnreachable, NotAuthorized and
    ConfigurationError like the consumer, and TimeoutError.
    """
    return _run(_survey(_client(bootstrap_servers, client_options), topics, timeout))


def offsets_at(
    bootstrap_servers: str,
    times: Mapping[TopicPartition, int],
    *,
    timeout: float,
    client_options: Mapping[str, object] | None = None,
) -> dict[TopicPartition, int | None]:
    """The offset of each partition's first record with this timestamp (milliseconds) or a later one; None if there is
    none. Otherwise like :func:`survey`."""
    return _run(_offsets_at(_client(bootstrap_servers, client_options), times, timeout))


def cluster_of(
    bootstrap_servers: str, *, timeout: float, client_options: Mapping[str, object] | None = None
) -> str | None:
    """The id of the cluster; None if it has none. Otherwise like :func:`survey`."""
    return _run(_cluster_of(_client(bootstrap_servers, client_options), timeout))


def _run(work: Coroutine[object, object, T]) -> T:
    with ThreadPoolExecutor(1, "aioparallel-survey") as thread:
        return thread.submit(asyncio.run, work).result()


@contextlib.asynccontextmanager
async def _client(bootstrap_servers: str, options: Mapping[str, object] | None) -> AsyncIterator[AiokafkaClient]:
    # Imported here, as executors import this package and need no Kafka client.
    from aioparallel.clients.aiokafka import AiokafkaClient  # noqa: PLC0415

    given = {"isolation_level": "read_committed", **(options or {})}
    client = AiokafkaClient(bootstrap_servers, _GROUP, client_options=given)
    try:
        yield client
    finally:
        await client.stop(_STOP_TIMEOUT)


async def _cluster_of(client: contextlib.AbstractAsyncContextManager[AiokafkaClient], timeout: float) -> str | None:
    async with client as asked:
        await asked.start(timeout)
        return asked.cluster_id


async def _offsets_at(
    client: contextlib.AbstractAsyncContextManager[AiokafkaClient], times: Mapping[TopicPartition, int], timeout: float
) -> dict[TopicPartition, int | None]:
    async with client as asked:
        await asked.start(timeout)
        await asked.partitions({partition.topic for partition in times}, timeout)
        return dict(await asked.offsets_for_times(times, timeout))


async def _survey(
    client: contextlib.AbstractAsyncContextManager[AiokafkaClient], topics: Collection[str], timeout: float
) -> dict[str, dict[int, Log]]:
    async with client as asked:
        await asked.start(timeout)
        found: set[TopicPartition] = await asked.partitions(topics, timeout)
        beginnings = await asked.beginning_offsets(found, timeout)
        ends = await asked.end_offsets(found, timeout)
    logs: dict[str, dict[int, Log]] = {}
    for partition in sorted(found):
        log = Log(beginnings[partition], ends[partition])
        logs.setdefault(partition.topic, {})[partition.partition] = log
    return logs
