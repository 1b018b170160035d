"""Cancelling one handler without its worker: a *hit* is marked on the worker, then its task is cancelled. The worker is
suspended inside the handler whenever that can run, so the CancelledError lands there.

A hit belongs to one start of one record: it is gone when that has ended, whatever its handler did about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Sequence
from contextvars import Context
from typing import Any, NamedTuple

from aioparallel.batches import Call
from aioparallel.records import Record

__all__ = ["EARLY", "STUCK_AFTER", "Hit", "Stuck", "Worker"]

# Seconds after its deadline that a cancelled handler has to end before it is called stuck.
STUCK_AFTER = 1.0
# A timer may fire within the clock's resolution before its time; half a millisecond early is on time.
EARLY = 0.0005


class Hit(enum.Enum):
    """Why a handler was cancelled."""

    DEADLINE = enum.auto()
    DRAIN = enum.auto()


class Stuck(NamedTuple):
    """A handler that goes on although it was cancelled."""

    record: Record[Any, Any] | Call
    seconds: float
    """Since it was cancelled."""


class Worker:
    """One task; what it runs, and whether and when that was cancelled."""

    __slots__ = ("context", "hit", "hit_at", "record", "since", "task", "waits")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.context: Context
        """Of which each handler gets a copy."""
        self.record: Record[Any, Any] | Call | None = None
        self.since = 0.0
        """When the turn began in which its handler was started, as ``perf_counter`` tells it."""
        self.hit: Hit | None = None
        self.hit_at = 0.0
        self.waits = False
        """Whether its handler waits for something that is not its own time: it has no deadline meanwhile."""

    @property
    def records(self) -> Sequence[Record[Any, Any]]:
        """What its handler has got."""
        if self.record is None:
            return ()
        return self.record.records if isinstance(self.record, Call) else (self.record,)

    def strike(self, hit: Hit, now: float) -> None:
        """Cancel the handler that runs. ``now``: of the event loop's clock."""
        self.hit, self.hit_at = hit, now
        self.task.cancel()

    def end(self) -> None:
        """The start has ended."""
        self.record = self.hit = None
        self.waits = False

    def stuck(self, now: float) -> Stuck | None:
        """Its handler, if that goes on long after it was cancelled; None when it does not, or may still end."""
        if self.hit is None or self.record is None or now - self.hit_at < STUCK_AFTER - EARLY:
            return None
        return Stuck(self.record, now - self.hit_at)

    async def take_back_cancels(self) -> None:
        """Take back a hit and cancellations that have outlived their handler. One that is pending (requested, not
        delivered) lands in this sleep; ``uncancel`` alone would not clear it on Python 3.11 and 3.12."""
        self.hit = None  # the handler may have taken the cancellation back itself
        if not self.task.cancelling():
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while self.task.cancelling():
            self.task.uncancel()
        self.hit = None  # of that sleep
