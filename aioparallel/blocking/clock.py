"""The deadline of the handler that runs here, for what waits within it and is not the handler's own time.

The engine sets one in the context that its handlers run in; elsewhere there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Protocol

__all__ = ["CLOCK", "Clock"]


class Clock(Protocol):
    """Of the handler that asks, within its event loop."""

    def stop(self) -> Callable[[], None] | None:
        """Its time does not count until what comes back is called; then it begins anew. None: who asks has no time of
        its own, and that of others goes on."""

    @property
    def abandoned(self) -> bool:
        """Whether the engine was closed and waits for this handler no more."""


CLOCK: Final[ContextVar[Clock | None]] = ContextVar("aioparallel_clock", default=None)
