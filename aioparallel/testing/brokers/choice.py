"""Chooses a broker for this machine."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from aioparallel.records.errors import ConfigurationError
from aioparallel.testing.brokers.broker import Broker
from aioparallel.testing.brokers.docker import DockerKafka, docker_available
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from aioparallel.testing.brokers.local import LocalKafka, local_kafka_available

__all__ = ["BrokerChoice", "Preference", "choose_broker"]

Preference = Literal["auto", "local", "docker", "embedded"]


class BrokerChoice(NamedTuple):
    """A broker that is not started yet, and the reason for the choice."""

    broker: Broker
    reason: str


def choose_broker(preference: Preference = "auto") -> BrokerChoice:
    """The requested broker, or with ``"auto"`` the most realistic one that this machine can run.

    ``"auto"``: LocalKafka if there is Java and the jars are cached or Maven can fetch them, else DockerKafka if a
    Docker engine answers, else EmbeddedBroker. Takes up to a second, to run ``java -version`` and check the jars.
    Raises ConfigurationError for another preference. Starting may still raise BrokerStartError.
    """
    if preference == "local":
        return BrokerChoice(LocalKafka(), "asked for")
    if preference == "docker":
        return BrokerChoice(DockerKafka(), "asked for")
    if preference == "embedded":
        return BrokerChoice(EmbeddedBroker(), "asked for")
    if preference != "auto":
        raise ConfigurationError("kafka broker", preference, f"must be one of {', '.join(get_args(Preference))}")
    available, local_reason = local_kafka_available()
    if available:
        return BrokerChoice(LocalKafka(), local_reason)
    if docker_available():
        return BrokerChoice(DockerKafka(), f"a Docker engine answers; without it: {local_reason}")
    return BrokerChoice(EmbeddedBroker(), f"no Docker engine answers, and no Apache Kafka: {local_reason}")
