"""Cancels a handler but not its worker.

:meth:`Worker.cancel` notes the reason on the worker and cancels the worker's task. The task is suspended inside the
handler whenever this can run, so the handler gets the CancelledError. The reason belongs to one attempt: the worker
clears it when the attempt ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aioparallel.handlers.batches import Call
from aioparallel.records.record import Record

__all__ = ["EARLY", "STUCK_AFTER", "CancelReason", "Stuck", "Worker"]

# A handler that still runs so many seconds after it was cancelled is called stuck.
STUCK_AFTER = 1.0
# A timer may fire early, within the clock's resolution. Half a millisecond early counts as on time.
EARLY = 0.0005


class CancelReason(enum.Enum):
    """Why a handler was cancelled."""

    DEADLINE = enum.auto()
    DRAIN = enum.auto()
    SKIP = enum.auto()
    LOST = enum.auto()
    """The lock of its record ends, so another member may get the record."""


class Stuck(NamedTuple):
    """A handler that still runs although it was cancelled."""

    record: Record[Any, Any] | Call
    seconds: float
    """How long ago it was cancelled."""


@dataclass(slots=True, eq=False, repr=False)
class Worker:
    """One task, the record or batch that it runs, and why and when its handler was cancelled."""

    task: asyncio.Task[None] = field(init=False)
    context: Context = field(init=False)
    """Each handler runs in a copy of this context."""
    record: Record[Any, Any] | Call | None = None
    since: float = 0.0
    """When the turn that started the handler began, by ``perf_counter``."""
    cancel_reason: CancelReason | None = None
    cancelled_at: float = 0.0
    waits: bool = False
    """Whether the handler waits for something that does not count towards its timeout."""

    @property
    def records(self) -> Sequence[Record[Any, Any]]:
        """The record or the records of the batch that it runs; empty if it runs nothing."""
        if self.record is None:
            return ()
        return self.record.records if isinstance(self.record, Call) else (self.record,)

    def cancel(self, reason: CancelReason, now: float) -> None:
        """Cancel the running handler. ``now``: the event loop's time."""
        self.cancel_reason, self.cancelled_at = reason, now
        self.task.cancel()

    def end(self) -> None:
        """The attempt has ended."""
        self.record = self.cancel_reason = None
        self.waits = False

    def stuck(self, now: float) -> Stuck | None:
        """Return the handler if it still runs long after it was cancelled."""
        if self.cancel_reason is None or self.record is None or now - self.cancelled_at < STUCK_AFTER - EARLY:
            return None
        return Stuck(self.record, now - self.cancelled_at)

    async def take_back_cancels(self) -> None:
        """Clear cancellations that have outlived their handler. A pending one (requested, not yet delivered) is raised
        in the sleep below: ``uncancel`` alone does not clear it on Python 3.11 and 3.12."""
        self.cancel_reason = None  # the handler may have taken the cancellation back itself
        if not self.task.cancelling():
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while self.task.cancelling():
            self.task.uncancel()
        self.cancel_reason = None  # it may have been set during the sleep
