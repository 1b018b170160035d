"""What the sync core should do, in plain lists and sets, written from the design's words rather than from the code.

It is slow and obvious: it keeps every unfinished record in order with its state, and recounts everything each time.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aioparallel.config.handling import Ordering
from aioparallel.group.assignment import Assignment
from aioparallel.offsets import OffsetMap
from aioparallel.records.record import Record

GAP = "gap"
"""In a log: an offset that is never delivered (compacted, a transaction marker, aborted)."""
Cell = bytes | None | str
"""What a log holds at an offset: a record's key, or GAP."""


class State(enum.Enum):
    """The state of one record of one assignment."""

    BUFFERED = "buffered"
    PARKED = "parked"
    IN_FLIGHT = "in flight"
    PRODUCING = "producing"
    ENDED = "ended"
    DROPPED = "dropped"


BEGUN = (State.IN_FLIGHT, State.PRODUCING)
UNFINISHED = (State.BUFFERED, State.PARKED, *BEGUN)


@dataclass(eq=False)
class Entry:
    """One admitted record."""

    record: Record[Any, Any]
    owner: Holding
    lane: Hashable
    """Which lane within the partition; None without order."""
    state: State = State.BUFFERED
    tried: bool = False
    """Whether it was parked once, or put back: it is never buffered again."""
    woken: bool = False
    failed: int = 0
    """Attempts."""

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def waits(self) -> bool:
        """Whether it may start once no earlier record of its lane is unfinished."""
        return self.state is State.BUFFERED or (self.state is State.PARKED and self.woken)


class Known:
    """The model's ledger: what is known of a partition's offsets."""

    def __init__(self, restored: OffsetMap) -> None:
        self.position = restored.base_offset
        self.restored_until = restored.highest_succeeded
        self.incomplete = set(restored.incompletes)

    def deliver(self, offsets: Iterable[int], next_offset: int) -> list[int]:
        """A fetch brought these offsets and no others up to ``next_offset``. Returns those that have to run."""
        delivered = set(offsets)
        run = []
        for offset in range(self.position, next_offset):
            if offset not in delivered:
                self.incomplete.discard(offset)
            elif offset > self.restored_until or offset in self.incomplete:
                self.incomplete.add(offset)
                run.append(offset)
        self.position = max(self.position, next_offset)
        return run

    @property
    def until(self) -> int:
        """The last offset of which anything is known."""
        return max(self.position - 1, self.restored_until)

    @property
    def base(self) -> int:
        """The offset to commit: the first that is not complete."""
        return min(self.incomplete, default=self.until + 1)

    def complete(self, offset: int) -> bool:
        return offset <= self.until and offset not in self.incomplete

    def said(self) -> tuple[int, frozenset[int]]:
        """Two of these are equal when nothing happened between them."""
        return self.position, frozenset(self.incomplete)


@dataclass(eq=False)
class Holding:
    """One partition while this process holds it: what the code calls an assignment."""

    assignment: Assignment
    partition: int
    known: Known
    acknowledged: tuple[int, frozenset[int]] | None
    """What the broker has acknowledged, as :meth:`Known.said`."""
    generation: int
    entries: list[Entry] = field(default_factory=list)
    """Not ended and not dropped, ascending by offset."""
    stopped: bool = False
    dropped: bool = False
    fenced: bool = False
    passed_over: int = 0
    """How many others were started, one after the other, while something of this one could have been."""
    frozen: object = None
    """What its ledger said when it was dropped."""

    def count(self, *states: State) -> int:
        return sum(entry.state in states for entry in self.entries)

    @property
    def buffered_bytes(self) -> int:
        return sum(size_of(entry.record) for entry in self.entries if entry.state is State.BUFFERED)


class Model:
    """Every partition this process holds or held, and all that was ever counted."""

    def __init__(self, ordering: Ordering, first_byte: bool) -> None:
        self.ordering = ordering
        self.first_byte = first_byte
        self.holdings: dict[int, Holding] = {}
        """By partition: what is held now."""
        self.gone: list[Holding] = []
        """Dropped, perhaps with something begun."""
        self.paused: set[int] = set()
        """Partitions."""
        self.paused_lanes: set[Hashable] = set()
        """Of all partitions."""
        self.admitted = 0
        self.ended: dict[str, int] = {"succeeded": 0, "dead-lettered": 0, "skipped": 0}
        self.dropped = 0

    def lane_of(self, record: Record[Any, Any]) -> Hashable:
        if self.first_byte:
            return (record.key or b"")[:1] or None
        if self.ordering is Ordering.KEY:
            return record.key  # type: ignore[no-any-return]
        return "all" if self.ordering is Ordering.PARTITION else None

    def entries(self, *states: State) -> list[Entry]:
        """All of these states, the partitions' in their order, then what outlived its assignment."""
        owners = [*(self.holdings[partition] for partition in sorted(self.holdings)), *self.gone]
        return [entry for owner in owners for entry in owner.entries if entry.state in states]

    def admit(self, holding: Holding, records: Sequence[Record[Any, Any]]) -> None:
        self.admitted += len(records)
        holding.entries += [Entry(record, holding, self.lane_of(record)) for record in records]

    # -- what may start ---------------------------------------------------------------------------------

    def ready(self, holding: Holding) -> list[Entry]:
        """What could start: nothing of its lane stands before it, in this assignment or begun in an older one."""
        if holding.stopped:
            return []
        closed = {
            entry.lane
            for old in self.gone
            if old.partition == holding.partition
            for entry in old.entries
            if entry.state in BEGUN
        }
        ready = []
        for entry in holding.entries:
            if entry.lane is not None and entry.lane in closed:
                continue
            closed.add(entry.lane)
            if entry.waits:
                ready.append(entry)
        return ready

    def startable(self, holding: Holding) -> list[Entry]:
        """What is ready and not held back: above a ceiling nothing starts, in a full assignment only retries."""
        assignment = holding.assignment
        return [
            entry
            for entry in self.ready(holding)
            if entry.offset <= assignment.map_ceiling
            and (entry.tried or not assignment.full)
            and not self.is_paused(entry)
        ]

    def is_paused(self, entry: Entry) -> bool:
        """Its partition is, or its lane."""
        return entry.owner.partition in self.paused or entry.lane in self.paused_lanes

    def parked_beside_pauses(self) -> int:
        """What counts for the bound of parked records: of a paused partition half, or more since it was paused."""
        halves = [self.holdings[one].count(State.PARKED) // 2 for one in self.paused if one in self.holdings]
        return len(self.entries(State.PARKED)) - sum(halves)

    # -- what happens -----------------------------------------------------------------------------------

    def look(self, could_start: Collection[Entry], chosen: Entry | None) -> None:
        """A worker looked for work. ``could_start``: all that was startable then.

        Whoever has something in flight may be passed over for longer: it may have its share already.
        """
        waiting = {one.owner for one in could_start if not one.owner.count(State.IN_FLIGHT)}
        waiting -= {chosen.owner} if chosen else set()
        for holding in self.holdings.values():
            holding.passed_over = holding.passed_over + 1 if holding in waiting else 0
        if chosen:
            chosen.state = State.IN_FLIGHT

    def begin_waiting_anew(self) -> None:
        """Whoever can start nothing now is not passed over. Its turn may come and go meanwhile, unseen by
        :meth:`look` for nothing starts in it; once it can start something it waits for a whole round.
        """
        for holding in self.holdings.values():
            if holding.passed_over and not self.startable(holding):
                holding.passed_over = 0

    def end(self, entry: Entry, outcome: str) -> None:
        """The record has ended: it counts while its assignment is held, drains included."""
        if entry.owner.dropped:
            self._forget(entry)
            return
        entry.state = State.ENDED
        entry.owner.entries.remove(entry)
        entry.owner.known.incomplete.remove(entry.offset)
        self.ended[outcome] += 1

    def park(self, entry: Entry) -> None:
        if entry.owner.stopped:
            self._forget(entry)
            return
        entry.state, entry.tried, entry.woken = State.PARKED, True, False
        entry.failed += 1

    def put_back(self, entry: Entry) -> None:
        if entry.owner.stopped:
            self._forget(entry)
            return
        entry.state, entry.tried, entry.woken = State.PARKED, True, True

    def wake(self, entry: Entry) -> None:
        entry.woken = True

    def drop(self, holding: Holding) -> None:
        del self.holdings[holding.partition]
        self.gone.append(holding)
        holding.stopped = holding.dropped = True
        for entry in list(holding.entries):
            if entry.state not in BEGUN:
                self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        entry.state = State.DROPPED
        entry.owner.entries.remove(entry)
        self.dropped += 1


def size_of(record: Record[Any, Any]) -> int:
    """Bytes of key and value; the model's records have no headers."""
    return len(record.key or b"") + len(record.value or b"")
