"""Asks the cluster, on the driver, for partitions of topics and their first and last offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from aioparallel.config.security.secret import Hidden
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

if TYPE_CHECKING:
    from aioparallel.clients.aiokafka import AiokafkaClient

__all__ = ["Log", "check_client_options", "cluster_of", "offsets_at", "survey"]

_GROUP: Final = "aioparallel-check"
"""The group id of the client. It does not join the group and commits nothing."""
_STOP_TIMEOUT: Final = 2.0

T = TypeVar("T")


class Log(NamedTuple):
    """The first offset of a partition, and its last stable offset (read_committed)."""

    beginning: int
    end: int


def check_client_options(bootstrap_servers: str, client_options: Mapping[str, object] | None) -> None:
    """Raise ConfigurationError for options that aiokafka's consumer does not have or take. Connects to nothing."""
    if client_options is not None:
        _client(bootstrap_servers, client_options)


def survey(
    bootstrap_servers: str,
    topics: Collection[str],
    *,
    timeout: float,
    client_options: Mapping[str, object] | None = None,
) -> dict[str, dict[int, Log]]:
    """The logs by topic and partition. Topics that do not exist are left out, and not created.

    ``timeout``: seconds for each of four steps. ``client_options``: of aiokafka's consumer, for TLS and SASL. Raises
    BrokerUnreachable, NotAuthorized and ConfigurationError like the consumer, and TimeoutError.
    """

    async def ask(client: AiokafkaClient) -> dict[str, dict[int, Log]]:
        found: set[TopicPartition] = await client.partitions(topics, timeout)
        beginnings = await client.beginning_offsets(found, timeout)
        ends = await client.end_offsets(found, timeout)
        logs: dict[str, dict[int, Log]] = {}
        for partition in sorted(found):
            log = Log(beginnings[partition], ends[partition])
            logs.setdefault(partition.topic, {})[partition.partition] = log
        return logs

    return _answer(bootstrap_servers, client_options, timeout, ask)


def offsets_at(
    bootstrap_servers: str,
    times: Mapping[TopicPartition, int],
    *,
    timeout: float,
    client_options: Mapping[str, object] | None = None,
) -> dict[TopicPartition, int | None]:
    """The offset of each partition's first record with this timestamp (milliseconds) or a later one; None if there is
    none. Otherwise like :func:`survey`."""

    async def ask(client: AiokafkaClient) -> dict[TopicPartition, int | None]:
        await client.partitions({partition.topic for partition in times}, timeout)
        return dict(await client.offsets_for_times(times, timeout))

    return _answer(bootstrap_servers, client_options, timeout, ask)


def cluster_of(
    bootstrap_servers: str, *, timeout: float, client_options: Mapping[str, object] | None = None
) -> str | None:
    """The id of the cluster; None if it has none. Otherwise like :func:`survey`."""

    async def ask(client: AiokafkaClient) -> str | None:
        return client.cluster_id

    return _answer(bootstrap_servers, client_options, timeout, ask)


def _answer(
    servers: str,
    options: Mapping[str, object] | None,
    timeout: float,
    ask: Callable[[AiokafkaClient], Awaitable[T]],
) -> T:
    """The answer to a question that is asked in a thread with its own event loop, as notebooks already run one."""

    async def run() -> T:
        client = _client(servers, options)
        try:
            await client.start(timeout)
            return await ask(client)
        finally:
            await client.stop(_STOP_TIMEOUT)

    with ThreadPoolExecutor(1, "aioparallel-survey") as thread:
        return thread.submit(asyncio.run, run()).result()


def _client(servers: str, options: Mapping[str, object] | None) -> AiokafkaClient:
    # Imported here, as executors import this package and need no Kafka client.
    from aioparallel.clients.aiokafka import AiokafkaClient  # noqa: PLC0415

    address: object = servers
    given: object = options or {}
    if not isinstance(address, str):
        raise ConfigurationError("bootstrap_servers", address, "must be host:port, several separated by commas")
    if not isinstance(given, Mapping):
        raise ConfigurationError("client_options", Hidden(given), 'must be a dict, as in {"client_id": "flights"}')
    return AiokafkaClient(address, _GROUP, client_options={"isolation_level": "read_committed", **given})
