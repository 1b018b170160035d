"""Runs of neighbouring numbers: offsets or partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["ranges"]


def ranges(numbers: Iterable[int]) -> Iterator[range]:
    """Yield ascending numbers, 0 or more, as ranges."""
    start = after = -1
    for number in numbers:
        if number != after:
            if start >= 0:
                yield range(start, after)
            start = number
        after = number + 1
    if start >= 0:
        yield range(start, after)
