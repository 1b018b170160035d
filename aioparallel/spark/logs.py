"""What the cluster says of topics: partitions, and where each log begins and ends. Asked on the driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aioparallel.records import TopicPartition

if TYPE_CHECKING:
    from aioparallel.clients.aiokafka import AiokafkaClient

__all__ = ["Log", "cluster_of", "offsets_at", "survey"]

_GROUP: Final = "aioparallel-check"
"""Named by the client; nothing joins it and nothing is committed."""
_STOP_TIMEOUT: Final = 2.0

T = TypeVar("T")


class Log(NamedTuple):
    """One partition: the first offset that is there, and the one behind the last that is decided (read_committed)."""

    beginning: int
    end: int


def survey(
    bootstrap_servers: str,
    topics: Collection[str],
    *,
    timeout: float,
    client_options: Mapping[str, object] | None = None,
) -> dict[str, dict[int, Log]]:
    """The logs by topic and partition; topics that do not exist are left out, and not created.

    ``timeout``: seconds for each of four steps. ``client_options``: of aiokafka's consumer, for TLS and SASL.
    In a thread with an event loop of its own, since notebooks have one running already. Raises BrokerUnreachable,
    NotAuthorized and ConfigurationError as the consumer does, and TimeoutError.
    """
    return _run(_survey(_client(bootstrap_servers, client_options), topics, timeout))


def offsets_at(
    bootstrap_servers: str,
    times: Mapping[TopicPartition, int],
    *,
    timeout: float,
    client_options: Mapping[str, object] | None = None,
) -> dict[TopicPartition, int | None]:
    """The first offset of each partition whose record has this timestamp, in milliseconds, or a later one; None: there
    is none. The rest as :func:`survey`."""
    return _run(_offsets_at(_client(bootstrap_servers, client_options), times, timeout))


def cluster_of(
    bootstrap_servers: str, *, timeout: float, client_options: Mapping[str, object] | None = None
) -> str | None:
    """The id of the cluster at these addresses; None where it tells none. The rest as :func:`survey`."""
    return _run(_cluster_of(_client(bootstrap_servers, client_options), timeout))


def _run(work: Coroutine[object, object, T]) -> T:
    with ThreadPoolExecutor(1, "aioparallel-survey") as thread:
        return thread.submit(asyncio.run, work).result()


@contextlib.asynccontextmanager
async def _client(bootstrap_servers: str, options: Mapping[str, object] | None) -> AsyncIterator[AiokafkaClient]:
    # Here and not above: executors import this package, and need no Kafka client.
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
