"""Assembles batches: which records go together into one call. Plain, no clock.

If the handler of a source takes batches, its ready records move into a *pending batch*. The batch becomes a call when
it is full or need not wait for more. Until then its records count as buffered, or as parked and due. A record behind
one of them in its lane stays linked there. It joins when the batch starts, or earlier if it may fill the batch. So each
record is moved once and looked at twice.

A pending batch that is not full *lingers*: code with a clock makes it due (:meth:`BatchAssembler.make_due`). A due
batch waits in the *line* of its handler, which takes turns with the sources. It accepts more records until a worker
takes it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aioparallel.engine.schedule.counters import Counters
from aioparallel.engine.schedule.fairness import TurnQueue
from aioparallel.engine.sources import Mixed, Source
from aioparallel.handlers.batches import Batching, Call
from aioparallel.handlers.stack import Batchings
from aioparallel.records.record import Record

__all__ = ["BatchAssembler", "DueBatches", "PendingBatch"]

AnyRecord = Record[Any, Any]

# The most lanes that one call of take() moves into batches of their own.
_AT_ONCE = 256


@dataclass(slots=True, eq=False, repr=False)
class PendingBatch:
    """Records that will be one call."""

    batching: Batching
    owner: Source | None
    """The only source whose records it takes; None: any source."""
    key: Hashable
    parts: dict[Source, list[AnyRecord]] = field(default_factory=dict)
    mates: set[AnyRecord] = field(default_factory=lambda: set())  # noqa: PLW0108 - a simulation replaces set()
    count: int = 0
    bytes: int = 0
    behind: int = 0
    """Records admitted behind others since the batch was last filled up. Some may belong to it."""
    lingers: bool = False
    is_due: bool = False
    is_over: bool = False

    @property
    def capacity(self) -> int:
        """How many more records it accepts."""
        return self.batching.terms.size - self.count

    @property
    def is_of_many(self) -> bool:
        """Whether it accepts records of more than one lane."""
        return self.batching.terms.by != "lane" or self.key == (self.batching, None)

    @property
    def records(self) -> Iterator[AnyRecord]:
        """All records, by source."""
        return itertools.chain.from_iterable(self.parts.values())

    @property
    def heads(self) -> Iterator[AnyRecord]:
        """The first record of each lane, and the records without a lane."""
        return (record for record in self.records if record not in self.mates)

    def fits(self, record: AnyRecord) -> bool:
        """Whether this record fits within the byte limit."""
        most = self.batching.terms.max_bytes
        return most is None or not self.count or self.bytes + record._size <= most


class DueBatches:
    """The due batches of one handler. They take turns as a source does."""

    __slots__ = ("holds", "is_queued", "rank", "ready")

    def __init__(self) -> None:
        self.ready: deque[PendingBatch] = deque()
        self.holds: set[Call] = set()
        self.is_queued = False
        self.rank = 0


class _Kind:
    """The state of one batch handler."""

    def __init__(self) -> None:
        self.line = DueBatches()
        self.shared: PendingBatch | None = None  # with by="any"
        self.growing: set[Source] = set()  # sources that may bring more records


class BatchAssembler:
    """Keeps the records of a lane in one pending batch or call at a time.

    It calls ``on_linger(batch)`` when a batch begins to wait for more records, and ``on_over(batch)`` when it stops
    waiting.
    """

    def __init__(self, turns: TurnQueue, counters: Counters, batchings: Batchings) -> None:
        self._turns = turns
        self._counters = counters
        self._batchings = batchings
        self._kinds: defaultdict[Batching, _Kind] = defaultdict(_Kind)
        self._open: dict[PendingBatch, None] = {}
        self.on_linger: Callable[[PendingBatch], None] = _ignore
        self.on_over: Callable[[PendingBatch], None] = _ignore

    # -- sources ----------------------------------------------------------------------------------------

    def join(self, source: Source, first: AnyRecord) -> None:
        """Add a new source. ``first``: any of its records."""
        if self._batchings.are_mixed(first):
            source.batching = Mixed.MIXED
            return
        batching = source.batching = self._batchings.of(first)
        if batching is not None:
            source.holds = set()
            self._kinds[batching].line.rank = source.rank
            if not source.no_more_input:
                self._kinds[batching].growing.add(source)

    def leave(self, source: Source) -> None:
        """Take the records of this source out of all batches. None of them starts any more."""
        own, source.pending_batches = source.pending_batches, {}
        for pending in own.values():
            self._end(pending)
        for pending in list(self._of(source)):
            self._took_out(pending, pending.parts.pop(source))
        self._input_ended(source)

    def set_no_more_input(self, source: Source, no_more_input: bool) -> None:
        """Set whether the source brings no more records until some of its records start or end."""
        source.no_more_input = no_more_input
        if no_more_input:
            self._input_ended(source)
        elif isinstance(source.batching, Batching) and not source.stopped:
            self._kinds[source.batching].growing.add(source)

    def _input_ended(self, source: Source) -> None:
        waiting = list(source.pending_batches.values())
        for kind in self._kinds.values():
            kind.growing.discard(source)
            if kind.shared is not None:
                waiting.append(kind.shared)
        for pending in waiting:
            if not self._may_grow(pending):
                self.make_due(pending)

    def admitted(self, source: Source, records: Sequence[AnyRecord], heads: int) -> None:
        """Handle newly admitted records. ``heads``: how many of them are the head of their lane, or have no lane."""
        batching = source.batching
        if isinstance(batching, Batching) and batching.terms.by != "lane":
            pending = self._found(batching, source, None)
            if pending is not None and heads < len(records):
                pending.behind += len(records) - heads
                self._look_behind(pending)
        elif source.pending_batches and isinstance(batching, Batching):
            for record in records:
                pending = self._found(batching, source, record._lane)
                if pending is not None:
                    pending.behind += 1
                    self._look_behind(pending)

    def _look_behind(self, pending: PendingBatch) -> None:
        """Make it due if the records behind its own fill it. Walking the lanes is slow, so this is not done often."""
        if pending.is_due or pending.behind < pending.capacity or pending.behind * 8 < pending.count:
            return
        self._fill_up(pending)
        if not pending.capacity:
            self.make_due(pending)

    # -- out --------------------------------------------------------------------------------------------

    def take(self, member: Source | DueBatches) -> Call | AnyRecord | None:
        """Start a call, or return a record of a mixed source that runs alone. None: nothing can start now."""
        if isinstance(member, DueBatches):
            return self._due(member)
        batching = member.batching
        assert batching is not None
        if isinstance(batching, Mixed) or batching.terms.by == "lane":
            return self._head_by_head(member)
        return self._from(member, batching)

    def _due(self, line: DueBatches) -> Call | None:
        while line.ready:
            pending = line.ready.popleft()
            if not pending.is_over:
                return self._start(pending)
        return None

    # The hot path: a function call here would be paid for each record.
    def _from(self, source: Source, batching: Batching) -> Call | None:
        ready, ceiling, size, most = source.ready, source.ceiling, batching.terms.size, batching.terms.max_bytes
        pending = self._opened(batching, source, None)
        part = pending.parts.get(source)
        if part is None:
            part = pending.parts[source] = []
        count = pending.count
        while ready and count < size:
            record = ready.popleft()
            if record._parks or record.offset > ceiling:
                if not source.may_start(record):
                    source.held.append(record)
                    continue
                if _is_alone(record):
                    pending.count = count
                    return self._by_itself(pending, record)
            if most is not None:
                if count and pending.bytes + record._size > most:
                    ready.appendleft(record)
                    break
                pending.bytes += record._size
            part.append(record)
            count += 1
            if record._next is not None and count < size:
                pending.count = count
                self._follow(pending, part, record)
                count = pending.count
        pending.count = count
        if not count:
            self._close(pending)
            return None
        return self._start(pending) if count == size or ready else self._started_or_left(pending, source)

    def _head_by_head(self, source: Source) -> Call | AnyRecord | None:
        """For sources whose ready records go into different batches."""
        filling: dict[PendingBatch, None] = {}  # batches that the next record may also belong to
        call = self._first_of_heads(source, filling)
        for pending in filling:
            if pending.is_over:
                continue
            if call is None and not source.ready:
                call = self._started_or_left(pending, source)
            else:
                self._leave(pending)
        return call

    def _first_of_heads(self, source: Source, filling: dict[PendingBatch, None]) -> Call | AnyRecord | None:
        for _ in range(_AT_ONCE):
            if not source.ready:
                break
            record = source.ready.popleft()
            if not source.may_start(record):
                source.held.append(record)
                continue
            batching = source.batching if isinstance(source.batching, Batching) else self._batchings.of(record)
            if batching is None:
                return record
            pending = self._opened(batching, source, record._lane if batching.terms.by == "lane" else None)
            call = self._put(pending, source, record)
            if call is not None:
                return call
            if pending.is_of_many:
                filling[pending] = None
            elif (call := self._started_or_left(pending, source)) is not None:
                return call
        return None

    def _put(self, pending: PendingBatch, source: Source, record: AnyRecord) -> Call | None:
        """Put a head and the records behind it into its batch. Return the call if that fills it."""
        if _is_alone(record):
            return self._by_itself(pending, record)
        if not pending.capacity or not pending.fits(record):
            source.ready.appendleft(record)
            return self._start(pending)
        part = pending.parts.setdefault(source, [])
        part.append(record)
        pending.count += 1
        pending.bytes += record._size
        self._follow(pending, part, record)
        return None if pending.capacity else self._start(pending)

    def _follow(self, pending: PendingBatch, part: list[AnyRecord], record: AnyRecord) -> None:
        """Add the records behind this one in its lane, as far as they may start and fit."""
        source, capacity, mates, found = record._source, pending.capacity, pending.mates, 0
        most = pending.batching.terms.max_bytes
        mixed = isinstance(source.batching, Mixed)
        following = record._next
        while following is not None and found < capacity:
            slowly = following._parks or following.offset > source.ceiling
            if slowly and (not source.may_start(following) or _is_alone(following)):
                break
            if most is not None and pending.bytes + following._size > most:
                break
            if mixed and self._batchings.of(following) is not pending.batching:
                break
            part.append(following)
            mates.add(following)
            pending.bytes += following._size
            found += 1
            following = following._next
        pending.count += found

    def _fill_up(self, pending: PendingBatch) -> None:
        pending.behind = 0
        for part in pending.parts.values():
            for record in tuple(part):
                if not pending.capacity:
                    return
                following = record._next
                if following is not None and following not in pending.mates:
                    self._follow(pending, part, record)

    def _started_or_left(self, pending: PendingBatch, source: Source) -> Call | None:
        """Start a batch that is not full, let it linger, or let other ready sources add to it first."""
        line = self._kinds[pending.batching].line
        others_add = pending.owner is None and self._turns.peers(source) > source.is_queued + line.is_queued
        if others_add or self._waits(pending):
            self._leave(pending)
            return None
        return self._start(pending)

    def _by_itself(self, pending: PendingBatch, record: AnyRecord) -> Call:
        """Return a call with this record alone. Its pending batch stays as it is."""
        if pending.count:
            self._leave(pending)
        else:
            self._close(pending)
        return self._begin(Call({record._source: [record]}, None, pending.batching))

    def _leave(self, pending: PendingBatch) -> None:
        """Leave the batch pending, because another call starts first, or others may add to it."""
        if not self._waits(pending):
            self.make_due(pending)
            return
        if not pending.lingers:
            pending.lingers = True
            self.on_linger(pending)
        # Its records are no longer ready and have not started, so the fetcher must plan again.
        self._counters.signals.taken()

    def _waits(self, pending: PendingBatch) -> bool:
        """Whether it may wait for more records."""
        return not pending.is_due and bool(pending.batching.terms.linger) and self._may_grow(pending)

    def _start(self, pending: PendingBatch) -> Call:
        if pending.capacity:
            self._fill_up(pending)
        self._close(pending)
        parts = {source: part for source, part in pending.parts.items() if part}
        return self._begin(Call(parts, pending.mates, pending.batching))

    def _begin(self, call: Call) -> Call:
        assert call.batching is not None
        self._counters.start_together(call)
        for holds in self._holds_of(call):
            holds.add(call)
        return call

    def ended(self, call: Call) -> None:
        """The call holds no slot any more."""
        assert call.batching is not None
        for holds in self._holds_of(call):
            holds.discard(call)

    def _holds_of(self, call: Call) -> Iterator[set[Call]]:
        assert call.batching is not None
        yield self._kinds[call.batching].line.holds
        for source in call.parts:
            if source.holds is not source.in_flight:
                yield source.holds

    def make_due(self, pending: PendingBatch) -> None:
        """Stop waiting for more records: from now on the batch waits only for a worker."""
        if pending.is_due or pending.is_over:
            return
        pending.is_due = True
        line = self._kinds[pending.batching].line
        line.ready.append(pending)
        self._turns.join(line)

    # -- ceilings and pauses ----------------------------------------------------------------------------

    def hold(self, source: Source) -> None:
        """Take out of the batches the records that may no longer start, and those behind them in their lanes. Called
        when a ceiling or a pause of the source changes."""
        for pending in list(self._of(source)):
            out, left = _parted(source, pending.parts[source])
            if not out:
                continue
            source.held += [record for record in out if record not in pending.mates]
            pending.parts[source] = left
            self._took_out(pending, out)
            self._forget_empty(pending, source)

    def _forget_empty(self, pending: PendingBatch, source: Source) -> None:
        if not pending.parts[source]:
            del pending.parts[source]  # a mixed source must not count among those that may bring more
            if not pending.is_over and not self._may_grow(pending):
                self.make_due(pending)

    # -- skipping ---------------------------------------------------------------------------------------

    def records_of(self, source: Source) -> Iterator[AnyRecord]:
        """The records of this source in pending batches."""
        return itertools.chain.from_iterable(pending.parts[source] for pending in self._of(source))

    def take_out(self, source: Source, gone: Collection[AnyRecord]) -> set[AnyRecord]:
        """Take these records out of the pending batches. Returns the records of the source that are left in them."""
        for pending in list(self._of(source)):
            part = pending.parts[source]
            if out := [record for record in part if record in gone]:
                pending.parts[source] = [record for record in part if record not in gone]
                self._took_out(pending, out)
                self._forget_empty(pending, source)
        return set(self.records_of(source))

    def is_head(self, record: AnyRecord) -> None:
        """The record is the first of its lane now: if it is in a pending batch, it is behind no other record."""
        for pending in self._of(record._source):
            pending.mates.discard(record)

    # -- pending batches --------------------------------------------------------------------------------

    @property
    def heads(self) -> Iterable[AnyRecord]:
        """The heads of lanes, and records without a lane, in pending batches."""
        return itertools.chain.from_iterable(pending.heads for pending in self._open)

    def _of(self, source: Source) -> Iterator[PendingBatch]:
        yield from source.pending_batches.values()
        for kind in self._kinds.values():
            if kind.shared is not None and source in kind.shared.parts:
                yield kind.shared

    def _took_out(self, pending: PendingBatch, records: Sequence[AnyRecord]) -> None:
        pending.mates.difference_update(records)
        pending.count -= len(records)
        pending.bytes -= sum([record._size for record in records])
        if not pending.count:
            self._close(pending)

    def _found(self, batching: Batching, source: Source, lane: Hashable) -> PendingBatch | None:
        if batching.terms.by == "any":
            return self._kinds[batching].shared
        return source.pending_batches.get((batching, lane))

    def _opened(self, batching: Batching, source: Source, lane: Hashable) -> PendingBatch:
        found = self._found(batching, source, lane)
        if found is not None:
            return found
        if batching.terms.by == "any":
            made = self._kinds[batching].shared = PendingBatch(batching, None, None)
        else:
            made = source.pending_batches[batching, lane] = PendingBatch(batching, source, (batching, lane))
        self._open[made] = None
        return made

    def _close(self, pending: PendingBatch) -> None:
        if pending.owner is None:
            self._kinds[pending.batching].shared = None
        else:
            del pending.owner.pending_batches[pending.key]
        self._end(pending)

    def _end(self, pending: PendingBatch) -> None:
        pending.is_over = True
        del self._open[pending]
        if pending.lingers:
            self.on_over(pending)

    def _may_grow(self, pending: PendingBatch) -> bool:
        if pending.owner is not None:
            return not pending.owner.no_more_input
        # A mixed source may bring records for any handler.
        return bool(self._kinds[pending.batching].growing) or any(not one.no_more_input for one in pending.parts)


def _parted(source: Source, part: Iterable[AnyRecord]) -> tuple[list[AnyRecord], list[AnyRecord]]:
    """Return the records that may not start now, and the others. Of each lane the records are in order."""
    out, left, closed = list[AnyRecord](), list[AnyRecord](), set[Hashable]()
    for record in part:
        lane = record._lane
        if source.may_start(record) and (lane is None or lane not in closed):
            left.append(record)
            continue
        out.append(record)
        closed.add(lane)
    return out, left


def _is_alone(record: AnyRecord) -> bool:
    return record._history is not None and record._history.alone


def _ignore(pending: PendingBatch) -> None:
    pass
