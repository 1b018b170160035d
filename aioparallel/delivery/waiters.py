"""Handlers that have ended and wait for capacity to send their results, in order."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Waiters"]


class Waiters:
    """Futures of waiting handlers. A woken one checks again whether there is capacity, and may wait again."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self) -> asyncio.Future[None]:
        """Add a waiter, which the caller awaits."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def wake(self, count: int) -> None:
        """Wake so many waiters, those that wait longest. One that is cancelled after that uses no capacity and wakes no
        other. So the caller must wake all when nothing is left that could free capacity later."""
        while count and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        """Wake all waiters."""
        self.wake(len(self._waiting))
