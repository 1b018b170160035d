"""The deadline of the current handler, for code that waits within it outside of the handler's own time.

The engine sets a clock in the context of its handlers. Elsewhere there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Protocol

__all__ = ["CLOCK", "Clock"]


class Clock(Protocol):
    """The deadline of the current handler, within its event loop."""

    def stop(self) -> Callable[[], None] | None:
        """Stop the deadline. Calling the result starts it again, from the beginning. None: the handler has no deadline
        of its own, and shared ones continue."""

    @property
    def abandoned(self) -> bool:
        """Whether the engine was closed and no longer waits for this handler."""


CLOCK: Final[ContextVar[Clock | None]] = ContextVar("aioparallel_clock", default=None)
