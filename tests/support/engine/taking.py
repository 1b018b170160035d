"""Starts records of a scheduler one by one, without workers."""

from __future__ import annotations

from aioparallel.engine.schedule.scheduler import AnyRecord, Scheduler
from aioparallel.handlers.batches import Call

__all__ = ["take"]


def take(scheduler: Scheduler) -> AnyRecord | None:
    """Start the next record and return it; None if nothing is ready. For sources without batches."""
    while scheduler.has_ready:
        taken = scheduler.run_ready(lambda record: None, lambda record, ended: None, (None,))
        if taken is not None:
            assert not isinstance(taken[0], Call)
            return taken[0]
    return None
