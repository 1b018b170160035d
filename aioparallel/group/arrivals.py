"""When records arrived, by this process's own clock. Some decisions must not depend on the clocks of producers.

A record was written between two moments that the reader knows: when it had read the log to its end without this record,
and when it read this record. At the end of a log these moments are a few tenths of a second apart.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aioparallel.event_loop.steady_clock import steady_time
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import Client
from aioparallel.records.record import Record

__all__ = ["Arrival", "ArrivalWatch", "Arrivals", "arrival_of"]

_INTERVAL: Final = 0.25
"""Seconds between two checks whether logs are read to their ends. Fetches within this time count as one."""


class Arrival(NamedTuple):
    """Seconds since the epoch, by :data:`~aioparallel.event_loop.steady_clock.steady_time`."""

    seen: float
    """When the record was read."""
    absent: float
    """When the record was not in the log yet; ``-inf``: unknown."""


class Arrivals:
    """The arrivals of one assignment. Plain: times are passed in."""

    __slots__ = ("_arrivals", "_began", "_first", "all_read_at")

    def __init__(self) -> None:
        self.all_read_at = -math.inf
        """At this time the log was read to its end."""
        self._first: list[int] = []  # the first offset of each fetch, ascending
        self._arrivals: list[Arrival] = []  # the arrival of each fetch
        self._began = -math.inf  # when the last fetch was noted

    def read(self, position: int, now: float, base: int) -> None:
        """Note that records from ``position`` on were read now. ``base``: offsets below it are not needed any more."""
        again = bisect_left(self._first, position)
        del self._first[again:], self._arrivals[again:]  # nothing, unless the log has lost its tail
        if self._first and now - self._began < _INTERVAL:
            self._arrivals[-1] = Arrival(now, self._arrivals[-1].absent)
        else:
            self._began = now
            self._first.append(position)
            self._arrivals.append(Arrival(now, min(now, self.all_read_at)))
        done = max(0, bisect_right(self._first, base) - 1)
        del self._first[:done], self._arrivals[:done]

    def of(self, offset: int) -> Arrival | None:
        """Return the arrival of the record at this offset; None: this assignment has not read it."""
        found = bisect_right(self._first, offset) - 1
        return self._arrivals[found] if found >= 0 else None

    def __len__(self) -> int:
        return len(self._first)


@dataclass(eq=False, repr=False)
class ArrivalWatch:
    """Notes arrivals in the partitions of ``topics``. ``assignments()``: the current assignments."""

    _client: Client
    _topics: Collection[str]
    _assignments: Callable[[], Iterable[Assignment]]

    async def run(self) -> None:
        """Check the ends of logs until cancelled."""
        while True:
            for assignment in self._assignments():
                if assignment.partition.topic in self._topics and assignment.state is AssignmentState.OPEN:
                    self._note_end(assignment)
            await asyncio.sleep(_INTERVAL)

    def _note_end(self, assignment: Assignment) -> None:
        client, partition = self._client, assignment.partition
        end, seconds = client.end_offset_seen(partition), client.since_end_seen(partition)
        if end is not None and seconds is not None and assignment.ledger.position >= end:
            arrivals = self._of(assignment)
            arrivals.all_read_at = max(arrivals.all_read_at, steady_time() - seconds)

    def read(self, assignment: Assignment) -> None:
        """Note that more was read from the assignment's position on, before it is registered."""
        if assignment.partition.topic in self._topics:
            self._of(assignment).read(assignment.ledger.position, steady_time(), assignment.ledger.next_commit)

    def _of(self, assignment: Assignment) -> Arrivals:
        if assignment.arrivals is None:
            assignment.arrivals = Arrivals()
        return assignment.arrivals


def arrival_of(record: Record[Any, Any]) -> Arrival:
    """Return the arrival of a record that will be handled."""
    source = getattr(record, "_source", None)
    arrivals = source.arrivals if isinstance(source, Assignment) else None
    found = None if arrivals is None else arrivals.of(record.offset)
    return found or Arrival(steady_time(), -math.inf)
