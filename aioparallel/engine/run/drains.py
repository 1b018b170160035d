"""Waits until nothing of some sources is in flight or producing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aioparallel.engine.sources import Source

__all__ = ["Drains"]


class _Wait:
    """One wait, and those of its sources that still have records in flight or producing."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.left = {source for source in sources if source.begun and not source.dropped}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.check()

    def check(self) -> None:
        if not self.left and not self.done.done():
            self.done.set_result(None)


class Drains:
    """A rebalance and a close may drain the same sources at once: each has its own wait."""

    def __init__(self) -> None:
        self._waits: list[_Wait] = []

    async def wait(self, sources: Iterable[Source], seconds: float) -> bool:
        """Wait until these stopped sources have nothing in flight or producing. False: not within ``seconds``."""
        wait = _Wait(sources)
        self._waits.append(wait)
        try:
            await asyncio.wait([wait.done], timeout=seconds)
        finally:
            self._waits.remove(wait)
        return wait.done.done()

    def drained(self, source: Source) -> None:
        """The source has nothing in flight or producing, or is dropped."""
        for wait in self._waits:
            wait.left.discard(source)
            wait.check()
