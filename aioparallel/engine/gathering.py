"""Batches that are being gathered: which records go together into one call. Plain, no clock.

Ready records of a source whose handler takes batches are moved into a *gathering*. When it is full, or need not wait
for more, it becomes a call. Until then its records are buffered, or parked and due, as they were; whoever is behind one
of them in its lane stays linked behind it, and is picked up when the gathering starts, or may be full with it. So a
record is moved once, and looked at once more.

A gathering that is not full *lingers*: somebody with a clock makes it due (:meth:`Gatherer.make_due`). What is due
takes turns with the sources, in the *line* of its handler, and goes on filling until a worker takes it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from aioparallel.batches import Batching, Call
from aioparallel.engine.fairness import Ring
from aioparallel.engine.sources import Mixed, Source
from aioparallel.engine.tally import Tally
from aioparallel.handlers import Batchings
from aioparallel.records import Record

__all__ = ["Gatherer", "Gathering", "Line"]

AnyRecord = Record[Any, Any]

# Lanes that one look moves into gatherings of their own, at most.
_AT_ONCE = 256


class Gathering:
    """Records that will be one call."""

    __slots__ = (
        "batching",
        "behind",
        "bytes",
        "count",
        "is_due",
        "is_over",
        "key",
        "lingers",
        "mates",
        "owner",
        "parts",
    )

    def __init__(self, batching: Batching, owner: Source | None, key: Hashable) -> None:
        self.batching = batching
        self.owner = owner
        """The only source it takes records of; None: any."""
        self.key = key
        self.parts: dict[Source, list[AnyRecord]] = {}
        self.mates: set[AnyRecord] = set()
        self.count = 0
        self.bytes = 0
        self.behind = 0
        """Records admitted behind others since it was filled last: they may belong to it."""
        self.lingers = self.is_due = self.is_over = False

    @property
    def room(self) -> int:
        """Records that it still takes."""
        return self.batching.terms.size - self.count

    @property
    def is_of_many(self) -> bool:
        """Whether it takes more than what stands in one lane."""
        return self.batching.terms.by != "lane" or self.key == (self.batching, None)

    @property
    def records(self) -> Iterator[AnyRecord]:
        """All of them."""
        return itertools.chain.from_iterable(self.parts.values())

    @property
    def heads(self) -> Iterator[AnyRecord]:
        """The first of each lane, and those without."""
        return (record for record in self.records if record not in self.mates)

    def fits(self, record: AnyRecord) -> bool:
        """Whether it may have this one too, by its bytes."""
        most = self.batching.terms.max_bytes
        return most is None or not self.count or self.bytes + record._size <= most


class Line:
    """What is due of one handler. Takes turns as a source does."""

    __slots__ = ("holds", "in_ring", "rank", "ready")

    def __init__(self) -> None:
        self.ready: deque[Gathering] = deque()
        self.holds: set[Call] = set()
        self.in_ring = False
        self.rank = 0


class _Kind:
    """What there is of one batch handler."""

    def __init__(self) -> None:
        self.line = Line()
        self.shared: Gathering | None = None  # with by="any"
        self.hungry: set[Source] = set()  # may bring more


class Gatherer:
    """Of each lane at most one record is in a gathering or a call, or several in one.

    ``on_linger(gathering)`` hears of one that waits for more, ``on_over(gathering)`` that it does not any more.
    """

    def __init__(self, ring: Ring, tally: Tally, batchings: Batchings) -> None:
        self._ring = ring
        self._tally = tally
        self._batchings = batchings
        self._kinds: defaultdict[Batching, _Kind] = defaultdict(_Kind)
        self._open: dict[Gathering, None] = {}
        self.on_linger: Callable[[Gathering], None] = _ignore
        self.on_over: Callable[[Gathering], None] = _ignore

    # -- sources ----------------------------------------------------------------------------------------

    def join(self, source: Source, first: AnyRecord) -> None:
        """The source is new; ``first``: any record of it."""
        if self._batchings.are_mixed(first):
            source.batching = Mixed.MIXED
            return
        batching = source.batching = self._batchings.of(first)
        if batching is not None:
            source.holds = set()
            self._kinds[batching].line.rank = source.rank
            if not source.is_sated:
                self._kinds[batching].hungry.add(source)

    def leave(self, source: Source) -> None:
        """Nothing more of it starts: its records are in no gathering any more."""
        own, source.gatherings = source.gatherings, {}
        for gathering in own.values():
            self._end(gathering)
        for gathering in list(self._of(source)):
            self._took_out(gathering, gathering.parts.pop(source))
        self._sate(source)

    def set_sated(self, source: Source, sated: bool) -> None:
        """Whether nothing more will come of it before some of what it has brought starts, or ends."""
        source.is_sated = sated
        if sated:
            self._sate(source)
        elif isinstance(source.batching, Batching) and not source.stopped:
            self._kinds[source.batching].hungry.add(source)

    def _sate(self, source: Source) -> None:
        waiting = list(source.gatherings.values())
        for kind in self._kinds.values():
            kind.hungry.discard(source)
            if kind.shared is not None:
                waiting.append(kind.shared)
        for gathering in waiting:
            if not self._may_grow(gathering):
                self.make_due(gathering)

    def admitted(self, source: Source, records: Sequence[AnyRecord], heads: int) -> None:
        """These were admitted; ``heads`` of them stand behind nobody."""
        batching = source.batching
        if isinstance(batching, Batching) and batching.terms.by != "lane":
            gathering = self._found(batching, source, None)
            if gathering is not None and heads < len(records):
                gathering.behind += len(records) - heads
                self._look_behind(gathering)
        elif source.gatherings and isinstance(batching, Batching):
            for record in records:
                gathering = self._found(batching, source, record._lane)
                if gathering is not None:
                    gathering.behind += 1
                    self._look_behind(gathering)

    def _look_behind(self, gathering: Gathering) -> None:
        """Whether it is full with those behind its records. They may be behind others, so not each time one comes."""
        if gathering.is_due or gathering.behind < gathering.room or gathering.behind * 8 < gathering.count:
            return
        self._fill_up(gathering)
        if not gathering.room:
            self.make_due(gathering)

    # -- out --------------------------------------------------------------------------------------------

    def take(self, member: Source | Line) -> Call | AnyRecord | None:
        """A call, begun; or a record of a mixed source that runs by itself; None: there is nothing to start now."""
        if isinstance(member, Line):
            return self._due(member)
        batching = member.batching
        assert batching is not None
        if isinstance(batching, Mixed) or batching.terms.by == "lane":
            return self._head_by_head(member)
        return self._from(member, batching)

    def _due(self, line: Line) -> Call | None:
        while line.ready:
            gathering = line.ready.popleft()
            if not gathering.is_over:
                return self._start(gathering)
        return None

    # The hot path: every call would be paid for each record.
    def _from(self, source: Source, batching: Batching) -> Call | None:
        ready, ceiling, size, most = source.ready, source.ceiling, batching.terms.size, batching.terms.max_bytes
        gathering = self._opened(batching, source, None)
        part = gathering.parts.get(source)
        if part is None:
            part = gathering.parts[source] = []
        count = gathering.count
        while ready and count < size:
            record = ready.popleft()
            if record._parks or record.offset > ceiling:
                if not _may_start(record, source):
                    source.held.append(record)
                    continue
                if _is_alone(record):
                    gathering.count = count
                    return self._by_itself(gathering, record)
            if most is not None:
                if count and gathering.bytes + record._size > most:
                    ready.appendleft(record)
                    break
                gathering.bytes += record._size
            part.append(record)
            count += 1
            if record._next is not None and count < size:
                gathering.count = count
                self._follow(gathering, part, record)
                count = gathering.count
        gathering.count = count
        if not count:
            self._close(gathering)
            return None
        return self._start(gathering) if count == size or ready else self._started_or_left(gathering, source)

    def _head_by_head(self, source: Source) -> Call | AnyRecord | None:
        """Where one ready record goes elsewhere than the next."""
        filling: dict[Gathering, None] = {}  # the next record may belong to them, too
        call = self._first_of_heads(source, filling)
        for gathering in filling:
            if gathering.is_over:
                continue
            if call is None and not source.ready:
                call = self._started_or_left(gathering, source)
            else:
                self._leave(gathering)
        return call

    def _first_of_heads(self, source: Source, filling: dict[Gathering, None]) -> Call | AnyRecord | None:
        for _ in range(_AT_ONCE):
            if not source.ready:
                break
            record = source.ready.popleft()
            if not _may_start(record, source):
                source.held.append(record)
                continue
            batching = source.batching if isinstance(source.batching, Batching) else self._batchings.of(record)
            if batching is None:
                return record
            gathering = self._opened(batching, source, record._lane if batching.terms.by == "lane" else None)
            call = self._put(gathering, source, record)
            if call is not None:
                return call
            if gathering.is_of_many:
                filling[gathering] = None
            elif (call := self._started_or_left(gathering, source)) is not None:
                return call
        return None

    def _put(self, gathering: Gathering, source: Source, record: AnyRecord) -> Call | None:
        """One head, and those behind it, into its gathering; the call that this makes."""
        if _is_alone(record):
            return self._by_itself(gathering, record)
        if not gathering.room or not gathering.fits(record):
            source.ready.appendleft(record)
            return self._start(gathering)
        part = gathering.parts.setdefault(source, [])
        part.append(record)
        gathering.count += 1
        gathering.bytes += record._size
        self._follow(gathering, part, record)
        return None if gathering.room else self._start(gathering)

    def _follow(self, gathering: Gathering, part: list[AnyRecord], record: AnyRecord) -> None:
        """Add those behind this one in its lane, as far as they may start and fit."""
        source, room, mates, found = record._source, gathering.room, gathering.mates, 0
        most = gathering.batching.terms.max_bytes
        mixed = isinstance(source.batching, Mixed)
        following = record._next
        while following is not None and found < room:
            slowly = following._parks or following.offset > source.ceiling
            if slowly and (not _may_start(following, source) or _is_alone(following)):
                break
            if most is not None and gathering.bytes + following._size > most:
                break
            if mixed and self._batchings.of(following) is not gathering.batching:
                break
            part.append(following)
            mates.add(following)
            gathering.bytes += following._size
            found += 1
            following = following._next
        gathering.count += found

    def _fill_up(self, gathering: Gathering) -> None:
        gathering.behind = 0
        for part in gathering.parts.values():
            for record in tuple(part):
                if not gathering.room:
                    return
                following = record._next
                if following is not None and following not in gathering.mates:
                    self._follow(gathering, part, record)

    def _started_or_left(self, gathering: Gathering, source: Source) -> Call | None:
        """It is not full, and this source has no more for it: it starts, or is left to linger, or waits until those
        have had their turn that are ready, too."""
        if self._waits(gathering):
            self._linger(gathering)
            return None
        if gathering.owner is None:
            line = self._kinds[gathering.batching].line
            if self._ring.peers(source) > source.in_ring + line.in_ring:
                self.make_due(gathering)
                return None
        return self._start(gathering)

    def _by_itself(self, gathering: Gathering, record: AnyRecord) -> Call:
        """This record alone; what it was to go with stays as it is."""
        if gathering.count:
            self._leave(gathering)
        else:
            self._close(gathering)
        return self._begin(Call({record._source: [record]}, None, gathering.batching))

    def _leave(self, gathering: Gathering) -> None:
        """Another call starts first."""
        if self._waits(gathering):
            self._linger(gathering)
        else:
            self.make_due(gathering)

    def _waits(self, gathering: Gathering) -> bool:
        """Whether more may come for it, and it has time."""
        return not gathering.is_due and bool(gathering.batching.terms.linger) and self._may_grow(gathering)

    def _linger(self, gathering: Gathering) -> None:
        if not gathering.lingers:
            gathering.lingers = True
            self.on_linger(gathering)
        # What it has taken is ready no more, and has not started either: whoever brings records looks anew at whether
        # there may be more.
        self._tally.signals.taken()

    def _start(self, gathering: Gathering) -> Call:
        if gathering.room:
            self._fill_up(gathering)
        self._close(gathering)
        parts = {source: part for source, part in gathering.parts.items() if part}
        return self._begin(Call(parts, gathering.mates, gathering.batching))

    def _begin(self, call: Call) -> Call:
        assert call.batching is not None
        self._tally.start_together(call)
        for holds in self._holds_of(call):
            holds.add(call)
        return call

    def ended(self, call: Call) -> None:
        """Its handler holds no worker any more."""
        assert call.batching is not None
        for holds in self._holds_of(call):
            holds.discard(call)

    def _holds_of(self, call: Call) -> Iterator[set[Call]]:
        assert call.batching is not None
        yield self._kinds[call.batching].line.holds
        for source in call.parts:
            if source.holds is not source.in_flight:
                yield source.holds

    def make_due(self, gathering: Gathering) -> None:
        """It waits for nothing more but a worker."""
        if gathering.is_due or gathering.is_over:
            return
        gathering.is_due = True
        line = self._kinds[gathering.batching].line
        line.ready.append(gathering)
        self._ring.join(line)

    # -- ceilings ---------------------------------------------------------------------------------------

    def hold(self, source: Source) -> None:
        """The ceilings of this source have changed: what is gathered and may not start any more is held back."""
        for gathering in list(self._of(source)):
            part = gathering.parts[source]
            out = [record for record in part if not _may_start(record, source)]
            if not out:
                continue
            # Of a lane all that is behind one of them is out, too.
            source.held += [record for record in out if record not in gathering.mates]
            gathering.parts[source] = [record for record in part if _may_start(record, source)]
            self._took_out(gathering, out)
            if not gathering.parts[source]:
                del gathering.parts[source]  # it is none of those who may bring more, if it goes several ways
                if not gathering.is_over and not self._may_grow(gathering):
                    self.make_due(gathering)

    # -- gatherings -------------------------------------------------------------------------------------

    @property
    def heads(self) -> Iterable[AnyRecord]:
        """Heads of lanes, and records without order, that are gathered."""
        return itertools.chain.from_iterable(gathering.heads for gathering in self._open)

    def _of(self, source: Source) -> Iterator[Gathering]:
        yield from source.gatherings.values()
        for kind in self._kinds.values():
            if kind.shared is not None and source in kind.shared.parts:
                yield kind.shared

    def _took_out(self, gathering: Gathering, records: Sequence[AnyRecord]) -> None:
        gathering.mates.difference_update(records)
        gathering.count -= len(records)
        gathering.bytes -= sum([record._size for record in records])
        if not gathering.count:
            self._close(gathering)

    def _found(self, batching: Batching, source: Source, lane: Hashable) -> Gathering | None:
        if batching.terms.by == "any":
            return self._kinds[batching].shared
        return source.gatherings.get((batching, lane))

    def _opened(self, batching: Batching, source: Source, lane: Hashable) -> Gathering:
        found = self._found(batching, source, lane)
        if found is not None:
            return found
        if batching.terms.by == "any":
            made = self._kinds[batching].shared = Gathering(batching, None, None)
        else:
            made = source.gatherings[batching, lane] = Gathering(batching, source, (batching, lane))
        self._open[made] = None
        return made

    def _close(self, gathering: Gathering) -> None:
        if gathering.owner is None:
            self._kinds[gathering.batching].shared = None
        else:
            del gathering.owner.gatherings[gathering.key]
        self._end(gathering)

    def _end(self, gathering: Gathering) -> None:
        gathering.is_over = True
        del self._open[gathering]
        if gathering.lingers:
            self.on_over(gathering)

    def _may_grow(self, gathering: Gathering) -> bool:
        if gathering.owner is not None:
            return not gathering.owner.is_sated
        # Mixed sources are hungry for no handler in particular.
        return bool(self._kinds[gathering.batching].hungry) or any(not one.is_sated for one in gathering.parts)


def _may_start(record: AnyRecord, source: Source) -> bool:
    return record.offset <= (source.map_ceiling if record._parks else source.ceiling)


def _is_alone(record: AnyRecord) -> bool:
    return record._history is not None and record._history.alone


def _ignore(gathering: Gathering) -> None:
    pass
