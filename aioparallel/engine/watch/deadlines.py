"""Cancels handlers at their deadline. All have the same timeout, so deadlines pass in the order of the starts, and one
timer is enough.

The queue is a dict in insertion order: 0.1 microseconds to enter and to leave. Only handlers that suspend enter it: the
others end before any timer could fire.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, Generic, TypeVar

from aioparallel.engine.watch.cancellation import EARLY, STUCK_AFTER, CancelReason, Worker
from aioparallel.handlers.batches import Call
from aioparallel.observe.record_logging import coordinates
from aioparallel.records.record import Record

__all__ = ["Deadlines", "Watch"]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Deadlines(Generic[T]):
    """A queue of deadlines, each ``seconds`` after its start. Times are passed in, from any one clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running: dict[T, float] = {}
        """Deadlines, in ascending order. Each key is entered once."""

    @property
    def next_time(self) -> float | None:
        """The first deadline; None if there is none."""
        for deadline in self.running.values():
            return deadline
        return None

    def due(self, now: float, at_most: int = sys.maxsize) -> list[T]:
        """Remove and return those whose deadline has passed, the earliest first."""
        taken: list[T] = []
        for one, deadline in self.running.items():
            if deadline > now or len(taken) == at_most:
                break
            taken.append(one)
        for one in taken:
            del self.running[one]
        return taken


class Watch:
    """Cancels handlers that run longer than ``seconds``. Make it within a running event loop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadlines: Deadlines[Worker] = Deadlines(seconds)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled: dict[Worker, asyncio.TimerHandle] = {}
        self._closed = False

    def enter(self, worker: Worker) -> None:
        """The worker's handler has suspended for the first time."""
        self._deadlines.running[worker] = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self.seconds, self._passed)

    def leave(self, worker: Worker) -> None:
        """The worker's handler has ended."""
        self._deadlines.running.pop(worker, None)

    def restart(self, worker: Worker) -> None:
        """Give the worker's handler its full time again: a wait that does not count is over."""
        if not self._closed:
            self.leave(worker)  # or the deadlines would not ascend
            self.enter(worker)

    def close(self) -> None:
        """Cancel no handler any more."""
        self._closed = True
        for timer in (*self._cancelled.values(), *([self._timer] if self._timer else ())):
            timer.cancel()
        self._cancelled.clear()

    def _passed(self) -> None:
        now = self._loop.time()
        for worker in self._deadlines.due(now + EARLY):
            if worker.cancel_reason is None and worker.record is not None and not worker.waits:
                worker.cancel(CancelReason.DEADLINE, now)
                earlier = self._cancelled.pop(worker, None)
                if earlier is not None:
                    earlier.cancel()
                self._cancelled[worker] = self._loop.call_later(STUCK_AFTER, self._check_ended, worker, worker.record)
        # Deadlines ascend, so the timer never has to be moved to an earlier time.
        upcoming = self._deadlines.next_time
        self._timer = None if upcoming is None else self._loop.call_later(upcoming - now, self._passed)

    def _check_ended(self, worker: Worker, record: Record[Any, Any] | Call) -> None:
        """Warn if the handler of this record still runs, STUCK_AFTER seconds after it was cancelled."""
        del self._cancelled[worker]
        if worker.record is record and worker.cancel_reason is CancelReason.DEADLINE:
            logger.warning(
                "the handler of %s still runs although it was cancelled %g s ago, at its deadline: it blocks its key "
                "and one slot of max_concurrency until it ends; let it pass CancelledError on, and give calls in "
                "threads a time limit of their own",
                record.place,
                STUCK_AFTER,
                extra={"action": "handler_stuck", **coordinates(record)},
            )
