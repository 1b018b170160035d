"""Several consumers of one application, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, cast

from aioparallel.consumer import ParallelConsumer
from aioparallel.handlers.stack import HandlersOf
from aioparallel.records.errors import ConfigurationError
from aioparallel.web.restarts import RestartPolicy
from aioparallel.web.service import ConsumerService, OnFailure
from aioparallel.web.supervisor import start_all, stop_all

__all__ = ["Consumers", "consumers_of"]

AnyService = ConsumerService[Any, Any]


class Consumers(Mapping[str, AnyService]):
    """Services by name, entered and left together; on leaving, all of them drain at the same time.

    Raises ConfigurationError without services, or if two have the same name.
    """

    def __init__(self, *services: AnyService) -> None:
        self._services: dict[str, AnyService] = {}
        if not services:
            raise ConfigurationError("services", services, "must be one ConsumerService or more")
        for service in services:
            given: object = service
            if not isinstance(given, ConsumerService):
                raise ConfigurationError("services", given, "must be a ConsumerService")
            if service.name in self._services:
                raise ConfigurationError(
                    "name", service.name, "is the name of two consumers: give each ConsumerService a different one"
                )
            self._services[service.name] = service

    def __getitem__(self, name: str) -> AnyService:
        return self._services[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._services)

    def __len__(self) -> int:
        return len(self._services)

    async def __aenter__(self) -> Self:
        """Start them in order. If one cannot start, those before it are stopped. Raises ConsumerStateError if one is
        running already."""
        await start_all([service.new_supervisor for service in self._services.values()])
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all at once; each drains within its ``drain_timeout``."""
        await stop_all([one.supervisor for one in self._services.values() if one.supervisor is not None])


def consumers_of(
    first: Callable[[], ParallelConsumer[Any, Any]] | AnyService,
    rest: tuple[object, ...],
    *,
    name: str | None,
    restart: RestartPolicy | None,
    on_failure: OnFailure | None,
) -> tuple[AnyService, ...]:
    """The services that the arguments of ``running()`` mean: a factory, a handler and options; or services."""
    if isinstance(first, ConsumerService):
        if name is not None or restart is not None or on_failure is not None:
            raise ConfigurationError(
                "running", first, "has options besides a ConsumerService: give them to the ConsumerService"
            )
        return (first, *cast("tuple[AnyService, ...]", rest))
    if len(rest) != 1:
        raise ConfigurationError("running", rest, "must get make_consumer and handler, or ConsumerService objects")
    handler = cast("HandlersOf[Any, Any]", rest[0])
    return (
        ConsumerService(first, handler, name=name or "consumer", restart=restart, on_failure=on_failure or "not_ready"),
    )
