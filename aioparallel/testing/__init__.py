"""Brokers for tests and demos, checkers of what is guaranteed, and an in-memory Kafka. All of it is public.

::

    brokers/          real ones: librdkafka's mock cluster, Apache Kafka as processes, in Docker
    memory/           a broker, a client and a producer in memory
    processes/        processes that cannot outlive us
    checkers.py       is anything lost, does anything overtake
    event_log.py      what handlers did, in a file that outlives their process
    filling.py        topics filled fast, in a planned order
    loop_holds.py     what holds an event loop, and how long
    pytest_plugin.py  fixtures
    local_kafka.py    ``python -m aioparallel.testing.local_kafka``: Apache Kafka for people who try things out

Nothing here is imported before it is used: the pytest plugin loads this package in every pytest run of an
environment that has ``aioparallel``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioparallel.testing.brokers.broker import Broker
    from aioparallel.testing.brokers.choice import BrokerChoice, choose_broker
    from aioparallel.testing.brokers.docker import DockerKafka, docker_available
    from aioparallel.testing.brokers.embedded import EmbeddedBroker
    from aioparallel.testing.brokers.local import LocalKafka
    from aioparallel.testing.brokers.secured import Secured
    from aioparallel.testing.checkers import DeliveryChecker, OrderChecker
    from aioparallel.testing.pytest_plugin import TopicMaker

__all__ = [
    "Broker",
    "BrokerChoice",
    "DeliveryChecker",
    "DockerKafka",
    "EmbeddedBroker",
    "LocalKafka",
    "OrderChecker",
    "Secured",
    "TopicMaker",
    "choose_broker",
    "docker_available",
]

_MODULES = {
    "Broker": "brokers.broker",
    "BrokerChoice": "brokers.choice",
    "DeliveryChecker": "checkers",
    "DockerKafka": "brokers.docker",
    "EmbeddedBroker": "brokers.embedded",
    "LocalKafka": "brokers.local",
    "OrderChecker": "checkers",
    "Secured": "brokers.secured",
    "TopicMaker": "pytest_plugin",
    "choose_broker": "brokers.choice",
    "docker_available": "brokers.docker",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, *globals()]
