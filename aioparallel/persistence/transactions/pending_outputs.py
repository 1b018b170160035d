"""Holds the outputs of complete records until their transaction has ended. Plain objects, no I/O.

Each assignment has one list, in the order in which its records ended. A record becomes complete and its outputs are
added in one step. So the outputs of a key are in the order of its records, and any prefix of the list keeps that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from aioparallel.delivery.outputs import size_of
from aioparallel.delivery.shrinking import SentLetter
from aioparallel.group.assignment import Assignment
from aioparallel.records.record import Outgoing, Record

__all__ = ["Entry", "Waiting"]

AnyRecord = Record[Any, Any]

_NOTHING = Outgoing("nothing", None)


class Entry:
    """The outputs of one record, or of a batch of records. They are sent in one transaction with the offsets.

    ``record`` and ``output`` are the first ones. ``together`` and ``more`` are all of them if there are several, else
    empty. Most entries have one of each, and many entries wait, so this leaves fewer objects to the garbage collector.
    All records belong to one assignment. ``size``: bytes of the outputs; 0: computed here.
    """

    __slots__ = ("_more", "_together", "output", "record", "size")

    def __init__(
        self,
        record: AnyRecord,
        output: Outgoing,
        size: int = 0,
        *,
        together: Sequence[AnyRecord] = (),
        more: Sequence[Outgoing] = (),
    ) -> None:
        self.record = record
        self.output = output
        self._together = together
        self._more = more
        self.size = size or sum([size_of(one) for one in self.outputs])
        """Bytes of the outputs."""

    def __repr__(self) -> str:
        return f"<Entry of {self.record.place}: {len(self.outputs)} outputs, {self.size} bytes>"

    @property
    def records(self) -> Sequence[AnyRecord]:
        """All records of the entry."""
        return self._together or (self.record,)

    @property
    def outputs(self) -> Sequence[Outgoing]:
        """All outputs of the entry."""
        return self._more or (() if self.output is _NOTHING else (self.output,))

    @property
    def is_letter(self) -> bool:
        """Whether the output is the record itself, for a dead letter topic or a retry topic."""
        return isinstance(self.output, SentLetter)

    @classmethod
    def place_of(cls, record: AnyRecord) -> Entry:
        """Make an entry without outputs. It keeps the record's place among those of its key, for a dead letter."""
        entry = cls(record, _NOTHING, 1)
        entry.size = 0
        return entry

    def is_within(self, base: int, highest: int) -> bool:
        """Whether a committed offset ``base`` and a map up to ``highest`` cover all its records."""
        return all(record.offset < base or record.offset <= highest for record in self.records)


class _List:
    """The waiting entries of one assignment."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.bytes = 0


class Waiting:
    """The lists of all assignments."""

    def __init__(self) -> None:
        self._lists: dict[Assignment, _List] = {}
        self._held: Counter[Assignment] = Counter()  # how often each one is held
        self._lost: set[Assignment] = set()  # held until they end
        self._places: dict[AnyRecord, Entry] = {}  # of records whose outputs were refused
        self.bytes = 0
        """Bytes of all waiting entries, with their overhead. Entries that are being sent count as well."""

    def add(self, assignment: Assignment, entry: Entry) -> None:
        """Append an entry. The caller completes its records in the same step."""
        waiting = self._lists.get(assignment)
        if waiting is None:
            waiting = self._lists[assignment] = _List()
        waiting.entries.append(entry)
        waiting.bytes += entry.size
        self.bytes += entry.size

    def of(self, assignment: Assignment) -> Sequence[Entry]:
        """Return a copy of the waiting entries of an assignment."""
        waiting = self._lists.get(assignment)
        return () if waiting is None else tuple(waiting.entries)

    def has(self, assignment: Assignment) -> bool:
        """Whether the assignment has waiting entries."""
        return assignment in self._lists

    def size_of(self, assignment: Assignment) -> int:
        """Bytes of the waiting entries of an assignment."""
        waiting = self._lists.get(assignment)
        return 0 if waiting is None else waiting.bytes

    @property
    def outputs(self) -> int:
        """The number of waiting outputs."""
        return sum(len(entry.outputs) for entry in self._all())

    def remove(self, assignment: Assignment, gone: Sequence[Entry]) -> None:
        """Remove entries that are committed or will never be. They are usually the first ones of the list."""
        waiting = self._lists.get(assignment)
        if waiting is None or not gone:
            return
        entries = waiting.entries
        if len(gone) <= len(entries) and gone[-1] is entries[len(gone) - 1]:
            del entries[: len(gone)]  # the order is the same, so these are the first ones
        else:
            ids = set(map(id, gone))
            entries[:] = [entry for entry in entries if id(entry) not in ids]
        size = sum([entry.size for entry in gone])
        waiting.bytes -= size
        self.bytes -= size
        if not entries:
            del self._lists[assignment]

    def keep_places(self, assignment: Assignment, gone: Collection[Entry]) -> None:
        """Replace entries that will never be sent with empty ones, which dead letters of their records may fill."""
        waiting = self._lists.get(assignment)
        if waiting is None:
            return
        refused = set(map(id, gone))
        entries: list[Entry] = []
        for entry in waiting.entries:
            if id(entry) not in refused:
                entries.append(entry)
                continue
            waiting.bytes -= entry.size
            self.bytes -= entry.size
            for record in entry.records:
                self._places[record] = place = Entry.place_of(record)
                entries.append(place)
        waiting.entries = entries

    def add_letter(self, assignment: Assignment, record: AnyRecord, letter: Outgoing) -> None:
        """Add a dead letter: in the place that is kept for the record, or at the end."""
        if (place := self._places.pop(record, None)) is None:
            self.add(assignment, Entry(record, letter))
            return
        place.output, place.size = letter, size_of(letter)
        self._lists[assignment].bytes += place.size
        self.bytes += place.size

    def drop_dropped(self) -> None:
        """Forget assignments that have ended. Their records run again on the next owner."""
        for assignment in [assignment for assignment in self._lists if assignment.dropped]:
            self.bytes -= self._lists.pop(assignment).bytes
        self._held = Counter({assignment: times for assignment, times in self._held.items() if not assignment.dropped})
        self._lost = {assignment for assignment in self._lost if not assignment.dropped}
        self._places = {record: place for record, place in self._places.items() if not record._source.dropped}

    # -- assignments that may not be committed

    def hold(self, assignment: Assignment, *, for_good: bool = False) -> None:
        """Stop commits of an assignment: a record is complete, but its output is not accepted yet. Call it once for
        each such record. ``for_good``: the output never will be."""
        self._held[assignment] += 1
        if for_good:
            self._lost.add(assignment)

    def is_lost(self, assignment: Assignment) -> bool:
        """Whether the assignment is held until it ends."""
        return assignment in self._lost

    def forget_place(self, record: AnyRecord) -> None:
        """Forget the place of a record that will have no output."""
        self._places.pop(record, None)

    def let_go(self, assignment: Assignment) -> None:
        """Undo one :meth:`hold`. Commits continue when all are undone."""
        if self._held[assignment] > 1:
            self._held[assignment] -= 1
        else:
            del self._held[assignment]

    @property
    def held(self) -> Collection[Assignment]:
        """The assignments that may not be committed."""
        return self._held.keys()

    def _all(self) -> Iterator[Entry]:
        for waiting in self._lists.values():
            yield from waiting.entries
