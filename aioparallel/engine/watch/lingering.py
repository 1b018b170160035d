"""How long pending batches wait for more records. The time is the same for all batches of a handler, so they become due
in the order in which they began to wait."""

from __future__ import annotations

from collections.abc import Callable

from aioparallel.engine.schedule.batch_assembler import BatchAssembler, PendingBatch
from aioparallel.engine.watch.deadlines import Deadlines
from aioparallel.handlers.batches import Batching

__all__ = ["Lingering"]


# The most batches that one turn of the event loop makes due.
_AT_ONCE = 500


class Lingering:
    """Makes pending batches due when their time is over, and then calls ``on_due()``."""

    def __init__(self, assembler: BatchAssembler, on_due: Callable[[], None]) -> None:
        self._assembler = assembler
        self._on_due = on_due
        self._waits: dict[Batching, Deadlines[PendingBatch]] = {}
        assembler.on_linger, assembler.on_over = self._began, self._over

    def close(self) -> None:
        """Stop: make no batch due any more."""
        for waits in self._waits.values():
            waits.close()
        self._assembler.on_linger = self._assembler.on_over = _ignore

    def _began(self, pending: PendingBatch) -> None:
        batching = pending.batching
        waits = self._waits.get(batching)
        if waits is None:
            waits = self._waits[batching] = Deadlines(batching.terms.linger, self._passed, _AT_ONCE)
        waits.enter(pending)

    def _over(self, pending: PendingBatch) -> None:
        self._waits[pending.batching].leave(pending)

    def _passed(self, batches: list[PendingBatch]) -> None:
        for pending in batches:
            self._assembler.make_due(pending)
        self._on_due()


def _ignore(pending: PendingBatch) -> None:
    pass
