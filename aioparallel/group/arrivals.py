"""When records came, by this process's own clock: for what must not go by the clocks of those who wrote them.

A record was written between two moments that the reader knows: when it had read all that stood in the log, this record
not among it, and when it read this one. At the end of a log these are some tenths of a second apart.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from aioparallel.group.client import Client
from aioparallel.group.sessions import Session, SessionState
from aioparallel.records import Record
from aioparallel.steady_clock import steady_time

__all__ = ["Arrival", "ArrivalWatch", "Arrivals", "arrival_of"]

_LOOK: Final = 0.25
"""Seconds between two looks at what is read to its end, and within which fetches count as one."""


class Arrival(NamedTuple):
    """Seconds since the epoch, by :data:`~aioparallel.steady_clock.steady_time`."""

    seen: float
    """It was read then."""
    absent: float
    """And did not stand in the log then; ``-inf``: nobody knows since when it does."""


class Arrivals:
    """Of one session. Plain; times are passed in."""

    __slots__ = ("_arrivals", "_began", "_first", "all_read_at")

    def __init__(self) -> None:
        self.all_read_at = -math.inf
        """All that stood in the log then has been read."""
        self._first: list[int] = []  # offsets with which fetches began, ascending
        self._arrivals: list[Arrival] = []  # and when these came
        self._began = -math.inf  # the last of them

    def read(self, position: int, now: float, base: int) -> None:
        """What stands from ``position`` on was read now. ``base``: below it nobody asks any more."""
        again = bisect_left(self._first, position)
        del self._first[again:], self._arrivals[again:]  # none, unless a log has lost its tail
        if self._first and now - self._began < _LOOK:
            self._arrivals[-1] = Arrival(now, self._arrivals[-1].absent)
        else:
            self._began = now
            self._first.append(position)
            self._arrivals.append(Arrival(now, min(now, self.all_read_at)))
        done = max(0, bisect_right(self._first, base) - 1)
        del self._first[:done], self._arrivals[:done]

    def of(self, offset: int) -> Arrival | None:
        """When this one came; None: it was not read here."""
        found = bisect_right(self._first, offset) - 1
        return self._arrivals[found] if found >= 0 else None

    def __len__(self) -> int:
        return len(self._first)


class ArrivalWatch:
    """Notes arrivals in the partitions of ``topics``. ``sessions()``: those held now."""

    def __init__(self, client: Client, topics: Collection[str], sessions: Callable[[], Iterable[Session]]) -> None:
        self._client = client
        self._topics = frozenset(topics)
        self._sessions = sessions

    async def run(self) -> None:
        """Look for ever; ends by cancellation."""
        while True:
            for session in self._sessions():
                if session.partition.topic in self._topics and session.state is SessionState.OPEN:
                    self._look(session)
            await asyncio.sleep(_LOOK)

    def _look(self, session: Session) -> None:
        client, partition = self._client, session.partition
        end, told = client.end_offset_seen(partition), client.since_end_seen(partition)
        if end is not None and told is not None and session.ledger.position >= end:
            arrivals = self._of(session)
            arrivals.all_read_at = max(arrivals.all_read_at, steady_time() - told)

    def read(self, session: Session) -> None:
        """From its position on more was read, which is not registered yet."""
        if session.partition.topic in self._topics:
            self._of(session).read(session.ledger.position, steady_time(), session.ledger.next_commit)

    def _of(self, session: Session) -> Arrivals:
        if session.arrivals is None:
            session.arrivals = Arrivals()
        return session.arrivals


def arrival_of(record: Record[Any, Any]) -> Arrival:
    """Of one that is to be handled."""
    source = getattr(record, "_source", None)
    arrivals = source.arrivals if isinstance(source, Session) else None
    found = None if arrivals is None else arrivals.of(record.offset)
    return found or Arrival(steady_time(), -math.inf)
