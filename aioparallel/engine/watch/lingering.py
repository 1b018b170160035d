"""How long pending batches wait for more records. The time is the same for all batches of a handler, so they become due
in the order in which they began to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aioparallel.engine.schedule.batch_assembler import BatchAssembler, PendingBatch
from aioparallel.engine.watch.cancellation import EARLY
from aioparallel.engine.watch.deadlines import Deadlines
from aioparallel.handlers.batches import Batching

__all__ = ["Lingering"]


# The most batches that one turn of the event loop makes due.
_AT_ONCE = 500


class Lingering:
    """Makes pending batches due when their time is over, and then calls ``on_due()``. Make it within a running loop."""

    def __init__(self, assembler: BatchAssembler, on_due: Callable[[], None]) -> None:
        self._assembler = assembler
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._waits: dict[Batching, Deadlines[PendingBatch]] = {}
        self._timers: dict[Batching, asyncio.TimerHandle] = {}
        assembler.on_linger, assembler.on_over = self._began, self._over

    def close(self) -> None:
        """Stop: make no batch due any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._assembler.on_linger = self._assembler.on_over = _ignore

    def _began(self, pending: PendingBatch) -> None:
        batching = pending.batching
        waits = self._waits.get(batching)
        if waits is None:
            waits = self._waits[batching] = Deadlines(batching.terms.linger)
        waits.running[pending] = self._loop.time() + waits.seconds
        if batching not in self._timers:
            self._timers[batching] = self._loop.call_later(waits.seconds, self._passed, batching)

    def _over(self, pending: PendingBatch) -> None:
        self._waits[pending.batching].running.pop(pending, None)

    def _passed(self, batching: Batching) -> None:
        waits, now = self._waits[batching], self._loop.time()
        for pending in waits.due(now + EARLY, _AT_ONCE):
            self._assembler.make_due(pending)
        # Batches that began later still wait: set the timer for them.
        upcoming = waits.next_time
        if upcoming is None:
            del self._timers[batching]
        else:
            self._timers[batching] = self._loop.call_later(max(0.0, upcoming - now), self._passed, batching)
        self._on_due()


def _ignore(pending: PendingBatch) -> None:
    pass
