"""Parses a contestant's answer, and checks whether its values are possible."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from benchmarks.contestant import Work
from benchmarks.evidence import written
from benchmarks.measures import Run
from benchmarks.workload import Lane, Workload

__all__ = ["Watch", "run_of", "unbelievable"]

NUMBERS: Final = ("seconds", "whole_seconds", "cpu_seconds")
COUNTS: Final = ("round", "ended", "peak_memory")
MOST: Final = 2**63 - 1
LOOK: Final = 0.05
"""Seconds between two checks of a log."""
TOLERANCE: Final = 0.05
"""Seconds that a process may lose to others between an event and reading its clock."""
SHORT: Final = 1_000
"""Microseconds by which a sleep may be short: uvloop's timers have a resolution of milliseconds."""


def run_of(content: dict[str, Any]) -> Run:
    """Parse an answer. Raises ValueError that names a wrong value."""

    def wrong(name: str, what: str) -> NoReturn:
        raise ValueError(f"{name} is {content.get(name)!r:.100}, not {what}")

    if unknown := content.keys() - {*NUMBERS, *COUNTS, "stopped"}:
        raise ValueError(f"it has unknown values: {', '.join(sorted(unknown))}")
    for name in NUMBERS:
        value = content.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MOST:
            wrong(name, "a number of seconds")
    for name in COUNTS:
        value = content.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
            wrong(name, "a whole number")
    if type(content.get("stopped", False)) is not bool:
        wrong("stopped", "true or false")
    return Run(**content)


class Watch:
    """Times a run by the benchmark's own clock, and watches the log that the run writes.

    ``events``: number of events at the end.
    """

    def __init__(self, log: Path, events: int) -> None:
        self._log, self._events = log, events
        self._ordered = time.monotonic()
        self._seen: float | None = None
        self.longest = math.inf
        """Most seconds that the run can have taken, once it is over."""
        self.shortest = 0.0
        """Seconds for which the log was observed to have events without being complete."""

    async def look(self) -> None:
        """Watch the log until cancelled."""
        while True:
            before, count = time.monotonic(), written(self._log)
            if count and self._seen is None:
                self._seen = time.monotonic()
            elif self._seen is not None and count < self._events:
                self.shortest = before - self._seen
            await asyncio.sleep(LOOK)

    def over(self) -> None:
        """Call it when the answer has arrived."""
        self.longest = time.monotonic() - self._ordered


def unbelievable(
    run: Run, held: int | None, work: Work, workload: Workload, order: Lane, watch: Watch
) -> Iterator[str]:
    """Values that are impossible, as sentences. ``held``: number of records that the log has as handled; None without a
    log.

    A stopped run may handle more records while it closes than it counts.
    """
    if not run.stopped and run.ended != work.records:
        yield f"it reports that {run.ended:,} of {work.records:,} records ended"
    elif run.ended > (most := work.records if held is None else held):
        yield f"it reports that {run.ended:,} records ended, but only {most:,} did"
    if run.seconds > run.whole_seconds + TOLERANCE or run.whole_seconds > watch.longest + TOLERANCE:
        yield (
            f"it reports that it took {run.seconds:.3f} of {run.whole_seconds:.3f} s, but its answer came after"
            f" {watch.longest:.3f} s"
        )
    # A stopped run goes on handling records while it closes, and the watch sees them.
    least = work.limit if run.stopped else watch.shortest
    if not run.stopped and held is not None and work.handler == "sleep":
        quick = replace(workload, sleeps=np.maximum(workload.sleeps, SHORT) - np.uint32(SHORT))
        least = max(least, quick.bound(order, work.concurrency * (work.batch or 1)) or 0.0)
    if run.seconds < least - TOLERANCE:
        yield f"it reports that it took {run.seconds:.3f} s, but it took {least:.3f} s at least"
