"""The configuration of this package's Kafka brokers, in processes and in containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioparallel.records.errors import ConfigurationError

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
    """The caller's properties. Raises ConfigurationError for those about listeners, roles and directories."""
    properties = dict(server_properties or {})
    if refused := sorted(_OURS & properties.keys()):
        raise ConfigurationError("server_properties", ", ".join(refused), "set by the broker itself; leave them out")
    return properties


def replicas(brokers: int) -> int:
    """Number of replicas of each partition: three, or one per broker if there are fewer."""
    return min(3, brokers)


def broker_properties(brokers: int = 1) -> dict[str, str]:
    """Properties for brokers under test: fast, small, and as strict as real clusters.

    They are for a single node that is broker and controller. With several ``brokers`` the roles must be overridden.
    """
    copies, in_sync = str(replicas(brokers)), str(_in_sync(brokers))
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        # A test that forgets to create its topic must fail, rather than get one with the wrong partitions.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.min.session.timeout.ms": "1000",
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        # By default the log cleaner alone takes 128 MB.
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
        **(_one_broker() if brokers == 1 else _several_brokers(in_sync)),
    }


def _in_sync(brokers: int) -> int:
    """Number of replicas that must have a record before it is acknowledged: two, if one more may then be missing."""
    return max(1, min(2, brokers - 1))


def _one_broker() -> dict[str, str]:
    return {
        # After a kill the controller refuses the new process until the old session ends, by default 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }


def _several_brokers(in_sync: str) -> dict[str, str]:
    return {
        "min.insync.replicas": in_sync,
        # How long a hung broker delays others: until they lead its partitions, and until the partitions they lead
        # continue without it, since acks=all waits for all in-sync replicas. By default 9 s and 30 s.
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "300",
        "replica.lag.time.max.ms": "1500",
        # Broker 2 is in rack-2, and so on. Consumers with that client_rack read from it (KIP-392).
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        # Preferred leaders lead again soon after a restart. By default it takes 5 minutes.
        "leader.imbalance.check.interval.seconds": "5",
    }
