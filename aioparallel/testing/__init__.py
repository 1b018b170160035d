"""Brokers for tests and demos, checkers of what is guaranteed, and an in-memory Kafka. All of it is public.

Nothing here is imported before it is used: the pytest plugin loads this package in every pytest run of an
environment that has ``aioparallel``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioparallel.testing.brokers import Broker
    from aioparallel.testing.checkers import DeliveryChecker, OrderChecker
    from aioparallel.testing.choice import BrokerChoice, choose_broker
    from aioparallel.testing.containers import DockerKafka, docker_available
    from aioparallel.testing.embedded import EmbeddedBroker
    from aioparallel.testing.local_kafka import LocalKafka
    from aioparallel.testing.pytest_plugin import TopicMaker

__all__ = [
    "Broker",
    "BrokerChoice",
    "DeliveryChecker",
    "DockerKafka",
    "EmbeddedBroker",
    "LocalKafka",
    "OrderChecker",
    "TopicMaker",
    "choose_broker",
    "docker_available",
]

_MODULES = {
    "Broker": "brokers",
    "BrokerChoice": "choice",
    "DeliveryChecker": "checkers",
    "DockerKafka": "containers",
    "EmbeddedBroker": "embedded",
    "LocalKafka": "local_kafka",
    "OrderChecker": "checkers",
    "TopicMaker": "pytest_plugin",
    "choose_broker": "choice",
    "docker_available": "containers",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, *globals()]
