"""Who waits until nothing of some sources is in flight or producing any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aioparallel.engine.sources import Source

__all__ = ["Drains"]


class _Wait:
    """One wait, and which of its sources still have something begun."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.left = {source for source in sources if source.begun and not source.dropped}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.look()

    def look(self) -> None:
        if not self.left and not self.done.done():
            self.done.set_result(None)


class Drains:
    """A rebalance and a close may drain the same sources at once: each has its own wait."""

    def __init__(self) -> None:
        self._waits: list[_Wait] = []

    async def wait(self, sources: Iterable[Source], seconds: float) -> bool:
        """Whether within ``seconds`` nothing of these, all of them stopped, is in flight or producing any more, or they
        are dropped."""
        wait = _Wait(sources)
        self._waits.append(wait)
        try:
            await asyncio.wait([wait.done], timeout=seconds)
        finally:
            self._waits.remove(wait)
        return wait.done.done()

    def drained(self, source: Source) -> None:
        """Nothing of it is in flight or producing any more, or nobody waits for that."""
        for wait in self._waits:
            wait.left.discard(source)
            wait.look()
