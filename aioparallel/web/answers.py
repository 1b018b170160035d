"""The responses of ``/health/live``, ``/health/ready`` and ``/stats``: a status and a body for JSON. And of
``/metrics``."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aioparallel.observe.stats import LongestLane, Paused, Stats
from aioparallel.records.errors import ConsumerStateError
from aioparallel.records.record import TopicPartition
from aioparallel.records.user_errors import repr_of
from aioparallel.web.service import ConsumerService
from aioparallel.web.services import Consumers

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["LIVE", "METRICS", "READY", "STATS", "Answer", "live", "metrics", "ready", "stats", "together"]

LIVE: Final = "/health/live"
READY: Final = "/health/ready"
STATS: Final = "/stats"
METRICS: Final = "/metrics"

_OK: Final = 200
_UNAVAILABLE: Final = 503
_HASHED: Final = 16  # hexadecimal digits

AnyService = ConsumerService[Any, Any]


class Answer(NamedTuple):
    """HTTP status and JSON body."""

    status: int
    body: dict[str, object]


def together(consumers: tuple[AnyService | Consumers, ...]) -> Consumers:
    """One mapping of all services."""
    services: list[AnyService] = []
    for one in consumers:
        services += one.values() if isinstance(one, Consumers) else [one]
    return Consumers(*services)


def live(consumers: Mapping[str, AnyService]) -> Answer:
    """200 if all are live, else 503."""
    return _health(consumers, "live")


def ready(consumers: Mapping[str, AnyService]) -> Answer:
    """200 if all are ready, else 503."""
    return _health(consumers, "ready")


def _health(consumers: Mapping[str, AnyService], asked: str) -> Answer:
    bodies: dict[str, dict[str, object]] = {}
    for name, service in consumers.items():
        health = service.health()
        bodies[name] = {
            "live": health.live,
            "ready": health.ready,
            "reason": health.reason,
            "restarts": service.restarts,
            "problems": [{"kind": one.kind.value, "message": one.message} for one in health.problems],
        }
    holds = all(body[asked] for body in bodies.values())
    return Answer(_OK if holds else _UNAVAILABLE, {asked: holds, "consumers": bodies})


def stats(consumers: Mapping[str, AnyService]) -> Answer:
    """The fields of Stats, and ``giving_away``, by consumer; null for one that has not run yet."""
    return Answer(_OK, {name: _stats(service) for name, service in consumers.items()})


def metrics(registry: CollectorRegistry | None) -> Callable[[str], Awaitable[tuple[bytes, str]]]:
    """An async function that takes the Accept header of a request and returns the body for Prometheus, and its content
    type.

    Raises ImportError without prometheus-client.
    """
    from aioparallel.observe.metrics.prometheus import expose  # noqa: PLC0415 - only who has metrics has its library

    return partial(expose, registry=registry)


def _stats(service: AnyService) -> object:
    try:
        return _plain(service.stats())
    except ConsumerStateError:
        return None


def _plain(value: Any) -> object:
    """The value as JSON types."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, TopicPartition):
        return {"topic": value.topic, "partition": value.partition}
    if isinstance(value, LongestLane | Paused):
        return _fields(_without_keys(value))
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return _fields(value)


def _fields(value: Any) -> dict[str, object]:
    found = {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Stats):
        found["giving_away"] = _plain(value.giving_away)
    return found


def _without_keys(value: LongestLane | Paused) -> LongestLane | Paused:
    if isinstance(value, LongestLane):
        return dataclasses.replace(value, key=_hashed(value.key))
    return dataclasses.replace(value, keys={topic: tuple(map(_hashed, keys)) for topic, keys in value.keys.items()})


def _hashed(key: object) -> object:
    """Keys may be personal data: replaces them by 16 digits of their BLAKE2b hash, for bytes the same as in
    ``RecordFilter(keys="hash")``. None (no key) and True (a whole partition) stay."""
    if key is None or key is True:
        return key
    raw = key if isinstance(key, bytes) else repr_of(key).encode(errors="backslashreplace")
    return hashlib.blake2b(raw).hexdigest()[:_HASHED]
