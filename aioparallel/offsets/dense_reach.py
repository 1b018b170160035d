"""How far Dense reaches in so many digits."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection

from aioparallel.offsets.dense import runs_at_least, split_runs
from aioparallel.offsets.java_reach import java_reach, promising_forms
from aioparallel.offsets.pattern import Pattern
from aioparallel.offsets.rice import RunningSizes, best_parameter, block_size, number_size

__all__ = ["dense_reaches"]

_FEW_DIGITS = 4_096


def dense_reaches(pattern: Pattern, digits: int) -> list[int]:
    """The highest offsets that Dense's bodies reach in so many digits: the Golomb-Rice codes, the Java payloads."""
    highest = _gaps_reach(pattern, digits)
    reached = pattern.cut(pattern.last_complete(highest))
    if runs_at_least(reached) < digits:  # else runs do not even fit here
        highest = max(highest, _rice_runs_reach(pattern, digits))
        reached = pattern.cut(pattern.last_complete(highest))
    # A Java payload reaches farther where zstd finds a pattern.
    octets = (digits - number_size(digits)) // 8
    forms = promising_forms(reached, octets)
    return [highest, *(java_reach(pattern, form, octets) for form in forms)]


def _gaps_reach(pattern: Pattern, digits: int) -> int:
    offsets, values = pattern.offsets, pattern.gaps

    def last(count: int) -> int:
        return offsets[count] - 1 if count < len(offsets) else pattern.highest

    def head(count: int) -> int:
        return number_size(last(count) - pattern.base + 1)

    def within(k: int) -> int:
        sizes = RunningSizes(values, k, digits)
        return bisect_right(range(sizes.top + 1), digits, key=lambda count: sizes.block(count) + head(count)) - 1

    count = max(map(within, _parameters(values, digits, within)))
    return last(count) if count >= 0 else pattern.base - 1


def _parameters(values: array[int], digits: int, within: Callable[[int], int]) -> Collection[int]:
    """The parameters to try: all where that is quick, else those that are the best for what they keep."""
    count = min(len(values), digits)
    k = best_parameter(values[:count])[0]
    if digits <= _FEW_DIGITS:
        return range(k + 3)
    tried = set[int]()
    while k not in tried:
        tried.add(k)
        count = max(0, within(k))
        k = best_parameter(values[:count])[0]
    one_more = values[: count + 1]
    return tried | {near for near in (k - 1, k + 1) if near >= 0 and block_size(one_more, near) <= digits}


def _rice_runs_reach(pattern: Pattern, digits: int) -> int:
    incomplete, complete, complete_first = split_runs(pattern)
    lead = int(complete_first)
    pairs = min(len(incomplete), len(complete) - lead)
    ends = pattern.run_ends
    for _ in range(3):
        if pairs < 0:
            return pattern.base - 1
        in_incomplete = RunningSizes(incomplete, best_parameter(incomplete[:pairs])[0], digits)
        in_complete = RunningSizes(complete, best_parameter(complete[: pairs + lead])[0], digits)
        top = min(in_incomplete.top, in_complete.top - lead, len(incomplete), len(complete) - lead)
        pairs = (
            bisect_right(
                range(top + 1),
                digits - 1,
                key=lambda count: in_incomplete.block(count) + in_complete.block(count + lead),
            )
            - 1
        )
    entries = 2 * (pairs + lead)
    return pattern.base + (ends[entries - 1] if entries > 0 else 0) - 1
