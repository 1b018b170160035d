"""A source: where records come from, their lanes, and callbacks for their ends. A consumer has a source for each
assignment of a partition; an iterable has one source for all its items."""

from __future__ import annotations

import enum
import sys
from collections import deque
from collections.abc import Callable, Hashable, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioparallel.records.record import Record

if TYPE_CHECKING:
    from aioparallel.engine.schedule.batch_assembler import PendingBatch
    from aioparallel.handlers.batches import Batching

__all__ = ["NO_CEILING", "EndCounts", "Mixed", "Source"]

NO_CEILING = sys.maxsize
"""A ceiling that holds nothing back: every offset may start."""


class Mixed(enum.Enum):
    """Stands for the batching of a source."""

    MIXED = enum.auto()
    """The records of the source have different batchings, or none."""


@dataclass(slots=True, eq=False)
class EndCounts:
    """Counts the records of all sources with one name. Records that have succeeded are the rest: counting each would
    cost time."""

    admitted: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    released: int = 0
    dropped: int = 0
    failed_attempts: int = 0


def _ignore(offsets: object) -> None:
    pass


def _no_records() -> set[Record]:
    return set()


@dataclass(slots=True, eq=False, repr=False)
class Source:
    """Lanes of records. Only the scheduler and its parts write them.

    ``name``: two sources with the same name share their lanes, so only one record of such a lane may run. For Kafka it
    is the partition.

    The owner of the source sets its callbacks; an assignment sets those of its ledger:

    * ``complete(offset)``: a record is complete.
    * ``complete_all(offsets)``: several records became complete in one step.
    * ``release(offset)``: the record will be delivered again.
    * ``gave_up(offset)``: the record was dead-lettered or skipped. It is called before ``complete``.
    """

    name: Hashable
    complete: Callable[[int], None] = _ignore
    complete_all: Callable[[Sequence[int]], None] = _ignore
    release: Callable[[int], None] = _ignore
    gave_up: Callable[[int], None] = _ignore
    lanes: dict[Hashable, Record] = field(default_factory=dict)
    """The newest record of each lane, by key; see engine/schedule/lanes.py."""
    ready: deque[Record] = field(default_factory=deque)
    """Heads of lanes, and records without a lane, that may start."""
    is_queued: bool = False
    """Whether it is in the queue of those that take turns; see engine/schedule/fairness.py."""
    rank: int = 0
    buffered: int = 0
    buffered_bytes: int = 0
    # Sets for each source, so that stopping or dropping one takes time in proportion to its own records.
    parked: set[Record] = field(default_factory=_no_records)
    in_flight: set[Record] = field(default_factory=_no_records)
    holds: Sized = field(init=False)
    """What it has in its slots: the records in flight; for a source with batches, its calls in flight."""
    producing: set[Record] = field(default_factory=_no_records)
    stopped: bool = False
    """Draining or dropped: outcomes take the slow path."""
    dropped: bool = False
    """Outcomes that still arrive change nothing."""
    full: bool = False
    """Too many records are parked: only retries start."""
    map_ceiling: int = NO_CEILING
    """No record above it starts; see Scheduler.set_ceiling()."""
    paused: bool = False
    """Nothing of it starts; see Scheduler.follow_pauses()."""
    pauses: Callable[[Record], bool] | None = None
    """Returns whether a record is paused although the source is not. None: no record is."""
    ceiling: int = NO_CEILING
    """The hot path asks :meth:`may_start` for records above it: ``map_ceiling``, or -1 while the source is full or
    something of it is paused."""
    held: list[Record] = field(default_factory=list)
    """Records that are ready, but must not start now."""
    batching: Batching | Mixed | None = None
    """None: its records run one by one."""
    pending_batches: dict[Hashable, PendingBatch] = field(default_factory=dict)
    """Those with records of this source only."""
    no_more_input: bool = False
    """It brings nothing more until some of its records start or end."""
    counts: EndCounts = field(default_factory=EndCounts)
    """Shared with the other sources of this name."""

    def __post_init__(self) -> None:
        self.holds = self.in_flight

    @property
    def begun(self) -> int:
        """Records in flight or producing: what a drain waits for."""
        return len(self.in_flight) + len(self.producing)

    @property
    def unfinished(self) -> int:
        """Records admitted and not ended."""
        return self.buffered + len(self.parked) + self.begun

    @property
    def is_held_back(self) -> bool:
        """Whether it holds records back although they are not paused."""
        return bool(self.held) and (self.full or self.map_ceiling != NO_CEILING)

    def is_paused(self, record: Record) -> bool:
        """Whether this record is paused."""
        return self.paused or (self.pauses is not None and self.pauses(record))

    def may_start(self, record: Record) -> bool:
        """Whether a ready record may start: it is not paused, not above the ceiling, and a retry if the source is
        full."""
        if self.full and not record._parks:
            return False
        return record.offset <= self.map_ceiling and not self.is_paused(record)

    @property
    def current(self) -> bool:
        """Whether outcomes of its records still count."""
        return not self.dropped

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
