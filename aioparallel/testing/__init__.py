"""Brokers for tests and demos, checkers of the guarantees, and an in-memory Kafka. Everything here is public.

::

    brokers/          real brokers: librdkafka's mock cluster, Apache Kafka as processes or in Docker
    memory/           an in-memory broker, client and producer
    processes/        processes that end with this one
    checkers.py       check that no record is lost and that keys stay in order
    event_log.py      records what handlers do, in a file that survives their process
    filling.py        fills topics fast, in a planned order
    loop_holds.py     measures which callbacks hold an event loop, and how long
    pytest_plugin.py  fixtures
    local_kafka.py    ``python -m aioparallel.testing.local_kafka``: Apache Kafka for experiments

Modules are imported on first use, because pytest loads this package for its plugin in every environment that has
``aioparallel``.
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
