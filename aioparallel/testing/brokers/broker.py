"""What every broker for tests and demos offers.

=================  ==========================================  ======================================
broker             is                                          needs
=================  ==========================================  ======================================
EmbeddedBroker     librdkafka's mock cluster, in this process  the ``confluent-kafka`` wheel
LocalKafka         Apache Kafka in a JVM process of its own    Java 17, and Maven the first time
DockerKafka        Apache Kafka's official image               a Docker engine, ``testcontainers``
=================  ==========================================  ======================================
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar, Final, Self

__all__ = ["TOPIC_TIMEOUT", "Broker"]

TOPIC_TIMEOUT: Final = 30.0
"""Seconds within which a new topic's partitions must all have a leader."""

_GIVE_UP_AGAIN: Final = 0.1


class Broker(abc.ABC):
    """A Kafka broker started for a test or a demo: a context manager, plain or ``async``.

    ``start`` and ``stop`` block (an EmbeddedBroker for milliseconds, a JVM for seconds) and may be called from any
    thread; inside a running event loop use ``async with``, or ``asyncio.to_thread``.
    """

    kind: ClassVar[str]
    """``"embedded"``, ``"local"`` or ``"docker"``."""

    @property
    @abc.abstractmethod
    def bootstrap_servers(self) -> str:
        """``host:port``, as Kafka clients take it. Raises BrokerStartError when not started."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start and wait until it answers. Raises BrokerStartError. Nothing happens if it was started."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End it and remove all it kept. May be called again, and without ``start``."""

    @abc.abstractmethod
    async def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until each of its partitions has a leader.

        ``configs`` are Kafka's topic configs, as in ``{"cleanup.policy": "compact"}``. Raises ClientError when the
        broker refuses, as when the topic exists, and TimeoutError.
        """

    def give_up_starting(self) -> None:  # noqa: B027 - most start at once
        """Make a ``start`` that another thread waits for end soon, with BrokerStartError; called until it has."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on; let it end before stopping what it starts.
            while not starting.done():
                await asyncio.to_thread(self.give_up_starting)
                await asyncio.wait([starting], timeout=_GIVE_UP_AGAIN)
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)
