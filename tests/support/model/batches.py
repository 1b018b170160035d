"""Batches in the model: which records go where, calls, and what may happen to them beside what happens to single ones.

Records of one lane may be in one call, in order, never in two. A pending batch that lingers holds no worker, and does
not wait if no more records can come. One call takes records of any partitions, of one, or of one lane. A record that
failed in a batch runs alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from aioparallel.config.handling import Ordering
from aioparallel.engine.schedule.counters import EndState
from aioparallel.records.history import history_of
from tests.support.model.assignments import PARTITIONS, PICK
from tests.support.model.batch_kinds import KEYS, Together, kind
from tests.support.model.gathered import Gathered, is_before
from tests.support.model.model import BEGUN, Entry, State

__all__ = ["Batches", "OneHandler", "kind"]


class Batches(Gathered):
    """What is gathered, started together and ended together."""

    # -- ends -------------------------------------------------------------------------------------------

    def chosen_call(self, pick: int) -> Together:
        calls = self.calls
        return calls[pick % len(calls)]

    @precondition(lambda self: self.calls)
    @rule(pick=PICK, failed=st.sets(st.integers(0, 4), min_size=1))
    def settle(self, pick: int, failed: Collection[int]) -> None:
        """Some of it have failed; what becomes of these is told later."""
        self._settle(self.chosen_call(pick), failed)

    def _settle(self, one: Together, failed: Collection[int]) -> list[Entry]:
        wrong = [entry for place, entry in enumerate(one.entries) if place in failed]
        with_drain = self._drains_without(one)
        still = self.scheduler.settle(one.call, {entry.record for entry in wrong})
        expected = self._settled(one, wrong)
        assert still == [entry.record for entry in expected]
        with_drain()
        return expected

    @precondition(lambda self: any(one.entries[0].state is State.IN_FLIGHT for one in self.calls))
    @rule(pick=PICK)
    def succeed_together(self, pick: int) -> None:
        calls = [one for one in self.calls if one.entries[0].state is State.IN_FLIGHT]
        one = calls[pick % len(calls)]
        with_drain = self._drains_without(one)
        self.scheduler.succeed_together(one.call)
        assert not self._settled(one, ())
        with_drain()

    @precondition(lambda self: any(one.entries[0].state is State.IN_FLIGHT for one in self.calls))
    @rule(pick=PICK)
    def produce_together(self, pick: int) -> None:
        """It is producing, all of it, until it is settled."""
        calls = [one for one in self.calls if one.entries[0].state is State.IN_FLIGHT]
        one = calls[pick % len(calls)]
        self.scheduler.produce_together(one.call)
        for entry in one.entries:
            self._producing(entry)

    @precondition(lambda self: self.calls)
    @rule(pick=PICK)
    def put_back_together(self, pick: int) -> None:
        one = self.chosen_call(pick)
        with_drain = self._drains_without(one)
        self.scheduler.put_back_together(one.call)
        for entry in self._settled(one, one.entries):
            self.model.put_back(entry)
        with_drain()

    @precondition(lambda self: self.calls)
    @rule(
        pick=PICK,
        one_by_one=st.booleans(),
        delay=st.sampled_from([0.0, 1.0, 5.0]),
        wakes=st.booleans(),
    )
    def fail_together(self, pick: int, one_by_one: bool, delay: float, wakes: bool) -> None:
        """The handler has failed: all of it run again, each by itself or not, perhaps at once."""
        one = self.chosen_call(pick)
        if one_by_one and len(one.entries) > 1:
            for entry in one.entries:
                history_of(entry.record).alone = True
        for entry in self._settle(one, range(len(one.entries))):
            self._fail(entry, delay)
        if wakes:
            self.advance(delay)

    def _settled(self, one: Together, wrong: Collection[Entry]) -> list[Entry]:
        """The same in the model: what is behind a failed one of its lane goes back, unattempted."""
        one.settled = True
        still: list[Entry] = []
        for entry in one.entries:
            if entry.owner.dropped or any(is_before(other, entry) for other in still):
                self.model.put_back(entry)
            elif entry in wrong:
                still.append(entry)
            else:
                self._ended(entry, EndState.SUCCEEDED)
        return still

    def _drains_without(self, one: Together) -> Callable[[], None]:
        """To be asked when the call is over: whether it was heard that a drain is."""
        self.drained = False
        owners = {entry.owner for entry in one.entries if entry.owner.stopped and not entry.owner.dropped}

        def check() -> None:
            assert self.drained == any(not owner.count(*BEGUN) for owner in owners)

        return check

    def end_one(self) -> None:
        if self.calls:
            self._settle(self.calls[0], ())
        else:
            super().end_one()

    def take_at_the_end(self) -> bool:
        if self.ends_sated:
            for holding in self.model.holdings.values():
                self.assembler.set_no_more_input(holding.assignment, True)
            assert all(one.is_due for one in self.open), "waits, though nothing more comes"
            return self._take()
        if self._take():
            return True
        for pending in self.lingering:
            self._make_due(pending)
        return self._take()

    def teardown(self) -> None:
        super().teardown()
        if sys.exc_info()[0] is None and hasattr(self, "together"):
            assert not self.open
            assert not self.lingering
            assert not any(kind.line.holds or kind.shared for kind in self.assembler._kinds.values())
            assert not any(
                one.assignment.pending_batches or one.assignment.holds for one in self.model.holdings.values()
            )


class OneHandler(Batches):
    """All partitions bring records for the same batches, which wait; perhaps one of them not only."""

    @initialize(
        ordering=st.sampled_from([Ordering.KEY, Ordering.KEY, Ordering.UNORDERED, Ordering.PARTITION]),
        workers=st.integers(1, 3),
        max_parked=st.sampled_from([30, 4, 8, 2]),
        kinds=st.builds(
            kind,
            st.sampled_from([8, 5, 12, 3, 2]),
            st.sampled_from(["any", "any", "lane", "partition", "lane"]),
            linger=st.just(1.0),
            max_bytes=st.sampled_from([None, None, 5, 9]),
        ).map(lambda one: [one]),
        ways=st.sampled_from([[0], [0, None]]).map(lambda way: [[0], [0], way]),
        logs=st.lists(st.lists(KEYS, min_size=1, max_size=5), min_size=2, max_size=PARTITIONS),
        ends_sated=st.booleans(),
    )
    def begin(self, **given: Any) -> None:
        super().begin(**given)
