"""How handlers run: order, limits, timeouts, middleware. These options do not depend on Kafka.

A wrong option raises ConfigurationError, which names the option, its value and what is allowed.
"""

# No `from __future__ import annotations`: Options inherits these fields, and cyclopts would resolve their types, as
# text, in the module of Options.

import enum
import inspect
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from aioparallel.config.callables import check_plain
from aioparallel.config.option_docs import documented
from aioparallel.records.errors import ConfigurationError

__all__ = [
    "CallNext",
    "Handling",
    "Middleware",
    "OrderBy",
    "Ordering",
    "Resource",
    "check_choice",
    "check_count",
    "check_time",
]

OrderBy = Callable[[Any], Hashable]
"""A function of a record or an item. Equal results share a lane; None means no order."""
CallNext = Callable[[Any], Awaitable[object]]
Middleware = Callable[[Any, CallNext], Awaitable[object]]
"""A function of the handler's argument and of ``call_next``, which calls the next middleware or the handler."""
Resource = Callable[[], AbstractAsyncContextManager[object]]

_MAX_PARKED = 10_000  # records, the least that max_parked=None stands for


class Ordering(enum.Enum):
    """Which records run one after the other."""

    KEY = "key"
    """Records of one partition with equal key bytes. Records without a key have no order. The default."""
    PARTITION = "partition"
    """All records of one partition."""
    UNORDERED = "unordered"
    """None. Any record may run at any time."""


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class Handling:
    """How a consumer, or ``parallel_map``, runs handlers. Times are seconds. Wrong options raise ConfigurationError."""

    # -- Order ----------------------------------------------------------------------------------------------

    ordering: Ordering = Ordering.KEY
    """Which records run one after the other."""
    order_by: OrderBy | None = None
    """A function of the record. Records of one partition for which it returns equal values run one after the other,
    instead of records with equal keys. None from it: the record has no order. Requires ``ordering=Ordering.KEY``. The
    function must be fast, not async, and must not raise. None: the bytes of the key decide."""

    # -- Limits ---------------------------------------------------------------------------------------------

    max_concurrency: int = 100
    """Maximum number of handlers that run at once. 1 runs one record after the other; thousands are fine."""
    max_buffered: int = 10_000
    """Maximum number of records that are read ahead and not started, over all partitions. It is how far the consumer
    looks past a slow key. Small values leave handlers without work; large ones use memory, and more records are fetched
    again after a crash. The last sixteenth (1 to 1,000 records) is reserved for partitions that have no record
    buffered; if there are too many of them, they take turns. Records whose start did not count return to the buffer and
    may exceed the limit, by at most ``max_concurrency``."""
    max_parked: int | None = None
    """Maximum number of records that wait for their next attempt, over all partitions. Half of it is reserved for the
    partitions in equal parts; all partitions share the rest. A partition without capacity left starts no new records,
    only retries; the other partitions go on. Outputs that fail together, and the records of a batch, may exceed the
    limit. None: 10,000, or four times ``max_concurrency`` if that is more."""

    # -- Around the handler ---------------------------------------------------------------------------------

    handler_timeout: float | None = None
    """Seconds after which a handler is cancelled. Its record fails with HandlerTimeout. None: never."""
    drain_timeout: float = 20.0
    """Seconds that running handlers get to end when a partition is revoked or the consumer closes. Then they are
    cancelled. 0 cancels them at once. Must fit within ``rebalance_timeout``, which share groups do not have."""
    middleware: Sequence[Middleware] = ()
    """Async functions of a record and ``call_next``, called around each attempt, the first one outermost: ``return
    await call_next(record)``. They get the deserialized record."""
    resources: Mapping[str, Resource] = field(default_factory=dict)
    """Functions, by name, that return async context managers: ``{"http": lambda: httpx.AsyncClient()}``. They are
    entered in this order when the consumer opens and left in reverse order when it closes. A handler gets one with
    ``resource("http")``."""
    isolation: Literal["context", "task"] = "context"
    """``"context"``: each record runs in its own copy of the context. ``"task"``: each record runs in its own asyncio
    task, for code that keys state by ``asyncio.current_task()``. A task costs several microseconds a record."""

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
        """``max_parked``, or the number that None stands for."""
        return self.max_parked or max(_MAX_PARKED, 4 * self.max_concurrency)

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
        check_plain(self.order_by, "order_by", "the record")
        if self.ordering is not Ordering.KEY:
            raise ConfigurationError("order_by", self.order_by, f"needs ordering=Ordering.KEY, found {self.ordering}")

    def _check_around(self) -> None:
        if not isinstance(self.middleware, list | tuple) or not all(callable(one) for one in self.middleware):
            raise ConfigurationError("middleware", self.middleware, "must be async functions of a record and call_next")
        if not hasattr(self.resources, "items") or not all(callable(one) for one in self.resources.values()):
            raise ConfigurationError(
                "resources", self.resources, "must map names to functions that make async context managers"
            )
        for name, one in self.resources.items():
            if inspect.iscoroutinefunction(one):
                raise ConfigurationError(
                    f"resources[{name!r}]",
                    one,
                    "must be a plain function that makes an async context manager, and this one is async: open in its "
                    "`__aenter__`, or write it with contextlib.asynccontextmanager",
                )


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raises ConfigurationError unless ``value`` is one of ``allowed``."""
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in allowed):
        raise ConfigurationError(name, value, "must be one of " + ", ".join(map(str, allowed)))


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raises ConfigurationError unless ``value`` is an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(name, value, f"must be a whole number of at least {least}")


def check_time(name: str, value: object, *, zero: bool = False) -> None:
    """Raises ConfigurationError unless ``value`` is a number of seconds. ``zero``: 0 is allowed."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e7:
        raise ConfigurationError(name, value, "must be seconds, from 0 to 10,000,000")
    if value == 0 and not zero:
        raise ConfigurationError(name, value, "must be more than 0 seconds")
