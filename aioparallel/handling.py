"""How records are run, whoever brings them: order, bounds, times, what is around a handler. The part of the options
that knows no Kafka.

Each wrong option is refused with its name, the value found and what is allowed, before anything begins.
"""

# Without the future import of annotations: Options inherits these fields, and as texts their types would be looked up
# in its module by whoever makes flags, or a form, out of the options.

import enum
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from aioparallel.errors import ConfigurationError

__all__ = [
    "CallNext",
    "Handling",
    "HandlingFields",
    "Middleware",
    "OrderBy",
    "Ordering",
    "Resource",
    "check_choice",
    "check_count",
    "check_time",
]

OrderBy = Callable[[Any], Hashable]
"""Of a record, or an item; None from it: no order."""
CallNext = Callable[[Any], Awaitable[object]]
Middleware = Callable[[Any, CallNext], Awaitable[object]]
"""Of what the handler gets, and what goes on with it."""
Resource = Callable[[], AbstractAsyncContextManager[object]]

# Records that may be parked unless max_parked says otherwise.
_PARKED = 10_000


class Ordering(enum.Enum):
    """Which records run one after the other."""

    KEY = "key"
    """Records of one partition with equal key bytes; records without a key have no order. The default."""
    PARTITION = "partition"
    """All records of one partition."""
    UNORDERED = "unordered"
    """None: every record may run at any time."""


class HandlingFields(TypedDict, total=False):
    """The names and types of :class:`Handling`."""

    ordering: Ordering
    order_by: OrderBy | None
    max_concurrency: int
    max_buffered: int
    drain_timeout: float
    max_parked: int | None
    handler_timeout: float | None
    middleware: Sequence[Middleware]
    resources: Mapping[str, Resource]
    isolation: Literal["context", "task"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Handling:
    """How records are run. Times are seconds."""

    ordering: Ordering = Ordering.KEY
    """Which records run one after the other."""
    order_by: OrderBy | None = None
    """A function of the record whose result names its lane within its partition, in place of the key
    (None from it: no order for this record). Needs ``ordering=Ordering.KEY``; must be quick and must not
    raise. Default None: the key's bytes."""
    max_concurrency: int = 100
    """Handlers running at once, at most. 1 is one record after the other; thousands are fine."""
    max_buffered: int = 10_000
    """Records read ahead and not yet started, over all partitions. It is the look-ahead past a slow or hot key.
    Small: lanes run dry; large: memory, and more to fetch again after a crash. The last sixteenth (1 to 1,000 records)
    is for partitions that have nothing read ahead; those take turns where they are more than there is room for.
    Records whose start did not count are read ahead once more and may pass it, at most ``max_concurrency`` of them."""
    drain_timeout: float = 20.0
    """Seconds that handlers in flight get to end when a partition is given away or the consumer closes; then
    they are cancelled. 0 cancels at once. Must fit in ``rebalance_timeout``."""
    max_parked: int | None = None
    """Records that wait for their next attempt, at most, over all partitions. Half of it is reserved for the
    partitions in equal parts, the rest is for whoever comes; a partition that finds no more room starts nothing
    new, only retries, and the others go on. Outputs that fail together may pass it, and so may the records of
    batches. None: 10,000, or four times ``max_concurrency`` if that is more."""
    handler_timeout: float | None = None
    """Seconds after which a handler is cancelled; its record fails with HandlerTimeout. None: never."""
    middleware: Sequence[Middleware] = ()
    """Async functions of a record and ``call_next``, around each attempt, the first outermost: ``return await
    call_next(record)``. They see the record deserialised."""
    resources: Mapping[str, Resource] = field(default_factory=dict)
    """Functions by name that make async context managers, opened with the consumer in this order and closed with it
    in the reverse one: ``{"http": lambda: httpx.AsyncClient()}``. Handlers reach them with ``resource("http")``."""
    isolation: Literal["context", "task"] = "context"
    """``"context"``: each record runs in its own copy of the context. ``"task"``: in an asyncio task of its own,
    for code that keys state by ``asyncio.current_task()``; costs several microseconds a record."""

    def __post_init__(self) -> None:
        check_choice("ordering", self.ordering, tuple(Ordering))
        check_choice("isolation", self.isolation, ("context", "task"))
        check_count("max_concurrency", self.max_concurrency)
        check_count("max_buffered", self.max_buffered)
        self._check_parked()
        if self.handler_timeout is not None:
            check_time("handler_timeout", self.handler_timeout)
        check_time("drain_timeout", self.drain_timeout, zero=True)
        self._check_order_by()
        self._check_around()

    @property
    def parked_bound(self) -> int:
        """``max_parked``, or what None stands for."""
        return self.max_parked or max(_PARKED, 4 * self.max_concurrency)

    def _check_parked(self) -> None:
        if self.max_parked is None:
            return
        check_count("max_parked", self.max_parked)
        if self.max_parked < 2 * self.max_concurrency:
            raise ConfigurationError(
                "max_parked",
                self.max_parked,
                f"must be at least twice max_concurrency ({self.max_concurrency}): all in flight may fail at once",
            )

    def _check_order_by(self) -> None:
        if self.order_by is None:
            return
        if not callable(self.order_by):
            raise ConfigurationError("order_by", self.order_by, "must be a function of the record")
        if self.ordering is not Ordering.KEY:
            raise ConfigurationError("order_by", self.order_by, f"needs ordering=Ordering.KEY, found {self.ordering}")

    def _check_around(self) -> None:
        if not isinstance(self.middleware, list | tuple) or not all(callable(one) for one in self.middleware):
            raise ConfigurationError("middleware", self.middleware, "must be async functions of a record and call_next")
        if not hasattr(self.resources, "items") or not all(callable(one) for one in self.resources.values()):
            raise ConfigurationError(
                "resources", self.resources, "must map names to functions that make async context managers"
            )


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raises ConfigurationError unless it is one of these."""
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in allowed):
        raise ConfigurationError(name, value, "must be one of " + ", ".join(map(str, allowed)))


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raises ConfigurationError for what is no whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(name, value, f"must be a whole number of at least {least}")


def check_time(name: str, value: object, *, zero: bool = False) -> None:
    """Raises ConfigurationError unless it is a number of seconds. ``zero``: it may be none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e7:
        raise ConfigurationError(name, value, "must be seconds, from 0 to 10,000,000")
    if value == 0 and not zero:
        raise ConfigurationError(name, value, "must be more than 0 seconds")
