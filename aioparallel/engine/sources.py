"""A source: where records come from, their lanes, and callbacks for their ends. A consumer has a source for each
session of a partition; an iterable has one source for all its items."""

from __future__ import annotations

import enum
import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence, Sized
from typing import TYPE_CHECKING

from aioparallel.records.record import Record

if TYPE_CHECKING:
    from aioparallel.engine.schedule.batch_assembler import PendingBatch
    from aioparallel.handlers.batches import Batching

__all__ = ["NO_CEILING", "Mixed", "Source"]

NO_CEILING = sys.maxsize
"""A ceiling that holds nothing back: every offset may start."""


class Mixed(enum.Enum):
    """Stands for the batching of a source."""

    MIXED = enum.auto()
    """The records of the source have different batchings, or none."""


def _ignore(offsets: object) -> None:
    pass


class Source:
    """Lanes of records. Only the scheduler and its parts write them.

    ``name``: two sources with the same name share their lanes, so only one record of such a lane may run. For Kafka it
    is the partition.

    The owner of the source sets its callbacks; a session sets those of its ledger:

    * ``complete(offset)``: a record is complete.
    * ``complete_all(offsets)``: several records became complete in one step.
    * ``release(offset)``: the record will be delivered again.
    * ``gave_up(offset)``: the record was dead-lettered or skipped. It is called before ``complete``.
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
        self.complete: Callable[[int], None] = _ignore
        self.complete_all: Callable[[Sequence[int]], None] = _ignore
        self.release: Callable[[int], None] = _ignore
        self.gave_up: Callable[[int], None] = _ignore
        self.lanes: dict[Hashable, Record] = {}  # the newest record of each lane, by key; see engine/schedule/lanes.py
        self.ready: deque[Record] = deque()  # heads of lanes, and records without a lane, that may start
        self.is_queued = False  # whether it is in the queue of those that take turns; see engine/schedule/fairness.py
        self.rank = 0
        self.buffered = 0
        self.buffered_bytes = 0
        # Sets for each source, so that stopping or dropping one takes time in proportion to its own records.
        self.parked: set[Record] = set()
        self.in_flight: set[Record] = set()
        self.holds: Sized = self.in_flight  # what it has in its slots; for a source with batches, its calls in flight
        self.producing: set[Record] = set()
        self.stopped = False  # draining or dropped: outcomes take the slow path
        self.dropped = False  # outcomes that still arrive change nothing
        self.full = False  # too many parked: only retries start
        self.map_ceiling = NO_CEILING  # nothing above it starts; see Scheduler.set_ceiling()
        self.ceiling = NO_CEILING  # the hot path checks records above it: map_ceiling, or -1 while full
        self.held: list[Record] = []  # ready, but above a ceiling
        self.batching: Batching | Mixed | None = None  # None: its records run one by one
        self.pending_batches: dict[Hashable, PendingBatch] = {}  # those with records of this source only
        self.no_more_input = False  # it brings nothing more until some of its records start or end

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
