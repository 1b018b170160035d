"""Waiting for room: handlers that have ended and cannot let their results leave yet, in their order."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Waiters"]


class Waiters:
    """Futures of those that wait. Who is woken looks again whether there is room, and may wait anew."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self) -> asyncio.Future[None]:
        """One more waits."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def wake(self, count: int) -> None:
        """Wake so many, those that wait longest. One that is cancelled then takes no room, and passes nothing on:
        whoever uses this wakes all when nothing is left that could make room."""
        while count and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        """Wake everyone."""
        self.wake(len(self._waiting))
