"""When handlers must have ended: one timeout for all, so deadlines come in the order of the starts, and one timer does.

A dict in insertion order is all it takes: 0.1 microseconds to enter and to leave. Entered are only handlers that
suspend: the others end before any timer could fire.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, Generic, TypeVar

from aioparallel.batches import Call
from aioparallel.engine.cancellation import EARLY, STUCK_AFTER, CancelReason, Worker
from aioparallel.record_logging import coordinates
from aioparallel.records import Record

__all__ = ["Deadlines", "Watch"]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Deadlines(Generic[T]):
    """Deadlines of whatever runs, ``seconds`` after each start (on any one clock). Plain, no clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running: dict[T, float] = {}
        """What runs, with its deadline. Never entered twice."""

    @property
    def next_time(self) -> float | None:
        """The first deadline; None when nothing runs."""
        for deadline in self.running.values():
            return deadline
        return None

    def due(self, now: float, at_most: int = sys.maxsize) -> list[T]:
        """Take out those whose deadline has come, the earliest first."""
        taken: list[T] = []
        for one, deadline in self.running.items():
            if deadline > now or len(taken) == at_most:
                break
            taken.append(one)
        for one in taken:
            del self.running[one]
        return taken


class Watch:
    """Strikes workers whose handlers run longer than ``seconds``. Made within a running event loop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadlines: Deadlines[Worker] = Deadlines(seconds)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._struck: dict[Worker, asyncio.TimerHandle] = {}
        self._closed = False

    def enter(self, worker: Worker) -> None:
        """The handler it runs has suspended for the first time."""
        self._deadlines.running[worker] = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self.seconds, self._passed)

    def leave(self, worker: Worker) -> None:
        """Its handler has ended."""
        self._deadlines.running.pop(worker, None)

    def restart(self, worker: Worker) -> None:
        """What its handler has waited for is there: its time begins anew."""
        if not self._closed:
            self.leave(worker)  # deadlines stand in the order of the starts
            self.enter(worker)

    def close(self) -> None:
        """Strike nobody any more."""
        self._closed = True
        for timer in (*self._struck.values(), *([self._timer] if self._timer else ())):
            timer.cancel()
        self._struck.clear()

    def _passed(self) -> None:
        now = self._loop.time()
        for worker in self._deadlines.due(now + EARLY):
            if worker.cancel_reason is None and worker.record is not None and not worker.waits:
                worker.cancel(CancelReason.DEADLINE, now)
                earlier = self._struck.pop(worker, None)
                if earlier is not None:
                    earlier.cancel()
                self._struck[worker] = self._loop.call_later(STUCK_AFTER, self._look, worker, worker.record)
        # Deadlines come in the order of the starts, so the timer never has to be set earlier than it is.
        upcoming = self._deadlines.next_time
        self._timer = None if upcoming is None else self._loop.call_later(upcoming - now, self._passed)

    def _look(self, worker: Worker, record: Record[Any, Any] | Call) -> None:
        """The handler of this record was struck a while ago."""
        del self._struck[worker]
        if worker.record is record and worker.cancel_reason is CancelReason.DEADLINE:
            logger.warning(
                "the handler of %s goes on although it was cancelled %g s ago, at its deadline: it keeps its "
                "key and one of max_concurrency until it ends; let CancelledError pass in it, and give what it does in "
                "a thread a time limit there",
                record.place,
                STUCK_AFTER,
                extra={"action": "handler_stuck", **coordinates(record)},
            )
