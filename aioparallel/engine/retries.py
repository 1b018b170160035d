"""When parked records may run again. A heap; time is passed in."""

from __future__ import annotations

import heapq
import itertools

from aioparallel.records import Record

__all__ = ["RetryQueue"]


class RetryQueue:
    """Parked records by the time of their next attempt (seconds on any one clock)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Record]] = []
        self._sequence = itertools.count()  # records of one instant keep their order, and are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, record: Record, when: float) -> None:
        """Let ``record`` come due at ``when``."""
        heapq.heappush(self._heap, (when, next(self._sequence), record))

    @property
    def next_time(self) -> float | None:
        """When the first one comes due; None without any."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Record]:
        """Take out every record whose time has come, in the order of their times."""
        taken = []
        while self._heap and self._heap[0][0] <= now:
            taken.append(heapq.heappop(self._heap)[2])
        return taken
