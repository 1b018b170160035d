"""The sync core against the model: what always holds, and how it ends."""

from __future__ import annotations

import sys

from hypothesis.stateful import invariant

from aioparallel.engine.schedule.counters import EndState
from aioparallel.engine.schedule.scheduler import AnyRecord
from aioparallel.engine.sources import NO_CEILING
from tests.support.model.group import Fate
from tests.support.model.model import BEGUN, GAP, Holding, State
from tests.support.model.moves import Moves

__all__ = ["SyncCore"]


class SyncCore(Moves):
    """What always holds, and how it ends."""

    @invariant()
    def conservation(self) -> None:
        """I5, over all and by assignment; nothing is recounted or clamped."""
        scheduler, counters, model = self.scheduler, self.scheduler.counters, self.model
        assert counters.in_flight == len(model.entries(State.IN_FLIGHT))
        assert counters.producing == len(model.entries(State.PRODUCING))
        assert scheduler.buffered == len(model.entries(State.BUFFERED))
        assert scheduler.parked == len(model.entries(State.PARKED))
        ended = (counters.succeeded, counters.dead_lettered, counters.skipped)
        assert ended == tuple(model.ended.values())
        assert (counters.admitted, counters.dropped) == (model.admitted, model.dropped)
        assert counters.admitted == scheduler.unfinished + sum(ended) + counters.dropped
        for holding in model.holdings.values():
            assignment = holding.assignment
            assert assignment.buffered == holding.count(State.BUFFERED)
            assert assignment.buffered_bytes == holding.buffered_bytes
            for state, records in (
                (State.PARKED, assignment.parked),
                (State.IN_FLIGHT, assignment.in_flight),
                (State.PRODUCING, assignment.producing),
            ):
                assert records == {entry.record for entry in model.entries(state) if entry.owner is holding}

    @invariant()
    def exactly_what_may_start_is_ready(self) -> None:
        """What is ready or held back is what the model says, each once."""
        total = 0
        for holding in self.model.holdings.values():
            assignment = holding.assignment
            total += len(assignment.ready)
            heads = [*assignment.ready, *assignment.held, *self.gathered(holding)]
            assert len(heads) == len(set(heads))
            assert set(heads) == {entry.record for entry in self.model.ready(holding)}
        assert self.scheduler.ready == total

    def gathered(self, holding: Holding) -> list[AnyRecord]:
        """Heads of lanes that wait in batches."""
        return []

    @invariant()
    def bounds(self) -> None:
        """I4: all in flight may fail beyond the bound, and all outputs that were on their way. With pauses twice."""
        most = self.max_parked - 1 + self.most_in_flight + self.most_producing
        most *= 2 if self.was_paused else 1
        assert self.scheduler.parked <= most, "I4: more are parked than the bound allows"
        assert self.scheduler.counters.in_flight <= self.most_in_flight
        for holding in self.model.holdings.values():
            assert not holding.assignment.full or self.scheduler.parked * 8 >= self.max_parked * 3 - 8

    @invariant()
    def the_ledger_knows_what_the_model_knows(self) -> None:
        """I2 and I6: each outcome reaches its own assignment's ledger and no other."""
        for holding in self.model.holdings.values():
            ledger, known = holding.assignment.ledger, holding.known
            assert list(ledger.incompletes) == sorted(known.incomplete)
            assert (ledger.position, ledger.next_commit) == (known.position, known.base)
            cells, ended = self.group.logs[holding.partition].cells, self.group.logs[holding.partition].ended
            assert all(o in ended or cells[o] == GAP for o in range(known.base))
        for holding in self.model.gone:
            ledger = holding.assignment.ledger
            assert holding.frozen == (ledger.version, dict(ledger.incompletes)), "I6: an older epoch's ledger moved"

    @invariant()
    def clean_means_acknowledged(self) -> None:
        """I7: an assignment is dirty until exactly what it says now was acknowledged."""
        for holding in self.model.holdings.values():
            assert holding.assignment.dirty == (holding.acknowledged != holding.known.said())

    @invariant()
    def timers(self) -> None:
        """The next timer is that of the first that wakes."""
        assert self.retries.next_time == min((when for when, _ in self.sleeping), default=None)
        assert len(self.retries) == len(self.sleeping)

    @invariant()
    def whoever_can_start_nothing_is_not_passed_over(self) -> None:
        """Not a claim but the model's own: turns are counted from when something could start."""
        self.model.begin_waiting_anew()

    # -- the end ----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Nothing is stuck: with workers, time and a broker that answers everything ends, and all is committed."""
        if sys.exc_info()[0] is not None or not hasattr(self, "drained"):
            return
        while self.commits.waiting:
            self.commits.answer()
        self._end_what_begun_and_stopped()
        self.resume_all()
        for holding in self.model.holdings.values():
            self.scheduler.set_ceiling(holding.assignment, NO_CEILING)
            cells = self.group.logs[holding.partition].cells
            if holding.known.position < len(cells):
                self.fetch(holding.partition, [GAP] * (len(cells) - holding.known.position), 0)
        while self.scheduler.unfinished:
            self.advance(10.0)
            assert self.take_at_the_end(), "something is stuck"
            self.end_one()
        self.check_all()
        self._commit_the_end()

    def take_at_the_end(self) -> bool:
        """Whether something is started; nothing more comes, and all that waits has waited long enough."""
        return self._take()

    def end_one(self) -> None:
        """Something of what has begun ends well."""
        self.end(0, EndState.SUCCEEDED)

    def _end_what_begun_and_stopped(self) -> None:
        while self.model.entries(*BEGUN):
            self.end_one()
        for holding in list(self.model.holdings.values()):
            if holding.stopped:
                self._drop(holding)
        assert not self.scheduler._stale_lanes.left

    def _commit_the_end(self) -> None:
        self._rebalance()  # nothing is fenced any more
        self.commits.committer.limit.characters = 4096
        self.commit(Fate.TAKEN)
        while self.commits.waiting:
            self.commits.answer()
        for holding in self.model.holdings.values():
            log = self.group.logs[holding.partition]
            assert not holding.assignment.dirty
            assert log.committed is not None
            assert log.committed.offset == len(log.cells)
        self.check_all()
        assert (self.scheduler.ready, self.scheduler.buffered_bytes) == (0, 0)

    def check_all(self) -> None:
        self.conservation()
        self.exactly_what_may_start_is_ready()
        self.bounds()
        self.the_ledger_knows_what_the_model_knows()
        self.clean_means_acknowledged()
        self.timers()
        self.whoever_can_start_nothing_is_not_passed_over()
