"""The order of first commits: whatever members look, commit and die when, nobody takes an old partition for new, nor a
new one for old."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioparallel.group.starts import TopicPositions
from aioparallel.group.turns import awaited, next_to_go

MEMBERS = 3


@pytest.mark.parametrize(
    ("waiting", "committed", "going"),
    [
        ({0, 1, 2}, (), {0, 1, 2}),  # the highest is among them, and all go in one commit
        ({0, 1}, (), ()),
        ({2}, (), {2}),
        ({0, 1}, {2}, {0, 1}),
        ({1}, {0, 2}, {1}),  # expired
        ({3, 4}, {0, 1, 2}, {3, 4}),
        ({4, 5}, {0, 1, 2}, ()),
        ({3, 5}, {0, 1, 2}, {3}),
        ({0, 3, 5}, {1, 2}, {0, 3}),
    ],
)
def test_whose_turn_it_is(waiting: set[int], committed: set[int], going: set[int]) -> None:
    """Of topics whose highest partition is the highest named."""
    highest = max({*waiting, *committed, 2})
    assert next_to_go(waiting, committed, highest) == set(going)


def test_what_is_awaited() -> None:
    """The highest partition, or the one below."""
    assert awaited(0, (), 5) == 5
    assert awaited(4, {0, 1, 2}, 5) == 3


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_who_does_not_go_awaits_somebody_else(waiting: set[int], committed: set[int]) -> None:
    """Who is awaited is not committed, and goes no later with what waits here."""
    waiting -= committed
    highest = max(waiting | committed, default=0)
    going = next_to_go(waiting, committed, highest)
    for number in waiting - going:
        other = awaited(number, committed, highest)
        assert other not in committed
        assert other not in going
        assert other != number


class Group(RuleBasedStateMachine):
    """Members of one group, and one topic. Each member knows what was committed when it looked last, which may be long
    ago."""

    @initialize(partitions=st.integers(1, 6))
    def begin(self, partitions: int) -> None:
        self.partitions = self.first = partitions
        self.committed: dict[int, bool] = {}  # and whether each was taken for new
        self.owner = {number: number % MEMBERS for number in range(partitions)}
        self.choices: dict[int, bool] = {}  # of those that wait
        self.views: dict[int, tuple[frozenset[int], int]] = {}

    @rule(number=st.integers(0, 20))
    def look(self, number: int) -> None:
        """A partition opens."""
        number %= self.partitions
        if number in self.committed:
            return
        self.refresh(self.owner[number])
        self.choices.setdefault(number, TopicPositions(frozenset(), frozenset(self.committed)).is_new(number))

    @rule(member=st.integers(0, MEMBERS - 1))
    def refresh(self, member: int) -> None:
        self.views[member] = (frozenset(self.committed), self.partitions - 1)

    @rule(member=st.integers(0, MEMBERS - 1))
    def commit(self, member: int) -> None:
        waiting = {number for number in self.choices if self.owner[number] == member}
        if waiting:
            for number in next_to_go(waiting, *self.views[member]):
                self.committed[number] = self.choices.pop(number)

    @rule(member=st.integers(0, MEMBERS - 1), shift=st.integers(1, MEMBERS - 1))
    def die(self, member: int, shift: int) -> None:
        """Another one has its partitions, and knows nothing of them."""
        for number, owner in self.owner.items():
            if owner == member:
                self.owner[number] = (owner + shift) % MEMBERS
                self.choices.pop(number, None)

    @precondition(lambda self: self.committed and self.partitions < 10)
    @rule(more=st.integers(1, 3))
    def add(self, more: int) -> None:
        for number in range(self.partitions, self.partitions + more):
            self.owner[number] = number % MEMBERS
        self.partitions += more

    @invariant()
    def each_is_what_it_is(self) -> None:
        for number, was_new in self.committed.items():
            assert was_new == (number >= self.first), number

    def teardown(self) -> None:
        """Members that live get through with all."""
        for _ in range(self.partitions + 1 if hasattr(self, "owner") else 0):
            for number in range(self.partitions):
                self.look(number)
            for member in range(MEMBERS):
                self.refresh(member)
                self.commit(member)
        if hasattr(self, "owner"):
            assert len(self.committed) == self.partitions
            self.each_is_what_it_is()


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
