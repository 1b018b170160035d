"""The pauses of ``make load-rebalances``."""

from __future__ import annotations

import math

import pytest

from tests.support.rebalances.pauses import Handling, Pause, Stretch, Taken, beyond, judge, pauses, percentile, repeats

STRETCHES = [Stretch(0.0, is_fault=False), Stretch(10.0, is_fault=True), Stretch(20.0, is_fault=False)]


def handled(began: float, member: int, number: int, *, ok: bool = True, lasts: float = 0.1) -> Handling:
    return Handling(began, began + lasts, member, 0, number, ok)


def test_a_pause_is_longer_than_the_production_took() -> None:
    """Of a partition and a stretch the longest counts. What was not produced could not run."""
    some = [handled(1.0, 0, 0), handled(2.0, 0, 1), handled(5.0, 0, 2), handled(6.5, 0, 3)]
    assert pauses(some, [], [1.0, 2.0, 4.5, 5.0], STRETCHES, 30.0) == [Pause(1.0, 0, 0, has_moved=False)]


def test_a_pause_counts_where_it_ends_unless_a_fault_was_in_it() -> None:
    """A pause that touches a fault says nothing about the stretch after it."""
    some = [handled(8.0, 0, 0), handled(9.0, 1, 1), handled(12.0, 1, 2), handled(23.0, 1, 3), handled(24.5, 1, 4)]
    assert pauses(some, [], [0.0, 1.0, 2.0, 3.0, 4.0], STRETCHES, 30.0) == [
        Pause(0.0, 0, 0, has_moved=True),
        Pause(10.0, 0, 1, has_moved=False),
        Pause(0.5, 0, 2, has_moved=False),
    ]


def test_what_runs_again_ends_no_pause() -> None:
    """Only the first time counts, and what ran before the first stretch or after the end does not."""
    some = [handled(-1.0, 0, 0), handled(1.0, 0, 1), handled(2.0, 1, 0), handled(4.0, 1, 2), handled(31.0, 1, 3)]
    assert pauses(some, [], [0.0] * 4, STRETCHES, 30.0) == [Pause(3.0, 0, 0, has_moved=True)]


@pytest.mark.parametrize(("at", "member", "has_moved"), [(2.0, 1, True), (2.0, 0, False), (0.5, 1, False)])
def test_a_partition_that_came_back_has_moved(at: float, member: int, *, has_moved: bool) -> None:
    """Also if the other member has run nothing. In the classic protocol each one is taken again."""
    some = [handled(1.0, 0, 0), handled(4.0, 0, 1)]
    taken = [Taken(0, at, member), Taken(0, 3.0, 0), Taken(1, 2.0, 1)]
    assert pauses(some, taken, [0.0, 1.0], STRETCHES, 30.0) == [Pause(2.0, 0, 0, has_moved)]


def test_pauses_beyond_those_of_a_control() -> None:
    """The same partition at the same time is compared; without one there the whole pause counts."""
    some = [Pause(3.0, 0, 0, has_moved=False), Pause(1.0, 1, 0, has_moved=True)]
    assert beyond(some, [Pause(2.5, 0, 0, has_moved=False), Pause(9.0, 1, 1, has_moved=False)]) == [
        Pause(0.5, 0, 0, has_moved=False),
        Pause(1.0, 1, 0, has_moved=True),
    ]


def test_percentiles() -> None:
    """They are values that were there."""
    assert [percentile([4.0, 1.0, 2.0, 3.0], part) for part in (0.5, 0.75, 0.99)] == [2.0, 3.0, 4.0]
    assert math.isnan(percentile([], 0.5))


def test_a_record_that_was_cancelled_may_run_again_and_one_that_succeeded_is_a_repeat() -> None:
    """Neither is out of order, nor is anything lost."""
    some = [handled(1.0, 0, 0, ok=False), handled(2.0, 1, 0), handled(3.0, 1, 1), handled(4.0, 2, 0)]
    order, delivery = judge(some, lambda number: b"k", {(0, 0), (0, 1)})
    order.check()
    delivery.check(max_duplicates=1)
    assert repeats(some) == [some[3]]


@pytest.mark.parametrize("began", [1.05, 0.5])
def test_overlapping_and_overtaking_are_found(began: float) -> None:
    """Also between members."""
    order, _ = judge(sorted([handled(1.0, 0, 0), handled(began, 1, 1)]), lambda number: b"k", set())
    assert order.violations
