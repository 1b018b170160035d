"""The broker that the benchmark runs on, and topics on it that are gone again after each case."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aioparallel.cli.bench.settings import Settings
from aioparallel.cli.demo.cluster import conversation, delete_topic
from aioparallel.clients.aiokafka.admin import create_topic
from aioparallel.errors import BrokerUnreachable
from aioparallel.jvm.sets import KAFKA_VERSION
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from aioparallel.testing.brokers.local import LocalKafka

__all__ = ["Cluster", "broker_name", "open_cluster"]

log = logging.getLogger(__name__)

TOPIC_TIMEOUT: Final = 60.0
"""Seconds; one of the measurements has 500 partitions."""
HEAP: Final = "1g"


@dataclass(slots=True)
class Cluster:
    """A broker that answers. ``keeps``: it does not delete topics, and ends with all it has soon enough."""

    bootstrap_servers: str
    create: Callable[[str, int], Awaitable[None]]
    keeps: bool = False
    _topics: list[str] = field(default_factory=list)

    async def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with one replica. Raises ClientError, TimeoutError or BrokerUnreachable."""
        async with conversation(self.bootstrap_servers):
            await self.create(name, partitions)
        self._topics.append(name)

    async def clear(self) -> None:
        """Delete the topics made so far; logs those that stay."""
        while self._topics:
            name = self._topics.pop()
            if self.keeps:
                continue
            try:
                async with conversation(self.bootstrap_servers):
                    await delete_topic(self.bootstrap_servers, name)
            except BrokerUnreachable:
                log.warning("topic not deleted, delete it by hand", extra={"topic": name}, exc_info=True)


def broker_name(settings: Settings) -> str:
    """What the results say about it."""
    if settings.bootstrap_servers is not None:
        return "a running one, given with --bootstrap-servers"
    if settings.embedded:
        return "embedded (librdkafka's mock cluster, in the benchmark's process)"
    return f"Apache Kafka {KAFKA_VERSION}, one node on this machine, heap {HEAP}"


@asynccontextmanager
async def open_cluster(settings: Settings, report: Callable[[str], None]) -> AsyncIterator[Cluster]:
    """Start the broker asked for, or use the running one; topics are deleted and the broker is ended afterwards.

    ``report`` is told in sentences what takes long. Raises AioparallelError when it does not start.
    """
    if settings.bootstrap_servers is not None:
        servers = settings.bootstrap_servers
        cluster = Cluster(
            servers, lambda name, partitions: create_topic(servers, name, partitions, None, TOPIC_TIMEOUT)
        )
        try:
            yield cluster
        finally:
            await cluster.clear()
    elif settings.embedded:
        async with EmbeddedBroker() as embedded:
            yield Cluster(embedded.bootstrap_servers, embedded.create_topic, keeps=True)
    else:
        report("Starting Apache Kafka; the first time its jars are fetched.")
        async with LocalKafka(heap=HEAP, report=report) as kafka:
            yield Cluster(kafka.bootstrap_servers, kafka.create_topic)
