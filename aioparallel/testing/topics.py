"""Creating topics on a real broker, and waiting until they can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol, cast

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from aioparallel.errors import ClientError

__all__ = ["create_topic"]

_POLL_INTERVAL: Final = 0.02


class _Admin(Protocol):
    """The part of aiokafka's admin client used here; aiokafka has no type information."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def create_topics(self, new_topics: list[object]) -> _Created: ...
    async def describe_topics(self, topics: list[str]) -> list[Mapping[str, object]]: ...


class _Created(Protocol):
    topic_errors: list[tuple[object, ...]]
    """A topic's name, error code and message."""


async def create_topic(
    bootstrap_servers: str,
    name: str,
    partitions: int,
    configs: Mapping[str, str] | None,
    timeout: float,
    replication: int = 1,
) -> None:
    """Create a topic with ``replication`` replicas of each partition, and wait until each has a leader.

    Raises ClientError when the broker refuses, and TimeoutError after ``timeout`` seconds.
    """
    admin = cast(_Admin, AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers))
    try:
        async with asyncio.timeout(timeout):
            await admin.start()
            topic = NewTopic(name, partitions, replication, topic_configs=dict(configs or {}))
            _, code, message = (await admin.create_topics([topic])).topic_errors[0][:3]
            if code != 0:
                raise ClientError(
                    f"topic {name!r} with {partitions} partitions was not created at {bootstrap_servers}: {message} "
                    f"(Kafka error {code})"
                )
            while not await _has_leaders(admin, name, partitions):
                await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError as error:
        raise TimeoutError(
            f"topic {name!r} at {bootstrap_servers} not created with all its leaders within {timeout:g} s; is it up?"
        ) from error
    finally:
        await admin.close()


async def _has_leaders(admin: _Admin, name: str, partitions: int) -> bool:
    topic = (await admin.describe_topics([name]))[0]
    described = cast(list[Mapping[str, int]], topic.get("partitions", ()))
    return len(described) == partitions and all(
        partition["error_code"] == 0 and partition["leader"] >= 0 for partition in described
    )
