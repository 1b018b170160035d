"""Several consumers of one application, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, cast

from aioparallel.consumer import ParallelConsumer
from aioparallel.errors import ConfigurationError
from aioparallel.handlers import HandlersOf
from aioparallel.web.lives import begin, end
from aioparallel.web.restarts import RestartPolicy
from aioparallel.web.service import ConsumerService, OnFailure

__all__ = ["Consumers", "consumers_of"]

AnyService = ConsumerService[Any, Any]


class Consumers(Mapping[str, AnyService]):
    """Services by name, entered and left together: left, all of them drain at once.

    Raises ConfigurationError for none, and for two of one name.
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
                    "name", service.name, "is the name of two consumers: give each ConsumerService another one"
                )
            self._services[service.name] = service

    def __getitem__(self, name: str) -> AnyService:
        return self._services[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._services)

    def __len__(self) -> int:
        return len(self._services)

    async def __aenter__(self) -> Self:
        """One after the other; where one cannot start, those before it end. Raises ConsumerStateError where one runs
        already."""
        await begin(tuple(self._services.values()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Each drains within its deadline, all at once."""
        await end(self._services.values())


def consumers_of(
    first: Callable[[], ParallelConsumer[Any, Any]] | AnyService,
    rest: tuple[object, ...],
    *,
    name: str | None,
    restart: RestartPolicy | None,
    on_failure: OnFailure | None,
) -> tuple[AnyService, ...]:
    """The services that ``running()`` was given: a factory and a handler, with options, or services ready made."""
    if isinstance(first, ConsumerService):
        if name is not None or restart is not None or on_failure is not None:
            raise ConfigurationError(
                "running", first, "has options beside a ConsumerService: give them to the ConsumerService"
            )
        return (first, *cast("tuple[AnyService, ...]", rest))
    if len(rest) != 1:
        raise ConfigurationError("running", rest, "must get make_consumer and handler, or ConsumerService objects")
    handler = cast("HandlersOf[Any, Any]", rest[0])
    return (
        ConsumerService(first, handler, name=name or "consumer", restart=restart, on_failure=on_failure or "not_ready"),
    )
