"""Outputs of records that are complete, until the transaction has ended that they go in. Plain objects, no I/O.

Of each session there is one list, in the order in which its records ended. A record is complete and its outputs stand
here in one step; so the outputs of a key stand in the order of its records, and whatever is cut off the front holds no
later one without the earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from aioparallel.delivery.outputs import size_of
from aioparallel.group.sessions import Session
from aioparallel.records.record import Outgoing, Record

__all__ = ["Entry", "Waiting"]

AnyRecord = Record[Any, Any]

_NOTHING = Outgoing("nothing", None)


class Entry:
    """What one record lets leave, or several together (a batch): in one transaction with their offsets.

    ``record``, ``output``: the first of them. ``together``, ``more``: all of them, where there are several; else
    empty, for most often there is one of each, and many wait: each object less is one less for the garbage collector.
    Records are of one session. ``size``: bytes of the outputs, 0: to be found out. ``is_letter``: it is the record
    itself that leaves, to where it is put away.
    """

    __slots__ = ("_more", "_together", "is_letter", "output", "record", "size")

    def __init__(
        self,
        record: AnyRecord,
        output: Outgoing,
        size: int = 0,
        *,
        together: Sequence[AnyRecord] = (),
        more: Sequence[Outgoing] = (),
        is_letter: bool = False,
    ) -> None:
        self.record = record
        self.output = output
        self._together = together
        self._more = more
        self.is_letter = is_letter
        self.size = size or sum([size_of(one) for one in self.outputs])
        """Bytes."""

    def __repr__(self) -> str:
        return f"<Entry of {self.record.place}: {len(self.outputs)} outputs, {self.size} bytes>"

    @property
    def records(self) -> Sequence[AnyRecord]:
        """All that it is of."""
        return self._together or (self.record,)

    @property
    def outputs(self) -> Sequence[Outgoing]:
        """All that leaves."""
        return self._more or (() if self.output is _NOTHING else (self.output,))

    @classmethod
    def place_of(cls, record: AnyRecord) -> Entry:
        """One that lets nothing leave, until it is filled: it keeps the record's place among those of its key."""
        entry = cls(record, _NOTHING, 1)
        entry.size = 0
        return entry

    def fill(self, outputs: Sequence[Outgoing]) -> int:
        """The record itself leaves, by these. Returns their bytes."""
        self.output, self._more, self.is_letter = outputs[0], outputs if len(outputs) > 1 else (), True
        self.size = sum([size_of(one) for one in outputs])
        return self.size

    def is_within(self, base: int, highest: int) -> bool:
        """Whether all its records are complete by a committed offset, and a map that speaks of offsets up to
        ``highest``."""
        return all(record.offset < base or record.offset <= highest for record in self.records)


class _List:
    """What waits of one session."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.bytes = 0


class Waiting:
    """The lists of all sessions."""

    def __init__(self) -> None:
        self._lists: dict[Session, _List] = {}
        self._held: Counter[Session] = Counter()  # and how often
        self._lost: set[Session] = set()  # held for good
        self._places: dict[AnyRecord, Entry] = {}  # of records whose outputs were refused
        self.bytes = 0
        """Of all that waits, with what it costs beside its bytes. What is on its way is among it."""

    def add(self, session: Session, entry: Entry) -> None:
        """At the end of its list, in the same step in which its records complete."""
        waiting = self._lists.get(session)
        if waiting is None:
            waiting = self._lists[session] = _List()
        waiting.entries.append(entry)
        waiting.bytes += entry.size
        self.bytes += entry.size

    def of(self, session: Session) -> Sequence[Entry]:
        """What waits of it, as it is now."""
        waiting = self._lists.get(session)
        return () if waiting is None else tuple(waiting.entries)

    def has(self, session: Session) -> bool:
        """Whether something of it waits."""
        return session in self._lists

    def size_of(self, session: Session) -> int:
        """Bytes of what waits of it."""
        waiting = self._lists.get(session)
        return 0 if waiting is None else waiting.bytes

    @property
    def outputs(self) -> int:
        """How many there are."""
        return sum(len(entry.outputs) for entry in self._all())

    def remove(self, session: Session, gone: Sequence[Entry]) -> None:
        """These have left, or never will. Most often they are the front of the list."""
        waiting = self._lists.get(session)
        if waiting is None or not gone:
            return
        entries = waiting.entries
        if len(gone) <= len(entries) and gone[-1] is entries[len(gone) - 1]:
            del entries[: len(gone)]  # they keep their order, so it is the front
        else:
            ids = set(map(id, gone))
            entries[:] = [entry for entry in entries if id(entry) not in ids]
        size = sum([entry.size for entry in gone])
        waiting.bytes -= size
        self.bytes -= size
        if not entries:
            del self._lists[session]

    def keep_places(self, session: Session, gone: Collection[Entry]) -> None:
        """These never leave; where each of their records is put away, that shall stand in its place."""
        waiting = self._lists.get(session)
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

    def add_letter(self, session: Session, record: AnyRecord, letter: Sequence[Outgoing]) -> None:
        """The record itself leaves: in the place that is kept for it, or behind all others."""
        if (place := self._places.pop(record, None)) is None:
            self.add(session, Entry(record, letter[0], more=letter if len(letter) > 1 else (), is_letter=True))
            return
        size = place.fill(letter)
        self._lists[session].bytes += size
        self.bytes += size

    def drop_dropped(self) -> None:
        """Forget what is of sessions that are over: their records run again at the next owner."""
        for session in [session for session in self._lists if session.dropped]:
            self.bytes -= self._lists.pop(session).bytes
        self._held = Counter({session: times for session, times in self._held.items() if not session.dropped})
        self._lost = {session for session in self._lost if not session.dropped}
        self._places = {record: place for record, place in self._places.items() if not record._source.dropped}

    # -- sessions of which nothing may go

    def hold(self, session: Session, *, for_good: bool = False) -> None:
        """Commit nothing of it: one of its records is complete here, and nobody has taken what was to leave of it. Once
        for each of them. ``for_good``: nobody will."""
        self._held[session] += 1
        if for_good:
            self._lost.add(session)

    def is_lost(self, session: Session) -> bool:
        """Whether it is held for good."""
        return session in self._lost

    def forget_place(self, record: AnyRecord) -> None:
        """Nothing of it leaves here."""
        self._places.pop(record, None)

    def let_go(self, session: Session) -> None:
        """One of those records is taken; it may be committed again when all are."""
        if self._held[session] > 1:
            self._held[session] -= 1
        else:
            del self._held[session]

    @property
    def held(self) -> Collection[Session]:
        """Those that :meth:`hold` was called for."""
        return self._held.keys()

    def _all(self) -> Iterator[Entry]:
        for waiting in self._lists.values():
            yield from waiting.entries
