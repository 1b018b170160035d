"""The interface of all brokers for tests and demos.

=================  ==========================================  ======================================
broker             is                                          needs
=================  ==========================================  ======================================
EmbeddedBroker     librdkafka's mock cluster, in this process  the ``confluent-kafka`` wheel
LocalKafka         Apache Kafka in a JVM process               Java 17, and Maven the first time
DockerKafka        Apache Kafka's official image               a Docker engine, ``testcontainers``
=================  ==========================================  ======================================
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping
from typing import ClassVar, Final, Self

__all__ = ["TOPIC_TIMEOUT", "Broker"]

TOPIC_TIMEOUT: Final = 30.0
"""Seconds for all partitions of a new topic to get a leader."""

_GIVE_UP_AGAIN: Final = 0.1


class Broker(abc.ABC):
    """A Kafka broker for a test or demo: a context manager, synchronous or asynchronous.

    ``start`` and ``stop`` block (an EmbeddedBroker for milliseconds, a JVM for seconds), and may be called from any
    thread. In a running event loop use ``async with``, or ``asyncio.to_thread``.
    """

    kind: ClassVar[str]
    """``"embedded"``, ``"local"`` or ``"docker"``."""

    @property
    @abc.abstractmethod
    def bootstrap_servers(self) -> str:
        """``host:port`` for Kafka clients. Raises BrokerStartError if the broker is not started."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start the broker and wait until it answers. Does nothing if it is running. Raises BrokerStartError."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the broker and delete its data. May be called again, and without ``start``."""

    @abc.abstractmethod
    async def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until each of its partitions has a leader.

        ``configs``: Kafka's topic configs, such as ``{"cleanup.policy": "compact"}``. Raises ClientError if the broker
        refuses, for example because the topic exists, and TimeoutError.
        """

    def give_up_starting(self) -> None:  # noqa: B027 - most brokers start at once
        """Make a ``start`` in another thread fail soon, with BrokerStartError. Called repeatedly until it has."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread continues. Wait for its end before stopping what it starts.
            while not starting.done():
                await asyncio.to_thread(self.give_up_starting)
                await asyncio.wait([starting], timeout=_GIVE_UP_AGAIN)
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)
