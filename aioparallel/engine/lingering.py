"""How long gatherings wait for more: one time for each handler, so they come due in the order in which they began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aioparallel.batches import Batching
from aioparallel.engine.deadlines import Deadlines
from aioparallel.engine.gathering import Gatherer, Gathering
from aioparallel.engine.hits import EARLY

__all__ = ["Lingering"]


# Gatherings that one turn of the event loop makes due, at most.
_AT_ONCE = 500


class Lingering:
    """Makes gatherings due when they have lingered. ``on_due()`` hears that some are. Made within a running loop."""

    def __init__(self, gatherer: Gatherer, on_due: Callable[[], None]) -> None:
        self._gatherer = gatherer
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._waits: dict[Batching, Deadlines[Gathering]] = {}
        self._timers: dict[Batching, asyncio.TimerHandle] = {}
        gatherer.on_linger, gatherer.on_over = self._began, self._over

    def close(self) -> None:
        """Make nothing due any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._gatherer.on_linger = self._gatherer.on_over = _ignore

    def _began(self, gathering: Gathering) -> None:
        batching = gathering.batching
        waits = self._waits.get(batching)
        if waits is None:
            waits = self._waits[batching] = Deadlines(batching.terms.linger)
        waits.running[gathering] = self._loop.time() + waits.seconds
        if batching not in self._timers:
            self._timers[batching] = self._loop.call_later(waits.seconds, self._passed, batching)

    def _over(self, gathering: Gathering) -> None:
        self._waits[gathering.batching].running.pop(gathering, None)

    def _passed(self, batching: Batching) -> None:
        waits, now = self._waits[batching], self._loop.time()
        for gathering in waits.due(now + EARLY, _AT_ONCE):
            self._gatherer.make_due(gathering)
        # The timer goes on where some wait: they began after those it was set for.
        upcoming = waits.next_time
        if upcoming is None:
            del self._timers[batching]
        else:
            self._timers[batching] = self._loop.call_later(max(0.0, upcoming - now), self._passed, batching)
        self._on_due()


def _ignore(gathering: Gathering) -> None:
    pass
