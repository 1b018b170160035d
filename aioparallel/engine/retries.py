"""When parked records may run again. A heap; time is passed in."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable
from typing import Any

from aioparallel.records import Record

__all__ = ["RetryQueue"]

AnyRecord = Record[Any, Any]


class RetryQueue:
    """Parked records by the time of their next attempt (seconds on any one clock)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, AnyRecord]] = []
        self._sequence = itertools.count()  # records of one instant keep their order, and are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, record: AnyRecord, when: float) -> None:
        """Let ``record`` come due at ``when``."""
        heapq.heappush(self._heap, (when, next(self._sequence), record))

    @property
    def next_time(self) -> float | None:
        """When the first one comes due; None without any."""
        return self._heap[0][0] if self._heap else None

    def keep(self, wanted: Callable[[AnyRecord], bool]) -> None:
        """Forget the records that are not ``wanted``. Takes time in proportion to all."""
        self._heap = [entry for entry in self._heap if wanted(entry[2])]
        heapq.heapify(self._heap)

    def due(self, now: float, at_most: int = sys.maxsize) -> list[AnyRecord]:
        """Take out records whose time has come, in the order of their times."""
        taken: list[AnyRecord] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < at_most:
            taken.append(heapq.heappop(self._heap)[2])
        return taken
