"""In which order the first positions of a topic are committed.

A partition is new to a group when its number is above every one that the group has committed. Members start at the same
time, look at different times, and die at any time. So the order of first commits has to keep that true:

* Nothing is committed: the highest partition goes first. Whoever looks later finds all others below it, and takes none
  of them for new.
* Something is committed: the partitions above it go in ascending order. No hole remains below a committed partition,
  whoever dies in between, so nobody takes a new partition for one whose offset has expired.

Partitions of one member go in one commit. Plain functions of partition numbers: no ``await``, no clock.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["awaited", "highest_of", "is_new", "next_to_go"]

_NONE = -1


def highest_of(numbers: Collection[int]) -> int:
    """The highest of these partitions; -1 where there is none."""
    return max(numbers, default=_NONE)


def is_new(number: int, committed: Collection[int]) -> bool:
    """Whether this partition was added since the group began with the topic. ``committed``: partitions of the topic for
    which the group has committed a position."""
    return bool(committed) and number > highest_of(committed)


def next_to_go(waiting: Collection[int], committed: Collection[int], highest: int) -> set[int]:
    """Which of the partitions that wait at one member may be committed now, in one commit. ``highest``: partition of
    the topic."""
    top = highest_of(committed)
    if top == _NONE:
        return set(waiting) if highest in waiting else set()
    going = {number for number in waiting if number < top}
    following = top + 1
    while following in waiting:
        going.add(following)
        following += 1
    return going


def awaited(number: int, committed: Collection[int], highest: int) -> int:
    """The partition that this one waits for, where it may not go yet."""
    return number - 1 if committed else highest
