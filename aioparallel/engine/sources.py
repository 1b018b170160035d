"""A source: where records come from, in lanes, and what hears that they are complete. Whoever feeds the engine has one
kind of it: a member of a consumer group one for each session, an iterable one for all its items."""

from __future__ import annotations

import enum
import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence, Sized
from typing import TYPE_CHECKING

from aioparallel.records import Record

if TYPE_CHECKING:
    from aioparallel.batches import Batching
    from aioparallel.engine.batch_assembler import PendingBatch

__all__ = ["NO_CEILING", "Mixed", "Source"]

NO_CEILING = sys.maxsize
"""Every offset may start."""


class Mixed(enum.Enum):
    """In the place of a batching."""

    MIXED = enum.auto()
    """Each record of the source tells its own, or none."""


def _no_ledger(offsets: object) -> None:
    """Nobody asks what is complete."""


class Source:
    """Lanes of records, as the scheduler keeps them; nobody else writes them.

    ``name``: lanes of two sources of one name are the same lanes, of which only one may run; a partition, for Kafka.
    ``complete(offset)`` hears of a record that has ended by itself, ``complete_all(offsets)`` of all that have ended in
    one turn, ``release(offset)`` of one that is to be delivered again, ``gave_up(offset)``, before it is complete, of
    one that was dead-lettered or skipped. They belong to whoever made the source: a session sets those of its ledger.
    """

    __slots__ = (
        "batching",
        "buffered",
        "buffered_bytes",
        "ceiling",
        "complete",
        "complete_all",
        "dropped",
        "full",
        "gave_up",
        "held",
        "holds",
        "in_flight",
        "is_queued",
        "lanes",
        "map_ceiling",
        "name",
        "no_more_input",
        "parked",
        "pending_batches",
        "producing",
        "rank",
        "ready",
        "release",
        "stopped",
    )

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.complete: Callable[[int], None] = _no_ledger
        self.complete_all: Callable[[Sequence[int]], None] = _no_ledger
        self.release: Callable[[int], None] = _no_ledger
        self.gave_up: Callable[[int], None] = _no_ledger
        self.lanes: dict[Hashable, Record] = {}  # by key, the record that came last; see lanes.py
        self.ready: deque[Record] = deque()  # heads of lanes, and records without order
        self.is_queued = False  # among those that take turns; see fairness.py
        self.rank = 0
        self.buffered = 0
        self.buffered_bytes = 0
        # By source, so that to stop or drop one takes time by what it has, not by what all have.
        self.parked: set[Record] = set()
        self.in_flight: set[Record] = set()
        self.holds: Sized = self.in_flight  # of the slots; for one with batches its calls in flight
        self.producing: set[Record] = set()
        self.stopped = False  # draining or dropped: outcomes take the slow path
        self.dropped = False  # over: outcomes that still arrive change nothing
        self.full = False  # too many parked: only retries start
        self.map_ceiling = NO_CEILING  # nothing above it starts; see Scheduler.set_ceiling()
        self.ceiling = NO_CEILING  # nothing above it starts without a closer look: map_ceiling, or -1 while full
        self.held: list[Record] = []  # ready, but not to be started now
        self.batching: Batching | Mixed | None = None  # its records run alone, or in batches
        self.pending_batches: dict[Hashable, PendingBatch] = {}  # of its records alone
        self.no_more_input = False  # brings nothing more before some of its records start, or end

    @property
    def begun(self) -> int:
        """Records in flight or producing: what a drain waits for."""
        return len(self.in_flight) + len(self.producing)

    @property
    def current(self) -> bool:
        """Whether outcomes of its records still count."""
        return not self.dropped

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
