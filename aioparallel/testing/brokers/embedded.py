"""A Kafka broker inside this process: librdkafka's mock cluster. No Java, no Docker, ready in milliseconds."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import ClassVar, Final

from aioparallel.records.errors import BrokerStartError, ClientError, ConfigurationError
from aioparallel.testing.brokers.broker import Broker
from aioparallel.testing.brokers.librdkafka import MockCluster

__all__ = ["EmbeddedBroker"]

_BROKER: Final = 1
"""The mock cluster numbers its brokers from 1; this one has one."""


class EmbeddedBroker(Broker):
    """One broker for demos and quick tests. Other processes can connect to it. It ends with this process.

    It has native threads, so a busy event loop does not slow it down. Its limits:

    * One member per group in the classic protocol (``group_protocol``). A member that replaces a killed one waits
      until the killed one's session times out. Two live members of a classic group do not balance reliably.
    * Each partition keeps its newest 5 MiB or 100,000 batches. Older ones are deleted silently.
    * A client that requests a missing topic creates it, with 4 partitions.
    * Offsets sent with a transaction are ignored. Commit metadata has no limit (a real broker's is 4096 characters).
    * It checks neither checksums nor codecs, and has no topic configs, deletions, permissions or quotas.
    """

    kind: ClassVar[str] = "embedded"

    def __init__(self) -> None:
        self._cluster: MockCluster | None = None
        self._owner = 0

    def __repr__(self) -> str:
        where = f"at {self._cluster.bootstrap_servers}" if self._cluster else "not running"
        return f"<EmbeddedBroker {where}>"

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` on this machine."""
        return self._running().bootstrap_servers

    def start(self) -> None:
        """Start the broker, in a few milliseconds. Raises BrokerStartError without ``confluent-kafka``."""
        if self._cluster is None:
            self._cluster = MockCluster()
            self._owner = os.getpid()
            atexit.register(self.stop)

    def stop(self) -> None:
        """End the broker. Its topics are lost."""
        cluster, self._cluster = self._cluster, None
        atexit.unregister(self.stop)
        if cluster is not None and os.getpid() == self._owner:  # a forked child does not have its threads
            cluster.close()

    async def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create an empty topic at once. Raises ClientError, for example if it exists. Does not support ``configs``."""
        if configs:
            raise ConfigurationError(
                "configs", dict(configs), "the embedded broker has no topic configs; use LocalKafka"
            )
        if reason := self._running().call("topic_create", name.encode(), partitions, 1):
            raise ClientError(
                f"topic {name!r} with {partitions} partitions was not created at {self.bootstrap_servers}: {reason}"
            )

    def set_round_trip_time(self, seconds: float) -> None:
        """Delay each answer by this time, as a distant broker does. Precision: a millisecond."""
        if not 0 <= seconds <= 60:
            raise ConfigurationError("seconds", seconds, "a round trip takes 0 to 60 seconds")
        self._at_broker("set_rtt", round(seconds * 1000))

    def stop_broker(self) -> None:
        """Close all connections and refuse new ones. Topics and groups are kept for ``start_broker``."""
        self._at_broker("set_down")

    def start_broker(self) -> None:
        """Accept connections again, at the same address."""
        self._at_broker("set_up")

    def _running(self) -> MockCluster:
        if self._cluster is None:
            raise BrokerStartError("the embedded broker is not running; call start() first")
        return self._cluster

    def _at_broker(self, function: str, *arguments: object) -> None:
        if reason := self._running().call(f"broker_{function}", _BROKER, *arguments):
            raise BrokerStartError(f"the embedded broker at {self.bootstrap_servers} refused: {reason}")
