"""Describes how items are processed without Kafka: the handler, its order, bounds and retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, cast

from aioparallel.config.handling import Handling, check_choice, check_count
from aioparallel.config.option_docs import documented
from aioparallel.config.policies import RetryPolicy
from aioparallel.handlers.batches import BatchHandler
from aioparallel.handlers.binding import BindableHandler, HandlerContext
from aioparallel.handlers.stack import check_handlers, check_middleware
from aioparallel.records.errors import ConfigurationError

__all__ = ["Label", "OnError", "Work"]

T = TypeVar("T")
R = TypeVar("R")

OnError = Literal["raise", "emit", "skip"]
"""What an item that has failed for good does: end the run, become an outcome like the others, or be left out."""
Label = Callable[[Any, int], str]
"""Names an item in messages, given the item and its index."""


@documented
@dataclass(frozen=True, slots=True)
class Work(Generic[T, R]):
    """Runs ``handler``, an async function of an item, with the order and bounds of ``handling``.

    ``handling.order_by`` returns the key of an item. Items with equal keys run one after the other. Items with the key
    None have no order. Without ``order_by`` no item has. Raises ConfigurationError for options that do not fit.
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
    """Whether outcomes come in the order of the items, not as they end."""
    copy: Callable[[T], T] | None = None
    """Makes the copy that an attempt gets, so that the handler may change it. None: it gets the item itself."""
    label: Label | None = None
    """Names an item in messages, given the item and its index. None: "item 17"."""
    max_buffered_bytes: int | None = None
    """Bytes of memory of the items whose outcomes are not read, and of those outcomes. At this limit no item is read.
    If the outcomes alone reach it, no item is started; with ``in_order``, only the one for which the others wait is.
    None: items are counted, not measured."""
    advice: str = 'on_error="emit" or "skip" goes on without it'
    """Advice in the message of the error when an item has ended the run."""

    def __post_init__(self) -> None:
        if isinstance(self.handler, Mapping):
            raise ConfigurationError("handler", self.handler, "must be one async function of the item")
        check_handlers(cast("Any", self.handler), takes="the item")
        if isinstance(self.handler, BatchHandler) and self.handler.max_bytes is not None:
            raise ConfigurationError(
                "batches max_bytes", self.handler.max_bytes, "is for Kafka records: items have no size; leave it out"
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
        """The most items that may be fed while their outcomes are not read."""
        each = self.handler.size if isinstance(self.handler, BatchHandler) else 1
        return self.handling.max_buffered + self.handling.max_concurrency * each
