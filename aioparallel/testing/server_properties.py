"""How the one-node Kafka brokers of this package are configured, in a process as in a container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioparallel.errors import ConfigurationError

__all__ = ["broker_properties", "checked"]

_OURS: Final = frozenset(
    {
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.voters",
        "listeners",
        "log.dir",
        "log.dirs",
        "node.id",
        "process.roles",
    }
)


def checked(server_properties: Mapping[str, str] | None) -> dict[str, str]:
    """A caller's properties. Raises ConfigurationError for those about where a broker listens and keeps its data."""
    properties = dict(server_properties or {})
    if refused := sorted(_OURS & properties.keys()):
        raise ConfigurationError("server_properties", ", ".join(refused), "set by the broker itself; leave them out")
    return properties


def broker_properties() -> dict[str, str]:
    """Broker properties for one node under test: quick, small, and strict where real clusters are strict."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        # A test that forgets to create its topic shall fail, not get one with the wrong partitions.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        # After a kill the controller refuses the new process until the old one's session ends; 9 s by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # By default the cleaner alone takes 128 MB.
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
