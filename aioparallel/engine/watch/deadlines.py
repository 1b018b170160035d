"""Cancels handlers at their deadline. All have the same timeout, so deadlines pass in the order of the starts, and one
timer is enough.

The queue is a dict in insertion order: 0.1 microseconds to enter and to leave. Only handlers that suspend enter it: the
others end before any timer could fire.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from aioparallel.engine.watch.cancellation import EARLY, STUCK_AFTER, CancelReason, Worker
from aioparallel.handlers.batches import Call
from aioparallel.observe.record_logging import coordinates
from aioparallel.records.record import Record

__all__ = ["Deadlines", "Watch"]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Deadlines(Generic[T]):
    """Deadlines, each ``seconds`` after its start. Make it within a running event loop.

    ``on_passed(some)`` is called with those that have passed, the earliest first: ``at_most`` in one turn of the loop.
    """

    def __init__(self, seconds: float, on_passed: Callable[[list[T]], None], at_most: int = sys.maxsize) -> None:
        self.seconds = seconds
        self._on_passed = on_passed
        self._at_most = at_most
        self._loop = asyncio.get_running_loop()
        self._deadlines: dict[T, float] = {}  # ascending
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, one: T) -> None:
        """Start a deadline. Each key is entered once."""
        self._deadlines[one] = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self.seconds, self._passed)

    def leave(self, one: T) -> None:
        """Remove a deadline, if it has not passed."""
        self._deadlines.pop(one, None)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _passed(self) -> None:
        now = self._loop.time()
        passed: list[T] = []
        for one, deadline in self._deadlines.items():
            if deadline > now + EARLY or len(passed) == self._at_most:
                break
            passed.append(one)
        for one in passed:
            del self._deadlines[one]
        # Deadlines ascend, so the timer never has to be moved to an earlier time.
        upcoming = next(iter(self._deadlines.values()), None)
        self._timer = None if upcoming is None else self._loop.call_later(max(0.0, upcoming - now), self._passed)
        self._on_passed(passed)


class Watch(Deadlines[Worker]):
    """Cancels handlers that run longer than ``seconds``. A worker enters when its handler suspends for the first time,
    and leaves when it has ended."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, self._cancel)
        self._cancelled: dict[Worker, asyncio.TimerHandle] = {}
        self._closed = False

    def restart(self, worker: Worker) -> None:
        """Give the worker's handler its full time again: a wait that does not count is over."""
        if not self._closed:
            self.leave(worker)  # or the deadlines would not ascend
            self.enter(worker)

    def close(self) -> None:
        """Cancel no handler any more."""
        self._closed = True
        super().close()
        for timer in self._cancelled.values():
            timer.cancel()
        self._cancelled.clear()

    def _cancel(self, workers: list[Worker]) -> None:
        now = self._loop.time()
        for worker in workers:
            if worker.cancel_reason is None and worker.record is not None and not worker.waits:
                worker.cancel(CancelReason.DEADLINE, now)
                earlier = self._cancelled.pop(worker, None)
                if earlier is not None:
                    earlier.cancel()
                self._cancelled[worker] = self._loop.call_later(STUCK_AFTER, self._check_ended, worker, worker.record)

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
