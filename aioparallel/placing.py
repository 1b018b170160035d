"""Handlers that want to know where they run: they open what they need with the consumer, or with the map of items, and
close it with that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from aioparallel.handling import Resource

if TYPE_CHECKING:
    from aioparallel.handlers import Handler, Handlers

__all__ = ["Place", "Placeable", "Placed", "placed", "placed_by_topic"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where handlers run. ``max_concurrency``: as many at once. ``group_id``: of the consumer; None: they get items,
    which are no records of Kafka."""

    max_concurrency: int
    group_id: str | None = None


class Placed(NamedTuple):
    """What runs there."""

    handler: Any
    resources: Mapping[str, Resource]
    """Opened before the first record, and closed at the end; reached by :func:`aioparallel.resource`."""


class Placeable(ABC):
    """A handler that cannot run anywhere."""

    @abstractmethod
    def placed(self, place: Place, name: str) -> Placed:
        """What runs at ``place``. ``name``: no other of its handlers has it. Raises ConfigurationError where it cannot
        run there."""


def placed(handler: Any, place: Place, name: str = "handler") -> Placed:
    """What runs there, of one handler of any kind."""
    return handler.placed(place, name) if isinstance(handler, Placeable) else Placed(handler, {})


def placed_by_topic(handlers: Handlers, place: Place) -> tuple[Handlers, Mapping[str, Resource]]:
    """The same of one for all topics, or one by topic; those that are given for several stay one."""
    if not isinstance(handlers, Mapping):
        found = placed(handlers, place)
        return found.handler, found.resources
    made: dict[int, Placed] = {}
    by_topic: dict[str, Handler] = {}
    for topic, handler in handlers.items():
        if id(handler) not in made:
            made[id(handler)] = placed(handler, place, f"handler of {topic}")
        by_topic[topic] = made[id(handler)].handler
    return by_topic, {name: one for found in made.values() for name, one in found.resources.items()}
