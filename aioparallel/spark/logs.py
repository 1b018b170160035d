"""What the cluster says of topics: partitions, and where each log begins and ends. Asked on the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from aioparallel.records import TopicPartition

__all__ = ["Log", "survey"]

_GROUP: Final = "aioparallel-check"
"""Named by the client; nothing joins it and nothing is committed."""
_STOP_TIMEOUT: Final = 2.0


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
    work = _survey(bootstrap_servers, topics, timeout, client_options or {})
    with ThreadPoolExecutor(1, "aioparallel-survey") as thread:
        return thread.submit(asyncio.run, work).result()


async def _survey(
    bootstrap_servers: str, topics: Collection[str], timeout: float, options: Mapping[str, object]
) -> dict[str, dict[int, Log]]:
    # Here and not above: executors import this package, and need no Kafka client.
    from aioparallel.clients.aiokafka import AiokafkaClient  # noqa: PLC0415

    client = AiokafkaClient(bootstrap_servers, _GROUP, client_options={"isolation_level": "read_committed", **options})
    try:
        await client.start(timeout)
        found: set[TopicPartition] = await client.partitions(topics, timeout)
        beginnings = await client.beginning_offsets(found, timeout)
        ends = await client.end_offsets(found, timeout)
    finally:
        await client.stop(_STOP_TIMEOUT)
    logs: dict[str, dict[int, Log]] = {}
    for partition in sorted(found):
        log = Log(beginnings[partition], ends[partition])
        logs.setdefault(partition.topic, {})[partition.partition] = log
    return logs
