"""Pending batches and calls against the model: sources without more input, lingering, ceilings, turns."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from aioparallel.config.handling import Ordering
from aioparallel.engine.isolation import ENDED
from aioparallel.engine.schedule.batch_assembler import BatchAssembler, PendingBatch
from aioparallel.engine.schedule.counters import EndState
from aioparallel.engine.schedule.scheduler import AnyRecord
from aioparallel.engine.schedule.turn import TOGETHER
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.handlers.batches import Batching, Call
from aioparallel.handlers.stack import Batchings
from aioparallel.records.history import history_of
from aioparallel.records.record import Record
from tests.support.model.assignments import CELLS, PARTITION, PARTITIONS, PICK
from tests.support.model.batch_kinds import FIRST_CELLS, KINDS, WAYS, Together, Way, Ways
from tests.support.model.core import SyncCore
from tests.support.model.group import Fate
from tests.support.model.model import BEGUN, UNFINISHED, Cell, Entry, Holding, State, size_of

__all__ = ["Before", "Gathered", "is_before"]


class Gathered(SyncCore):
    """What is gathered, and started together."""

    @initialize(
        ordering=st.sampled_from([Ordering.KEY, *Ordering, None]),
        workers=st.integers(1, 3),
        max_parked=st.sampled_from([30, 2, 4, 8, 1]),
        kinds=st.lists(KINDS, min_size=1, max_size=2),
        ways=st.lists(WAYS, min_size=PARTITIONS, max_size=PARTITIONS),
        logs=st.lists(FIRST_CELLS, min_size=2, max_size=PARTITIONS),
        ends_sated=st.booleans(),
    )
    def begin(
        self,
        ordering: Ordering | None,
        workers: int,
        max_parked: int,
        kinds: Sequence[Batching],
        ways: Sequence[Sequence[Way]],
        logs: list[list[Cell]],
        ends_sated: bool = False,
    ) -> None:
        """``ways`` of each partition."""
        self.kinds = kinds
        self.ways = Ways(kinds, ways)
        self.ends_sated = ends_sated
        self.together: dict[Entry, Together] = {}
        self.lingering: list[PendingBatch] = []
        self.known_due: set[PendingBatch] = set()
        self.was_held_back: set[Source] = set()
        self.heard_taken = self.expected_taken = 0
        super().begin(
            ordering=ordering,
            workers=workers,
            max_parked=max_parked,
            block=False,
            metadata_limit=0,
            believed_limit=4096,
            logs=[],
        )
        self.assembler.on_linger, self.assembler.on_over = self._lingers, self._is_over
        self.makes_due = self.assembler.make_due
        self.assembler.make_due = self._made_due  # type: ignore[method-assign]
        self.taken_left = self.scheduler.counters.taken_left = 5
        for partition, cells in enumerate(logs):
            self.fetch(partition, cells, 0)

    def signals(self) -> Signals:
        signals = Signals()
        signals.taken = self._hear_taken
        return signals

    def _hear_taken(self) -> None:
        self.heard_taken += 1

    def batchings(self) -> Batchings:
        return self.ways

    @property
    def assembler(self) -> BatchAssembler:
        assert self.scheduler.assembler is not None
        return self.scheduler.assembler

    @property
    def open(self) -> list[PendingBatch]:
        return list(self.assembler._open)

    @property
    def alone(self) -> set[Entry]:
        """They run in no batch with others."""
        return {entry for entry in self.model.entries(*State) if history_of(entry.record).alone}

    @property
    def most_in_flight(self) -> int:
        return self.workers * max(kind.terms.size for kind in self.kinds)

    @property
    def calls(self) -> list[Together]:
        """That are not settled, in the order in which their records stand."""
        found = [self.together[entry] for entry in self.model.entries(*BEGUN) if entry in self.together]
        return [one for one in dict.fromkeys(found) if not one.settled]

    @property
    def busy(self) -> int:
        """Workers."""
        return len({self.together.get(entry, entry) for entry in self.model.entries(State.IN_FLIGHT)})

    def singles(self, *states: State) -> list[Entry]:
        entries = super().singles(*states)
        return [entry for entry in entries if entry not in self.together or self.together[entry].settled]

    # -- lingering --------------------------------------------------------------------------------------

    def _lingers(self, pending: PendingBatch) -> None:
        assert pending not in self.lingering, "reported twice"
        assert not pending.is_due
        assert not pending.is_over
        assert pending.batching.terms.linger, "this one does not wait"
        self.lingering.append(pending)

    def _is_over(self, pending: PendingBatch) -> None:
        self.lingering.remove(pending)

    @rule(partition=PARTITION, cells=CELLS, back=st.integers(0, 2))
    def fetch(self, partition: int, cells: list[Cell], back: int) -> None:
        """Where records come that make a batch full with those in it, it waits no more."""
        super().fetch(partition, cells, back)
        for holding in self.model.holdings.values():
            if holding.assignment.full:
                self.was_held_back.add(holding.assignment)
        for one in self.open:
            terms = one.batching.terms
            if terms.max_bytes is None and not self.was_held_back.intersection(one.parts):
                owners = [holding for holding in self.model.holdings.values() if holding.assignment in one.parts]
                if all(self.ways.only(owner.partition) for owner in owners):
                    assert one.is_due or self._with_behind(one, owners) < terms.size, "full, and it waits"

    def _with_behind(self, pending: PendingBatch, owners: Collection[Holding]) -> int:
        """Records that could start with it now."""
        count = 0
        for owner in owners:
            gathered = [entry for entry in owner.entries if entry.record in set(pending.records)]
            lanes = {entry.lane for entry in gathered}
            count += sum(entry.lane is None for entry in gathered)
            for lane in lanes - {None}:
                for entry in owner.entries:
                    if entry.lane == lane:
                        if not self.may_start(entry) or entry in self.alone:
                            break
                        count += 1
        return count

    @precondition(lambda self: self.lingering)
    @rule(pick=PICK)
    def make_due(self, pick: int) -> None:
        """It has waited long enough."""
        self._make_due(self.lingering[pick % len(self.lingering)])

    def _make_due(self, pending: PendingBatch) -> None:
        self.known_due.add(pending)
        self.assembler.make_due(pending)

    def _made_due(self, pending: PendingBatch) -> None:
        """Nothing may come for it now. Whatever it still takes is no reason to wait again."""
        entries = [entry for record, entry in Before(self).waiting.items() if record in set(pending.records)]
        if not self._needs_nothing(pending, entries):
            assert pending in self.known_due, "it could linger"
        self.known_due.add(pending)
        self.makes_due(pending)

    def _needs_nothing(self, pending: PendingBatch, entries: Sequence[Entry]) -> bool:
        terms = pending.batching.terms
        if pending.count == terms.size or not terms.linger:
            return True
        return not self._may_grow(pending.batching, {entry.owner for entry in entries})

    @rule(partition=PARTITION, no_more_input=st.booleans())
    def set_no_more_input(self, partition: int, no_more_input: bool) -> None:
        """Nothing more comes of it for now, or something may again."""
        holding = self.model.holdings.get(partition)
        if holding is not None:
            self.assembler.set_no_more_input(holding.assignment, no_more_input)

    @precondition(lambda self: self.lingering)
    @rule(partition=PARTITION, goes=st.booleans())
    def sate_all_but(self, partition: int, goes: bool) -> None:
        """One partition only may bring more; perhaps it is taken away then."""
        self.set_no_more_input(partition, no_more_input=False)
        for number in self.model.holdings:
            if number != partition:
                self.set_no_more_input(number, no_more_input=True)
        self.pending()
        if goes:
            self.stop_or_lose(partition)

    @precondition(lambda self: self.model.holdings and self.scheduler.unfinished)
    @rule(pick=PICK, below=st.booleans())
    def set_ceiling(self, pick: int, below: bool) -> None:
        unfinished = self.model.entries(*UNFINISHED)
        self.was_held_back.add(unfinished[pick % len(unfinished)].owner.assignment)
        super().set_ceiling(pick, below)

    def _follow_pauses(self) -> None:
        self.was_held_back.update(holding.assignment for holding in self.model.holdings.values())
        super()._follow_pauses()

    def may_start(self, entry: Entry) -> bool:
        """Whether it may, once those before it in its lane start with it."""
        assignment = entry.owner.assignment
        allowed = entry.offset <= assignment.map_ceiling and (entry.tried or not assignment.full)
        return entry.waits and allowed and not entry.owner.stopped and not self.model.is_paused(entry)

    @precondition(lambda self: self.model.holdings)
    @rule(partition=PARTITION)
    def stop_or_lose(self, partition: int) -> None:
        """Stop an assignment whatever is with it; drop one that has stopped."""
        holding = self.model.holdings.get(partition)
        if holding is None:
            return
        if holding.stopped:
            self._drop(holding)
        else:
            self.drain(partition)

    # What commits do to ledgers is the other machine's matter: rules there, and none here.

    def commit(self, fate: Fate) -> None:
        super().commit(fate)

    def answer(self) -> None:
        super().answer()

    def another_member(self, partition: int, ended: set[int]) -> None:
        super().another_member(partition, ended)

    def compact(self, partition: int, pick: int) -> None:
        super().compact(partition, pick)

    def revoke(self, partition: int) -> None:
        super().revoke(partition)

    # -- starts -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.scheduler.has_ready and self.busy < self.workers)
    @rule(count=st.integers(1, 3))
    def start(self, count: int) -> None:
        for _ in range(count):
            if self.busy >= self.workers or not self._take():
                return

    def _could(self) -> list[Entry]:
        return [one for holding in self.model.holdings.values() for one in self.model.startable(holding)]

    def _take(self) -> bool:
        while self.scheduler.has_ready:
            if self._turn(1, 0, 0):
                return True
        waiting = {record for one in self.open if not one.is_due for record in one.records}
        stuck = [entry for entry in self._could() if entry.record not in waiting]
        assert not stuck, "nothing was started though something is ready"
        return False

    @precondition(lambda self: self.scheduler.has_ready and self.busy < self.workers)
    @rule(most=st.integers(1, 5), ends=st.integers(0, 5), looked_at=st.integers(0, 5))
    def run(self, most: int, looked_at: int, ends: int) -> None:
        """A turn. Where records run by themselves some end in their first step, and one of these looks around."""
        self._turn(most, looked_at, ends)

    def _turn(self, most: int, looked_at: int, ends: int) -> bool:
        """Whether something was started."""
        before = Before(self)
        started: list[Entry] = []

        def step(record: Record[Any, Any]) -> object:
            could = self._could()
            entry = self._started(record, could, self.model.parked_beside_pauses())
            assert self.ways.of(record) is None, "it runs by itself, and belongs into a batch"
            if not started:
                self._look(could, [entry])
            entry.state = State.IN_FLIGHT
            started.append(entry)
            self._count_taken(1)
            if len(started) == looked_at:
                self.scheduler.flush_counters()
                self.check_all()
            if len(started) > ends:
                return None
            self._ended(entry, EndState.SUCCEEDED)
            return ENDED

        taken = self.scheduler.run_ready(step, lambda record, ended: None, [None] * most)
        if taken is not None and taken[1] is TOGETHER:
            assert not started
            assert isinstance(taken[0], Call)
            self._started_together(taken[0], before)
            return True
        assert len(started) <= most
        on = started[-1] if started and started[-1].state is State.IN_FLIGHT else None
        assert taken == (None if on is None else (on.record, None))
        return bool(started)

    def _look(self, could: Sequence[Entry], chosen: Sequence[Entry]) -> None:
        """Partitions whose records run by themselves get their turns, beside whatever is in batches."""
        owners = {entry.owner for entry in chosen}
        self.model.look([entry for entry in could if entry.owner not in owners], chosen[0])
        for holding in self.model.holdings.values():
            if self.ways.is_plain(holding.partition):
                assert holding.passed_over <= PARTITIONS + len(self.kinds), "no turns"

    def counts_start(self) -> None:
        self._count_taken(1)

    def _count_taken(self, count: int) -> None:
        self.expected_taken += self.taken_left > 0 >= self.taken_left - count
        self.taken_left -= count

    def _started_together(self, call: Call, before: Before) -> None:
        entries = [before.waiting[record] for record in call.records if record in before.waiting]
        assert len(entries) == len(call.records), "started, and had begun or ended already"
        assert len(set(entries)) == len(entries), "twice in one call"
        assert call.parts.keys() == {entry.owner.assignment for entry in entries}
        assert all(record._source is source for source, part in call.parts.items() for record in part)
        batching = call.batching
        assert batching is not None
        assert {self.ways.of(entry.record) for entry in entries} == {batching}
        terms = batching.terms
        assert len(entries) <= terms.size, "I4"
        size = sum(size_of(entry.record) for entry in entries)
        assert terms.max_bytes is None or len(entries) == 1 or size <= terms.max_bytes, "I4"
        assert len({self._scope(batching, entry) for entry in entries}) == 1, "not of one partition, or lane"
        assert len(entries) == 1 or not self.alone.intersection(entries), "it has failed in company"
        assert before.parked < self.max_parked or all(entry.tried for entry in entries), "I4"
        assert all(entry.record.attempt == 1 + entry.failed for entry in entries)
        for owner, lane in dict.fromkeys((entry.owner, entry.lane) for entry in entries):
            part = [entry for entry in entries if (entry.owner, entry.lane) == (owner, lane)]
            assert before.startable.issuperset(part if lane is None else part[:1]), "I3: out of turn, or held back"
            assert before.may_start.issuperset(part), "I3: not yet, or held back"
            chain = [entry for entry in owner.entries if entry.lane == lane]
            assert lane is None or part == chain[: len(part)], "I3: not one after the other"
            if lane is not None and len(chain) > len(part) < len(entries) < terms.size:
                self._is_not_left_out(chain[len(part)], call, size, before)
        if not self.alone.intersection(entries):
            assert self._need_not_wait(batching, entries, size, before), "it could have lingered"
        self._look(list(before.startable), entries)
        one = Together(call, entries)
        for entry in entries:
            entry.state = State.IN_FLIGHT
            self.together[entry] = one
        self._count_taken(len(entries))
        assert self.busy <= self.workers

    def _scope(self, batching: Batching, entry: Entry) -> Hashable:
        by = batching.terms.by
        return None if by == "any" else entry.owner if by == "partition" else (entry.owner, entry.lane)

    def _is_not_left_out(self, following: Entry, call: Call, size: int, before: Before) -> None:
        """There is room for one more, and this is the next of its lane."""
        assert call.batching is not None
        most = call.batching.terms.max_bytes
        may_come = (
            following in before.may_start
            and following not in self.alone
            and self.ways.of(following.record) is call.batching
            and (most is None or size + size_of(following.record) <= most)
        )
        assert not may_come, "left out, though there was room"

    def _need_not_wait(self, batching: Batching, entries: Sequence[Entry], size: int, before: Before) -> bool:
        """Why a call starts now."""
        if len(entries) == batching.terms.size or not batching.terms.linger:
            return True
        if not self._may_grow(batching, {entry.owner for entry in entries}):
            return True
        if any(due.issubset({entry.record for entry in entries}) for due in before.due):
            return True
        most = batching.terms.max_bytes
        return most is not None and any(
            size + size_of(entry.record) > most and self.ways.of(entry.record) is batching
            for entry in before.may_start.difference(entries)
        )

    def _may_grow(self, batching: Batching, owners: Collection[Holding]) -> bool:
        """Whether somebody may bring more for it: for shared batches all whose records go there and nowhere else."""
        if batching.terms.by == "any":
            own = [
                holding
                for holding in self.model.holdings.values()
                if not holding.assignment.stopped
                and holding.assignment in self.scheduler.sources
                and self.ways.only(holding.partition) is batching
            ]
            owners = {*owners, *own}
        return any(not owner.assignment.no_more_input for owner in owners)

    # -- what always holds ------------------------------------------------------------------------------

    def gathered(self, holding: Holding) -> list[AnyRecord]:
        """Of each lane all but the first must follow it, one after the other."""
        heads = []
        for pending in self.open:
            part = [
                entry for entry in holding.entries if entry.record in set(pending.parts.get(holding.assignment, ()))
            ]
            for lane in dict.fromkeys(entry.lane for entry in part):
                of_lane = [entry for entry in part if entry.lane == lane]
                if lane is None:
                    heads += [entry.record for entry in of_lane]
                    continue
                heads.append(of_lane[0].record)
                chain = [entry for entry in holding.entries if entry.lane == lane]
                assert of_lane == chain[: len(of_lane)], "I3: gathered, and not one after the other"
        return heads

    @invariant()
    def pending(self) -> None:
        """Each is what it says, and waits only for what may come."""
        may_start = {entry.record: entry for entry in Before(self).may_start}
        everywhere: list[AnyRecord] = []
        for one in self.open:
            records = list(one.records)
            everywhere += records
            assert may_start.keys() >= set(records), "gathered, and may not start"
            entries = [may_start[record] for record in records]
            assert {source for source, part in one.parts.items() if part} == {
                entry.owner.assignment for entry in entries
            }
            assert all(record._source is source for source, part in one.parts.items() for record in part)
            assert 0 < one.count == len(records) <= one.batching.terms.size
            assert {self.ways.of(record) for record in records} == {one.batching}
            assert len({self._scope(one.batching, entry) for entry in entries}) == 1
            assert not self.alone.intersection(entries)
            most, size = one.batching.terms.max_bytes, sum(size_of(record) for record in records)
            assert most is None or one.bytes == size
            assert most is None or len(records) == 1 or size <= most
            behind = {entry.record for entry in entries if any(is_before(other, entry) for other in entries)}
            assert one.mates == behind
            assert not one.is_over
            assert one.is_due or one in self.lingering
            assert one.is_due or not self._needs_nothing(one, entries), "it lingers for nothing"
            assert not one.is_due or one in self.known_due, "it could linger"
        assert len(everywhere) == len(set(everywhere)), "gathered twice"
        assert set(self.lingering) <= set(self.open)

    @invariant()
    def whoever_has_work_is_in_the_line(self) -> None:
        """Or nobody would look."""
        line = list(self.scheduler._line)
        assert len(line) == len(set(line))
        assert all(member.is_queued for member in line)
        for holding in self.model.holdings.values():
            assert (holding.assignment in line) == bool(holding.assignment.ready)
        for one in self.open:
            assert not one.is_due or self.assembler._kinds[one.batching].line in line

    @invariant()
    def heads(self) -> None:
        """Of all lanes, wherever their first record is."""
        heads = self.scheduler.heads()
        for holding in self.model.holdings.values():
            if not holding.stopped:
                lanes: dict[Hashable, Entry] = {}
                firsts = [e for e in holding.entries if e.lane is None or lanes.setdefault(e.lane, e) is e]
                assert {head for head in heads if head._source is holding.assignment} == {e.record for e in firsts}

    @invariant()
    def starts_are_counted(self) -> None:
        """Whoever reads on hears that there is room."""
        assert self.scheduler.counters.taken_left == self.taken_left
        assert self.heard_taken >= self.expected_taken
        self.heard_taken = self.expected_taken = 0  # it is told of what is left to linger, too
        if self.taken_left <= 0:
            self.taken_left = self.scheduler.counters.taken_left = 5

    def check_all(self) -> None:
        super().check_all()
        self.pending()
        self.heads()


class Before:
    """What the model says before a worker looks."""

    def __init__(self, state: Gathered) -> None:
        model = state.model
        self.waiting = {entry.record: entry for entry in model.entries(State.BUFFERED, State.PARKED)}
        self.parked = model.parked_beside_pauses()
        self.startable = {entry for holding in model.holdings.values() for entry in model.startable(holding)}
        self.may_start = {entry for entry in self.waiting.values() if state.may_start(entry)}
        """Where those before it in its lane start with it."""
        self.due = [set(one.records) for one in state.open if one.is_due]


def is_before(other: Entry, entry: Entry) -> bool:
    same = (other.owner, other.lane) == (entry.owner, entry.lane) and entry.lane is not None
    return same and other.offset < entry.offset
