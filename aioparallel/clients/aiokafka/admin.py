"""Creating topics on a real broker, and waiting until they can be used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final, Protocol, cast

import aiokafka.errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.codes import ErrorCode
from aioparallel.errors import ClientError

__all__ = ["create_topic"]

_POLL_INTERVAL: Final = 0.02
_ONE_BROKER: Final = 5.0
"""Seconds for the answer of one broker."""


class _Admin(Protocol):
    """The part of aiokafka's admin client used here; aiokafka has no type information."""

    _client: Connections

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
            code, message = await _create(admin, topic)
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


async def _create(admin: _Admin, topic: object) -> tuple[object, object]:
    """The broker's answer: an error code, 0 for none, and a message."""
    is_first = True
    while True:
        # The admin client asks any broker, which may be one that is dead or hangs; and where the metadata has no
        # controller, just after one was killed, it has an AttributeError.
        with contextlib.suppress(TimeoutError, kafka.KafkaError, AttributeError):
            async with asyncio.timeout(_ONE_BROKER):
                _, code, message = (await admin.create_topics([topic])).topic_errors[0][:3]
            # An attempt without an answer may have made it.
            return (0 if code == ErrorCode.TOPIC_ALREADY_EXISTS and not is_first else code), message
        is_first = False
        await asyncio.sleep(_POLL_INTERVAL)
        await admin._client.force_metadata_update()


async def _has_leaders(admin: _Admin, name: str, partitions: int) -> bool:
    try:
        async with asyncio.timeout(_ONE_BROKER):
            topic = (await admin.describe_topics([name]))[0]
    except (TimeoutError, kafka.KafkaError):
        return False  # another one is asked next time
    described = cast(list[Mapping[str, int]], topic.get("partitions", ()))
    return len(described) == partitions and all(
        partition["error_code"] == 0 and partition["leader"] >= 0 for partition in described
    )
