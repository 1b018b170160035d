"""An event loop in virtual time: waiting costs nothing, and an hour passes in no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["VirtualLoop"]

T = TypeVar("T")

# Seconds that a turn of the loop takes, so that timers expire even if a task is always ready (``sleep(0)`` for ever).
_TURN = 1e-6


class _VirtualSelector(selectors.DefaultSelector):
    """Jumps over the time that the loop would have slept."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready, and nothing ever will be")
        self.now += max(_TURN, timeout)
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and moves on when everybody waits, however busy the machine is."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Done at once: a real thread would take no time here, and an hour might pass meanwhile."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done
