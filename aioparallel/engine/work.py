"""What is done with each item, and how: one description for all who run items without Kafka."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, cast

from aioparallel.batches import BatchHandler
from aioparallel.binding import BindableHandler, HandlerContext
from aioparallel.errors import ConfigurationError
from aioparallel.handlers import check_handlers, check_middleware
from aioparallel.handling import Handling, check_choice, check_count
from aioparallel.option_docs import documented
from aioparallel.policies import RetryPolicy

__all__ = ["Label", "OnError", "Work"]

T = TypeVar("T")
R = TypeVar("R")

OnError = Literal["raise", "emit", "skip"]
"""What an item that has failed for good does: end it all, be an outcome like the others, or be left out."""
Label = Callable[[Any, int], str]
"""How an item, with its index, is called in messages."""


@documented
@dataclass(frozen=True, slots=True)
class Work(Generic[T, R]):
    """``handler``, an async function of an item, under the order and bounds of ``handling``.

    ``handling.order_by`` is the item's key: items of equal keys run one after the other, None is no order, and so is no
    ``order_by`` at all. Raises ConfigurationError for what cannot be run.
    """

    handler: Callable[[T], Awaitable[R]]
    """An async function of an item."""
    handling: Handling = field(default_factory=Handling)
    """Order, limits, timeouts, middleware and resources."""
    _: KW_ONLY
    retry: RetryPolicy | None = None
    """When a failed item is tried again; None: a single attempt."""
    on_error: OnError = "raise"
    """What happens when an item has failed for good. ``"raise"``: everything ends with its error. ``"emit"``: it is an
    outcome with an error. ``"skip"``: it is logged and left out."""
    in_order: bool = False
    """Outcomes in the order of the items, not as they end."""
    copy: Callable[[T], T] | None = None
    """Makes what an attempt gets in the item's place, so that it may change it; None: the item itself."""
    label: Label | None = None
    """Names an item, with its index, in messages; None: "item 17"."""
    max_buffered_bytes: int | None = None
    """Bytes of memory of the items whose outcomes are not read, with what the handler has returned for them: at this
    many no item is read, and where the outcomes alone are as many, none is started; with ``in_order`` but for the one
    that the others wait for. None: they are counted, not measured."""
    advice: str = 'on_error="emit" or "skip" goes on without it'
    """What is said to whoever is told that an item has ended it all."""

    def __post_init__(self) -> None:
        if isinstance(self.handler, Mapping):
            raise ConfigurationError("handler", self.handler, "must be one async function of the item")
        check_handlers(cast("Any", self.handler), takes="the item")
        if isinstance(self.handler, BatchHandler) and self.handler.max_bytes is not None:
            raise ConfigurationError(
                "batches max_bytes", self.handler.max_bytes, "is for Kafka's records: items have no size; leave it out"
            )
        if not isinstance(self.handling, Handling):
            raise ConfigurationError("handling", self.handling, "must be a Handling(...)")
        check_middleware(self.handling.middleware, takes="the item")
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise ConfigurationError("retry", self.retry, "must be None, for a single attempt, or a RetryPolicy")
        check_choice("on_error", self.on_error, ("raise", "emit", "skip"))
        check_choice("in_order", self.in_order, (True, False))
        if self.max_buffered_bytes is not None:
            check_count("max_buffered_bytes", self.max_buffered_bytes)
        given: object = self.handler
        if isinstance(given, BindableHandler):
            handler, resources = given.bind(HandlerContext(self.handling.max_concurrency), "handler")
            object.__setattr__(self, "handler", handler)
            both = {**self.handling.resources, **resources}
            object.__setattr__(self, "handling", replace(self.handling, resources=both))

    @property
    def bound(self) -> int:
        """Items fed whose outcomes are not read, at most."""
        each = self.handler.size if isinstance(self.handler, BatchHandler) else 1
        return self.handling.max_buffered + self.handling.max_concurrency * each
