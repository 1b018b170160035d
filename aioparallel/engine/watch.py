"""Workers as the pool and the deadlines see them, and the watch that cancels handlers at their deadline.

Cancelling one handler without its worker: a *hit* is marked on the worker, then its task is cancelled. The worker is
suspended inside the handler whenever that can run, so the CancelledError lands there.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import types
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from typing import Any, NamedTuple

from aioparallel.engine.deadlines import Deadlines
from aioparallel.engine.isolation import Driver, resume
from aioparallel.engine.scheduler import AnyRecord

__all__ = ["Hit", "Stuck", "Watch", "Worker"]

GoOn = Callable[[Driver, Context, object], Awaitable[object]]

logger = logging.getLogger(__name__)

# Seconds after its deadline that a cancelled handler has to end before it is called stuck.
_STUCK_AFTER = 1.0
# A timer may fire within the clock's resolution before its time; half a millisecond early is on time.
_EARLY = 0.0005


class Hit(enum.Enum):
    """Why a handler was cancelled."""

    DEADLINE = enum.auto()
    DRAIN = enum.auto()


class Worker:
    """One task; what it runs, and whether and when that was cancelled."""

    __slots__ = ("hit", "hit_at", "record", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.record: AnyRecord | None = None
        self.hit: Hit | None = None
        self.hit_at = 0.0

    def strike(self, hit: Hit, now: float) -> None:
        """Cancel the handler that runs. ``now``: of the event loop's clock."""
        if self.task is not None:
            self.hit, self.hit_at = hit, now
            self.task.cancel()

    def stuck_for(self, now: float) -> float | None:
        """Seconds that its handler goes on after it was cancelled; None when it does not, or may still end."""
        if self.hit is None or self.record is None or now - self.hit_at < _STUCK_AFTER - _EARLY:
            return None
        return now - self.hit_at


class Stuck(NamedTuple):
    """A handler that goes on although it was cancelled."""

    record: AnyRecord
    seconds: float
    """Since it was cancelled."""


class Watch:
    """Strikes workers whose handlers run longer than ``seconds``: one timer for all of them."""

    def __init__(self, seconds: float) -> None:
        self._deadlines: Deadlines[Worker] = Deadlines(seconds)
        self._timer: asyncio.TimerHandle | None = None
        self.seconds = seconds
        self._is_wound = False

    def watched(self, worker: Worker) -> GoOn:
        """:func:`~aioparallel.engine.isolation.resume`, with the worker watched until the handler has ended."""
        loop, running = asyncio.get_running_loop(), self._deadlines.running

        @types.coroutine
        def go_on(driver: Driver, context: Context, yielded: object) -> Generator[Any, Any, object]:
            running[worker] = loop.time() + self.seconds
            if not self._is_wound:
                self._is_wound = True
                self._timer = loop.call_later(self.seconds, self._passed)
            try:
                return (yield from resume(driver, context, yielded))
            finally:
                running.pop(worker, None)

        return go_on

    def close(self) -> None:
        """Strike nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _passed(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for worker in self._deadlines.due(now + _EARLY):
            if worker.hit is None:
                worker.strike(Hit.DEADLINE, now)
                loop.call_later(_STUCK_AFTER, self._name_if_stuck, worker, worker.record)
        # Deadlines come in the order of the starts, so the timer never has to be set earlier than it is.
        upcoming = self._deadlines.next_time
        self._is_wound = upcoming is not None
        if upcoming is not None:
            self._timer = loop.call_later(upcoming - now, self._passed)

    def _name_if_stuck(self, worker: Worker, record: AnyRecord | None) -> None:
        if record is not None and worker.record is record and worker.hit is Hit.DEADLINE:
            logger.warning(
                "the handler of %s offset %d goes on although it was cancelled %g s ago, at its deadline: it keeps its "
                "key and one of max_concurrency until it ends; let CancelledError pass in it",
                record.topic_partition,
                record.offset,
                _STUCK_AFTER,
                extra={"action": "handler_stuck", "offset": record.offset},
            )
