"""How far Dense reaches within a number of digits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from functools import partial

from aioparallel.offsets.dense.dense_map import runs_at_least, split_runs
from aioparallel.offsets.dense.pattern import Pattern
from aioparallel.offsets.dense.rice import RunningSizes, number_size
from aioparallel.offsets.java.java_reach import java_reach, promising_forms

__all__ = ["dense_reaches"]

_FEW_DIGITS = 4_096


def dense_reaches(pattern: Pattern, digits: int) -> list[int]:
    """The highest offsets that Dense reaches within ``digits``: with Golomb-Rice codes, and with each Java payload."""
    highest = _gaps_reach(pattern, digits)
    reached = pattern.cut(pattern.last_complete(highest))
    if runs_at_least(reached) < digits:  # otherwise runs do not fit even here
        highest = max(highest, _rice_runs_reach(pattern, digits))
        reached = pattern.cut(pattern.last_complete(highest))
    # A Java payload reaches farther if zstd finds a pattern.
    octets = (digits - number_size(digits)) // 8
    forms = promising_forms(reached, octets)
    return [highest, *(java_reach(pattern, form, octets) for form in forms)]


def _gaps_reach(pattern: Pattern, digits: int) -> int:
    offsets = pattern.offsets
    values = pattern.gaps[:digits]  # each takes at least one digit
    sizes = RunningSizes(values)

    def last(count: int) -> int:
        return offsets[count] - 1 if count < len(offsets) else pattern.highest

    def within(k: int) -> int:
        top = min(len(values), digits // (k + 1))
        return _most(top, digits, lambda count: sizes.block(count, k) + number_size(last(count) - pattern.base + 1))

    count = max(map(within, _parameters(sizes, len(values), digits, within)))
    return last(count) if count >= 0 else pattern.base - 1


def _most(top: int, digits: int, size: Callable[[int], int]) -> int:
    """The largest count up to ``top`` whose size is at most ``digits``; -1 if even 0 exceeds it."""
    return bisect_right(range(top + 1), digits, key=size) - 1


def _parameters(sizes: RunningSizes, total: int, digits: int, within: Callable[[int], int]) -> Collection[int]:
    """The parameters to try: all if that is fast, else those that are best for the values they reach."""
    k = sizes.best(total)
    if digits <= _FEW_DIGITS:
        return range(k + 3)
    tried, count = set[int](), 0
    while k not in tried:
        tried.add(k)
        count = max(0, within(k))
        k = sizes.best(count)
    one_more = min(count + 1, total)
    return tried | {near for near in (k - 1, k + 1) if near >= 0 and sizes.block(one_more, near) <= digits}


def _rice_runs_reach(pattern: Pattern, digits: int) -> int:
    incomplete, complete, complete_first = split_runs(pattern)
    lead = int(complete_first)
    of_incomplete, of_complete = RunningSizes(incomplete[:digits]), RunningSizes(complete[:digits])
    most = min(len(incomplete), len(complete) - lead)
    pairs = most
    for _ in range(3):
        if pairs < 0:
            return pattern.base - 1
        ki, kc = of_incomplete.best(min(pairs, digits)), of_complete.best(min(pairs + lead, digits))
        pairs = _most(
            min(most, digits // (ki + 1), digits // (kc + 1) - lead),
            digits - 1,
            partial(_pairs_size, of_incomplete, ki, of_complete, kc, lead),
        )
    entries = 2 * (pairs + lead)
    return pattern.base + (pattern.run_ends[entries - 1] if entries > 0 else 0) - 1


def _pairs_size(of_incomplete: RunningSizes, ki: int, of_complete: RunningSizes, kc: int, lead: int, pairs: int) -> int:
    return of_incomplete.block(pairs, ki) + of_complete.block(pairs + lead, kc)
