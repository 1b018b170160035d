"""Handlers that depend on what runs them: they open what they need with the consumer, or with the map of items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from aioparallel.config.handling import Resource

if TYPE_CHECKING:
    from aioparallel.handlers.stack import Handler, Handlers
    from aioparallel.http.requests import AroundRequests

__all__ = ["BindableHandler", "BoundHandler", "HandlerContext", "bind_handlers"]


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """What runs a handler. ``max_concurrency``: calls at once. ``group_id``: of the consumer; None: the handler gets
    items, not records of Kafka. ``around_requests``: wraps what sends HTTP requests; None: nothing does."""

    max_concurrency: int
    group_id: str | None = None
    around_requests: AroundRequests | None = None


class BoundHandler(NamedTuple):
    """A handler in its context."""

    handler: Any
    resources: Mapping[str, Resource]
    """Opened before the first record and closed at the end. The handler finds them by :func:`aioparallel.resource`."""


class BindableHandler(ABC):
    """A handler that is bound before it runs."""

    @abstractmethod
    def bind(self, context: HandlerContext, name: str) -> BoundHandler:
        """Return what runs in this context. ``name``: unique among the handlers. Raises ConfigurationError if the
        handler cannot run there."""


def _bind(handler: Any, context: HandlerContext, name: str = "handler") -> BoundHandler:
    return handler.bind(context, name) if isinstance(handler, BindableHandler) else BoundHandler(handler, {})


def bind_handlers(handlers: Handlers, context: HandlerContext) -> tuple[Handlers, Mapping[str, Resource]]:
    """Bind one handler, or handlers by topic. A handler of several topics is bound once."""
    if not isinstance(handlers, Mapping):
        bound = _bind(handlers, context)
        return bound.handler, bound.resources
    made: dict[int, BoundHandler] = {}
    by_topic: dict[str, Handler] = {}
    for topic, handler in handlers.items():
        if id(handler) not in made:
            made[id(handler)] = _bind(handler, context, f"handler of {topic}")
        by_topic[topic] = made[id(handler)].handler
    return by_topic, {name: one for bound in made.values() for name, one in bound.resources.items()}
