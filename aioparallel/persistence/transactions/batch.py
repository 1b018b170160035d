"""What one transaction commits: the offset, the offset map and the outputs of each assignment. No I/O.

:func:`take` reads offset, map and outputs of an assignment in one step without an ``await``. If a record ended between
two reads, it would be committed without its outputs, or its outputs would be written and it would not be committed.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from sys import maxsize
from typing import Final, Literal, NamedTuple

from aioparallel.config.extension import NO_LANES
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed
from aioparallel.group.offset_commits import LedgerSnapshot, Sample, ledger_snapshot, sample
from aioparallel.offsets import OffsetMap
from aioparallel.persistence.transactions.pending_outputs import Entry, Waiting
from aioparallel.records.record import TopicPartition

__all__ = ["PartitionSlice", "Taken", "TransactionBatch", "quick_slice", "slice_of", "take"]


_NEVER: Final = (-1, -1)
_MUCH: Final = 500


class Taken(NamedTuple):
    """The state of one assignment at one moment."""

    ledger: LedgerSnapshot
    entries: Sequence[Entry]
    promised: int
    """The highest offset in the committed map."""
    acknowledged: tuple[int, int] = _NEVER
    """The version of the ledger that was committed last."""
    lanes: Mapping[int, Hashable] = NO_LANES
    """The lanes of offsets that are complete and not committed. Empty unless an extension needs them."""

    @property
    def is_much(self) -> bool:
        """Whether writing several maps of it may take more than a few milliseconds."""
        return len(self.ledger.map.incompletes) + len(self.entries) > _MUCH


class PartitionSlice(NamedTuple):
    """The part of one assignment that goes into a transaction."""

    sample: Sample
    """The position to commit."""
    entries: Sequence[Entry]
    whole: Sample
    """The position if all outputs fitted."""
    is_short: bool = False
    """Whether the map covers less than the committed one, because it did not fit. If it were committed, records whose
    outputs are written would run again. So the assignment waits until the record at its base has ended."""
    is_passed_over: bool = False
    """Whether none of its outputs fitted."""
    behind: int = 0
    """Bytes of outputs that wait although they fit: their records are above the end of a cut map."""
    maps: int = 1
    """How many maps were written for it."""

    @property
    def size(self) -> int:
        """Bytes of the outputs."""
        return sum([entry.size for entry in self.entries])

    @property
    def is_part(self) -> bool:
        """Whether some outputs wait for the next transaction."""
        return self.is_passed_over or self.sample is not self.whole

    @property
    def is_new(self) -> bool:
        """Whether the broker does not have exactly this position."""
        before = self.sample.assignment.acknowledged
        return before is None or self.sample.committed[:2] != before[:2]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write or commit."""
        return not (self.entries or self.is_new or self.sample.assignment.has_news)


def take(assignment: Assignment, waiting: Waiting) -> Taken:
    """Read ledger and outputs of an assignment in one step."""
    lanes = {offset: lane for state in assignment.partition_states for offset, lane in state.lanes().items()}
    return Taken(
        ledger_snapshot(assignment),
        waiting.of(assignment),
        assignment.promised,
        assignment.acknowledged_version or _NEVER,
        lanes,
    )


def quick_slice(taken: Taken, limit: int, formats: Literal["all", "java"], room: float) -> PartitionSlice | None:
    """Return the result of :func:`slice_of` if one map is enough, else None."""
    if room < inf and sum([entry.size for entry in taken.entries]) > room:
        return None
    one = sample(taken.ledger, limit, formats)
    return None if one.cut else PartitionSlice(one, taken.entries, one)


def slice_of(taken: Taken, limit: int, formats: Literal["all", "java"], room: float, least: int = 0) -> PartitionSlice:
    """Write the map and choose the outputs that go with it. It reads only ``taken``, so any thread may call it.
    ``room``: the most bytes of outputs; the first ``least`` entries go whatever their size.

    If the map must be cut, outputs of records above its end wait for the next transaction, because the map does not
    mark these records complete yet. An output of several records needs all of them in the map; otherwise the map has
    none of them. The same holds for outputs that do not fit.
    """
    whole, entries, maps = _fitted(taken.ledger, taken.entries, limit, formats, taken.lanes)
    is_short = _is_short(whole, taken.promised)
    behind = sum([entry.size for entry in taken.entries]) - (0 if is_short else sum([one.size for one in entries]))
    every = PartitionSlice(whole, entries, whole, is_short, behind=behind, maps=maps)
    count = max(least, _fitting(entries, room))
    if is_short or count >= len(entries):
        return every
    if not count:
        return every._replace(entries=(), is_passed_over=True)
    while count < len(entries):
        part, goes, more = _part(taken, entries[:count], limit, formats)
        maps += more
        if goes and not _is_short(part, taken.promised):
            return PartitionSlice(part, goes, whole, behind=behind, maps=maps)
        count *= 2  # with more entries the map may be smaller
    return every._replace(maps=maps)


def _part(
    taken: Taken, entries: Sequence[Entry], limit: int, formats: Literal["all", "java"]
) -> tuple[Sample, Sequence[Entry], int]:
    """:func:`_fitted` of these entries alone."""
    ids = set(map(id, entries))
    left = [entry for entry in taken.entries if id(entry) not in ids]
    missing = {record.offset for entry in left for record in entry.records} | _behind(left, taken.lanes)
    reach = max([taken.promised, *[record.offset for entry in entries for record in entry.records]])
    ledger = LedgerSnapshot(
        taken.ledger.assignment, _without(taken.ledger.map, missing, reach), taken.acknowledged, taken.ledger.epochs
    )
    return _fitted(ledger, entries, limit, formats, taken.lanes)


def _behind(left: Iterable[Entry], lanes: Mapping[int, Hashable]) -> set[int]:
    """Return the complete offsets behind these in their lanes. They may have no outputs, and so no entries."""
    if not lanes:
        return set()
    first: dict[Hashable, int] = {}
    for record in chain.from_iterable(entry.records for entry in left):
        first[record._lane] = min(record.offset, first.get(record._lane, record.offset))
    return {offset for offset, lane in lanes.items() if offset > first.get(lane, offset)}


def _is_short(one: Sample, promised: int) -> bool:
    return one.cut and max(one.highest, one.committed.offset - 1) < promised


def _fitted(
    ledger: LedgerSnapshot,
    entries: Sequence[Entry],
    limit: int,
    formats: Literal["all", "java"],
    lanes: Mapping[int, Hashable],
) -> tuple[Sample, Sequence[Entry], int]:
    """Return the position that can be committed, the entries that go with it, and how many maps were written."""
    full, missing, maps = ledger.map, set[int](), 0
    while True:
        one = sample(ledger, limit, formats)
        maps += 1
        if not (one.cut or missing):
            return one, entries, maps
        base, highest = one.committed.offset, one.highest
        covered, rest = _split(entries, base, highest, missing)
        waiting = ({record.offset for entry in rest for record in entry.records} | _behind(rest, lanes)) - missing
        if not any(offset < base or offset <= highest for offset in waiting):
            return one, covered, maps
        # Without these offsets a longer map may fit. It must not include those that this map did not reach.
        missing |= waiting
        ledger = ledger._replace(map=_without(full, missing))


def _fitting(entries: Sequence[Entry], room: float) -> int:
    """Return how many entries fit, from the first."""
    for count, entry in enumerate(entries):
        room -= entry.size
        if room < 0:
            return count
    return len(entries)


def _split(entries: Sequence[Entry], base: int, highest: int, missing: set[int]) -> tuple[list[Entry], list[Entry]]:
    """Split the entries: those that the offset and a map up to ``highest`` without ``missing`` cover; and the others,
    with the entries that follow them in their lanes."""
    covered: list[Entry] = []
    rest: list[Entry] = []
    closed: set[object] = set()
    for entry in entries:
        lanes = {record._lane for record in entry.records if record._lane is not None}
        is_in_map = entry.is_within(base, highest) and missing.isdisjoint([record.offset for record in entry.records])
        if is_in_map and closed.isdisjoint(lanes):
            covered.append(entry)
        else:
            rest.append(entry)
            closed |= lanes
    return covered, rest


def _without(given: OffsetMap, offsets: Collection[int], reach: int = maxsize) -> OffsetMap:
    """Return the same map up to ``reach``, with these offsets incomplete."""
    base, highest = min(given.base_offset, *offsets), max(given.highest_succeeded, given.base_offset - 1)
    highest = max(base - 1, min(highest, reach))
    incompletes = {offset for offset in (*given.incompletes, *offsets) if offset <= highest}
    return OffsetMap(base, highest, tuple(sorted(incompletes)))


class TransactionBatch:
    """The slices of all assignments in one transaction."""

    def __init__(self, slices: Sequence[PartitionSlice]) -> None:
        self.slices = {one.sample.assignment: one for one in slices}

    def __repr__(self) -> str:
        entries = sum(len(one.entries) for one in self.slices.values())
        return f"<TransactionBatch of {len(self.slices)} assignments, {entries} entries>"

    def without(self, partitions: Collection[TopicPartition]) -> TransactionBatch:
        """Return the batch without the slices of these partitions. Their outputs wait for the next one."""
        if not partitions:
            return self
        return TransactionBatch(
            [one for assignment, one in self.slices.items() if assignment.partition not in partitions]
        )

    @property
    def size(self) -> int:
        """Bytes of the outputs."""
        return sum([one.size for one in self.slices.values()])

    @property
    def positions(self) -> dict[TopicPartition, Committed]:
        """The positions to commit."""
        return {assignment.partition: one.sample.committed for assignment, one in self.slices.items()}

    @property
    def is_ours(self) -> bool:
        """Whether this member still owns all its assignments."""
        return not any(assignment.dropped or assignment.fenced for assignment in self.slices)
