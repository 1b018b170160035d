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
        self.turns = 0
        self.moments: dict[int, asyncio.Future[None]] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready, and nothing ever will be")
        self.now += max(_TURN, timeout)
        self.turns += 1
        if (moment := self.moments.pop(self.turns, None)) is not None and not moment.done():
            moment.set_result(None)
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and moves on when everybody waits, however busy the machine is."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def block(self, seconds: float) -> None:
        """Let so much time pass within this turn, as a handler does that blocks the loop."""
        self._virtual.now += seconds

    async def turns(self, count: int) -> None:
        """Wait for so many turns of the loop. Unlike ``sleep(0)`` in a loop, this lets time pass."""
        moment = self._virtual.moments[self._virtual.turns + max(1, count)] = self.create_future()
        await moment

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
