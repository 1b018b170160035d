"""How the Kafka brokers of this package are configured, in a process as in a container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioparallel.errors import ConfigurationError

__all__ = ["broker_properties", "checked", "replicas"]

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


def replicas(brokers: int) -> int:
    """How many brokers have each record of a topic: three, or all where there are fewer."""
    return min(3, brokers)


def broker_properties(brokers: int = 1) -> dict[str, str]:
    """Properties for nodes under test: quick, small, and strict where real clusters are strict.

    Those of one node, broker and controller; with several ``brokers`` what is said of roles is to be overridden.
    """
    copies, in_sync = str(replicas(brokers)), str(_in_sync(brokers))
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        # A test that forgets to create its topic shall fail, not get one with the wrong partitions.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        # By default the cleaner alone takes 128 MB.
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
        **(_one_broker() if brokers == 1 else _several_brokers(in_sync)),
    }


def _in_sync(brokers: int) -> int:
    """How many of them must have a record before it is acknowledged: two, if one more may then be missing."""
    return max(1, min(2, brokers - 1))


def _one_broker() -> dict[str, str]:
    return {
        # After a kill the controller refuses the new process until the old one's session ends; 9 s by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }


def _several_brokers(in_sync: str) -> dict[str, str]:
    return {
        "min.insync.replicas": in_sync,
        # How long a broker may hang before the others lead its partitions, and before theirs go on without it: with
        # acks=all they wait for each replica that is in sync. 9 s and 30 s by default.
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "300",
        "replica.lag.time.max.ms": "1500",
        # Broker 2 is rack-2, and so on: consumers with a client_rack read from there (KIP-392).
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        # The preferred leaders lead again soon after a restart, as in real clusters, where it takes 5 minutes.
        "leader.imbalance.check.interval.seconds": "5",
    }
