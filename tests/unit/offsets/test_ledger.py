"""The ledger against a model that keeps everything in sets."""

from __future__ import annotations

import time
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioparallel.offsets import Ledger, OffsetMap, decode_offset_map, fit_offset_map
from tests.support.examples import examples


class Model:
    """Each offset is complete, incomplete, or not known yet: two sets, and loops."""

    def __init__(self, base: int, restored: OffsetMap) -> None:
        self.base = self.position = base
        self.restored_until = restored.highest_succeeded
        self.incomplete = set(restored.incompletes)
        self.complete = set(range(base, restored.highest_succeeded + 1)) - self.incomplete
        self.by_name = set(self.complete)

    def register(self, offsets: list[int], next_offset: int) -> list[int]:
        run = []
        for offset in range(self.position, next_offset):
            if offset in self.complete:
                continue
            if offset in offsets:
                self.incomplete.add(offset)
                run.append(offset)
            else:
                self.incomplete.discard(offset)
                self.complete.add(offset)
        self.position = max(self.position, next_offset)
        return run

    def next_commit(self) -> int:
        offset = self.base
        while offset in self.complete:
            offset += 1
        return offset


class LedgerMachine(RuleBasedStateMachine):
    """Registers with gaps and duplicates, completes in any order, with and without a restored map."""

    @initialize(base=st.sampled_from([0, 7, 10**15]), flags=st.lists(st.booleans(), max_size=40))
    def assigned(self, base: int, flags: list[bool]) -> None:
        while flags and not flags[-1]:
            flags.pop()
        incompletes = tuple(base + at for at, complete in enumerate(flags) if not complete)
        restored = OffsetMap(base, base + len(flags) - 1, incompletes)
        self.ledger = Ledger(base, restored if flags else None)
        self.model = Model(base, restored)
        self.running: list[int] = []
        self.versions: dict[object, OffsetMap] = {}

    @rule(
        back=st.integers(0, 5) | st.just(0),
        delivered=st.lists(st.booleans() | st.just(True), max_size=30),
        behind=st.integers(0, 3),
    )
    def fetched(self, back: int, delivered: list[bool], behind: int) -> None:
        first = max(self.model.base, self.model.position - back)
        offsets = [first + at for at, there in enumerate(delivered) if there]
        next_offset = first + len(delivered) + behind
        run = self.ledger.register(offsets, next_offset)
        assert run == self.model.register(offsets, next_offset)
        self.running += run

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def completed(self, data: st.DataObject) -> None:
        offset = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        before = self.ledger.version[1]
        self.ledger.complete(offset)
        assert self.ledger.version[1] == before + 1
        self.model.incomplete.remove(offset)
        self.model.complete.add(offset)
        self.model.by_name.add(offset)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def completed_together(self, data: st.DataObject) -> None:
        offsets = data.draw(st.lists(st.sampled_from(self.running), unique=True))
        self.ledger.complete_all(offsets)
        self.running = [offset for offset in self.running if offset not in offsets]
        self.model.incomplete.difference_update(offsets)
        self.model.complete.update(offsets)
        self.model.by_name.update(offsets)

    @precondition(lambda self: self.model.complete)
    @rule(data=st.data())
    def completed_twice(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.model.complete)))
        with pytest.raises(ValueError, match=f"offset {offset} is not incomplete"):
            self.ledger.complete(offset)

    @rule(ahead=st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True))
    def completed_unread(self, ahead: list[int]) -> None:
        model = self.model
        offsets = sorted({model.position + one for one in ahead} - model.complete)
        if not offsets:
            return
        before = self.ledger.version[1]
        self.ledger.complete_unread(offsets)
        assert self.ledger.version[1] == before + len(offsets)
        known = max(model.position - 1, model.restored_until)
        model.incomplete = (model.incomplete | set(range(known + 1, offsets[-1]))) - set(offsets)
        model.complete.update(offsets)
        model.by_name.update(offsets)
        model.restored_until = max(model.restored_until, offsets[-1])

    @invariant()
    def the_ledger_is_the_model(self) -> None:
        ledger, model = self.ledger, self.model
        assert list(ledger.incompletes) == sorted(model.incomplete)
        assert ledger.position == model.position
        assert ledger.next_commit == model.next_commit()
        assert ledger.highest_completed == max(model.by_name, default=model.base - 1)
        assert ledger.restored_until == model.restored_until
        for offset in range(model.base, max(model.position, model.restored_until) + 3):
            assert ledger.is_complete(offset) is (offset in model.complete)

    @invariant()
    def the_snapshot_is_the_model(self) -> None:
        snapshot, model = self.ledger.snapshot(), self.model
        assert snapshot.base_offset == model.next_commit()
        said = set(range(snapshot.base_offset, snapshot.highest_succeeded + 1)) - set(snapshot.incompletes)
        highest = max(model.by_name, default=model.base - 1)
        assert said == {offset for offset in model.complete if snapshot.base_offset <= offset <= highest}
        text, _ = fit_offset_map(snapshot.base_offset, snapshot.highest_succeeded, snapshot.incompletes)
        assert decode_offset_map(snapshot.base_offset, text) == snapshot
        # The same version never stood for another map.
        assert self.versions.setdefault(self.ledger.version, snapshot) == snapshot


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(60), stateful_step_count=25)


def test_begins_at_the_committed_offset() -> None:
    """A new ledger knows nothing, and would commit the committed offset."""
    ledger = Ledger(42)
    assert (ledger.position, ledger.next_commit, ledger.highest_completed) == (42, 42, 41)
    assert ledger.snapshot() == OffsetMap(42, 41)
    assert (ledger.version[1], len(ledger.incompletes)) == (0, 0)


def test_a_gap_completes_without_an_outcome() -> None:
    """After an aborted transaction nothing is delivered, and still the commit advances (lag reaches 0)."""
    ledger = Ledger(10)
    assert ledger.register([], 25) == []
    assert ledger.next_commit == 25
    assert ledger.highest_completed == 9
    assert fit_offset_map(ledger.next_commit, ledger.highest_completed, ledger.incompletes) == ("", 24)


def test_restored_incompletes_run_and_the_rest_does_not() -> None:
    """After a restart only offsets that the map lists, and those above it, run again."""
    ledger = Ledger(100, OffsetMap(100, 109, (100, 104, 107)))
    assert ledger.next_commit == 100
    assert ledger.register([100, 101, 102, 103, 104, 105], 106) == [100, 104]
    assert ledger.register([106, 107, 108, 109, 110, 111], 112) == [107, 110, 111]
    for offset in (100, 104, 107):
        ledger.complete(offset)
    assert ledger.next_commit == 110


def test_a_map_without_incompletes_commits_beyond_the_position() -> None:
    """If all listed offsets are gone from the log, the commit is after the map."""
    ledger = Ledger(100, OffsetMap(100, 109, (100, 104)))
    assert ledger.register([105], 106) == []
    assert ledger.next_commit == 110
    assert ledger.position == 106


def test_offsets_that_are_not_fetched_yet_can_be_completed() -> None:
    """Their records do not run when they come; all others do, and a map says so meanwhile."""
    ledger = Ledger(5)
    assert ledger.register([5, 6], 7) == [5, 6]
    ledger.complete_unread([9, 11])
    assert ledger.snapshot() == OffsetMap(5, 11, (5, 6, 7, 8, 10))
    assert ledger.register([7, 8, 9, 10, 11, 12], 13) == [7, 8, 10, 12]
    ledger.complete_all([5, 6, 7, 8, 10])
    assert ledger.next_commit == 12


def test_the_same_list_comes_back() -> None:
    """In the usual case nothing is copied."""
    offsets = list(range(5, 10))
    assert Ledger(5).register(offsets, 10) is offsets
    assert Ledger(5).register(range(5, 10), 10) == offsets


@pytest.mark.parametrize(("offsets", "next_offset"), [([5, 6], 6), ([9, 5], 10), ([5], 5)])
def test_offsets_that_do_not_fit_the_position_are_refused(offsets: list[int], next_offset: int) -> None:
    """A client that delivers beyond its own position is defective; nothing is registered."""
    ledger = Ledger(5)
    with pytest.raises(ValueError, match="must ascend and end below"):
        ledger.register(offsets, next_offset)
    assert ledger.position == 5


def test_one_wrong_offset_among_several() -> None:
    """It is named, and those before it are complete."""
    ledger = Ledger(0)
    ledger.register(range(5), 5)
    with pytest.raises(ValueError, match="offset 9 is not incomplete"):
        ledger.complete_all([3, 9, 4])
    assert list(ledger.incompletes) == [0, 1, 2, 4]
    assert ledger.highest_completed == 3


def test_what_is_registered_above_the_last_completed_is_not_in_the_map() -> None:
    """A commit contains the offsets up to the highest completed one, however many wait above it."""
    ledger = Ledger(0)
    ledger.register(range(9), 9)
    ledger.complete_all([2, 4])
    assert ledger.snapshot() == OffsetMap(0, 4, (0, 1, 3))


def test_arguments_that_make_no_ledger() -> None:
    """A negative base, and a map for another offset."""
    with pytest.raises(ValueError, match="base=-1"):
        Ledger(-1)
    with pytest.raises(ValueError, match="about offset 5, not about base=6"):
        Ledger(6, OffsetMap(5, 9, (5,)))


def test_a_version_is_for_every_change() -> None:
    """It changes with the position and with each completion, and with nothing else."""
    ledger = Ledger(0)
    seen = {ledger.version}
    ledger.register([0, 1, 2], 3)
    seen.add(ledger.version)
    ledger.complete(1)
    seen.add(ledger.version)
    ledger.register([0, 1], 3)
    assert ledger.version in seen
    ledger.complete(0)
    seen.add(ledger.version)
    assert len(seen) == 4


def test_repr_has_the_position() -> None:
    """For logs and debuggers."""
    ledger = Ledger(3)
    ledger.register([3, 4], 5)
    assert repr(ledger) == "<Ledger position 5 incomplete 2 next_commit 3>"


def test_a_stuck_record_keeps_memory_small() -> None:
    """Two million completed offsets above a stuck record leave a ledger below 1 MB, and a map of a few characters."""
    ledger = Ledger(0)
    ledger.register([0], 1)
    tracemalloc.start()
    try:
        for first in range(1, 2_000_001, 10_000):
            for offset in ledger.register(list(range(first, first + 10_000)), first + 10_000):
                ledger.complete(offset)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
    assert peak < 10_000_000
    assert ledger.version[1] == 2_000_000
    snapshot = ledger.snapshot()
    assert snapshot == OffsetMap(0, 2_000_000, (0,))
    assert len(fit_offset_map(0, 2_000_000, snapshot.incompletes)[0]) == 12


def test_memory_comes_back_after_a_burst() -> None:
    """After a million offsets were registered at once and completed, no dict of a million slots remains."""
    ledger = Ledger(0)
    offsets = list(range(1_000_000))
    tracemalloc.start()
    try:
        ledger.register(offsets, 1_000_000)
        full = tracemalloc.get_traced_memory()[0]
        for offset in offsets:
            ledger.complete(offset)
        assert ledger.next_commit == 1_000_000
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert full > 20_000_000
    assert left < 1_000_000


def test_asking_for_the_commit_stays_quick() -> None:
    """A million completed in order, queried every 10,000: about 25 ms in total; 500 are allowed."""
    ledger = Ledger(0)
    offsets = list(range(1_000_000))
    ledger.register(offsets, 1_000_000)
    asked = 0.0
    for first in range(0, 1_000_000, 10_000):
        for offset in offsets[first : first + 10_000]:
            ledger.complete(offset)
        begun = time.process_time()
        assert ledger.next_commit == first + 10_000
        asked += time.process_time() - begun
    assert asked < 0.5


@given(seed=st.integers(0, 10**6))
@settings(max_examples=examples(20))
def test_a_restart_loses_nothing_and_repeats_only_what_was_open(seed: int) -> None:
    """After a commit at any moment and a restart, exactly the incomplete offsets run again (I2, I9)."""
    random = Random(seed)
    ledger, done, running = Ledger(0), set[int](), list[int]()
    for first in range(0, 3_000, 100):
        running += ledger.register([at for at in range(first, first + 100) if at % 13], first + 100)
        random.shuffle(running)
        for _ in range(random.randint(0, len(running))):
            done.add(offset := running.pop())
            ledger.complete(offset)
    snapshot = ledger.snapshot()
    text, cut = fit_offset_map(snapshot.base_offset, snapshot.highest_succeeded, snapshot.incompletes, limit=200)
    again = Ledger(snapshot.base_offset, decode_offset_map(snapshot.base_offset, text))
    log = [at for at in range(snapshot.base_offset, 3_000) if at % 13]
    run = again.register(log, 3_000)
    assert [offset for offset in run if offset <= cut] == [offset for offset in snapshot.incompletes if offset <= cut]
    assert done.isdisjoint(offset for offset in run if offset <= cut)
    assert {at for at in range(3_000) if at % 13} == done | set(run)
