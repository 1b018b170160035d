"""The deadline of the handler that runs here, for what waits within it and is not the handler's own time.

The engine sets one for each of its workers, in the context that its handlers run in; elsewhere there is none.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol

__all__ = ["CLOCK", "Clock"]


class Clock(Protocol):
    """Of one worker, within its event loop."""

    def stop(self) -> bool:
        """Time does not count from now on. False: it is not the time of who asks, and goes on."""

    def restart(self) -> None:
        """It counts again, from zero. For who has stopped it."""

    @property
    def abandoned(self) -> bool:
        """Whether the engine was closed and waits for this handler no more."""


CLOCK: Final[ContextVar[Clock | None]] = ContextVar("aioparallel_clock", default=None)
