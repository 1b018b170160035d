"""What a contestant's program answers: whether it is understood, and whether the benchmark can believe it."""

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
"""Seconds between two looks at a log."""
TOLERANCE: Final = 0.05
"""Seconds that a process may lose to others between an event and its clock."""
SHORT: Final = 1_000
"""Microseconds by which a sleep may be short: uvloop's timers count whole milliseconds."""


def run_of(content: dict[str, Any]) -> Run:
    """An answer, understood. Raises ValueError that says which figure is none."""

    def wrong(name: str, what: str) -> NoReturn:
        raise ValueError(f"{name} is {content.get(name)!r:.100}, not {what}")

    if unknown := content.keys() - {*NUMBERS, *COUNTS, "stopped"}:
        raise ValueError(f"it says {', '.join(sorted(unknown))}, which nobody asked for")
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
    """The benchmark's own clock over a run, from the order to the answer, with looks at the log that the run fills.

    ``events``: how many it has in the end.
    """

    def __init__(self, log: Path, events: int) -> None:
        self._log, self._events = log, events
        self._ordered = time.monotonic()
        self._seen: float | None = None
        self.longest = math.inf
        """Seconds that the run can have taken at most, once it is over."""
        self.shortest = 0.0
        """Seconds that passed between looks at a log that was begun and one that was not full."""

    async def look(self) -> None:
        """Watch until it is cancelled."""
        while True:
            before, count = time.monotonic(), written(self._log)
            if count and self._seen is None:
                self._seen = time.monotonic()
            elif self._seen is not None and count < self._events:
                self.shortest = before - self._seen
            await asyncio.sleep(LOOK)

    def over(self) -> None:
        """The answer is there."""
        self.longest = time.monotonic() - self._ordered


def unbelievable(
    run: Run, held: int | None, work: Work, workload: Workload, order: Lane, watch: Watch
) -> Iterator[str]:
    """What cannot be true of the figures. ``held``: records that its log has behind them, None where nobody writes one.

    A run that is stopped may end more records, while it closes, than it counts.
    """
    if not run.stopped and run.ended != work.records:
        yield f"it says that {run.ended:,} of {work.records:,} records ended"
    elif run.ended > (most := work.records if held is None else held):
        yield f"it says that {run.ended:,} records ended, but only {most:,} did"
    if run.seconds > run.whole_seconds + TOLERANCE or run.whole_seconds > watch.longest + TOLERANCE:
        yield (
            f"it says that it took {run.seconds:.3f} of {run.whole_seconds:.3f} s, but its answer came after"
            f" {watch.longest:.3f} s"
        )
    # What is stopped goes on ending records while it closes, and they are seen.
    least = work.limit if run.stopped else watch.shortest
    if not run.stopped and held is not None and work.handler == "sleep":
        quick = replace(workload, sleeps=np.maximum(workload.sleeps, SHORT) - np.uint32(SHORT))
        least = max(least, quick.bound(order, work.concurrency * (work.batch or 1)) or 0.0)
    if run.seconds < least - TOLERANCE:
        yield f"it says that it took {run.seconds:.3f} s, but it took {least:.3f} s at least"
