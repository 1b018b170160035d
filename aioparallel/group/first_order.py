"""The order in which the first positions of a topic are committed.

A partition is new to a group if its number is above all partitions that the group has committed. Members start at the
same time, read the committed positions at different times, and may crash at any time. This order makes sure that they
still agree on which partitions are new:

* Nothing is committed: the highest partition is committed first. A member that reads the positions later finds all
  other partitions below it, and takes none of them for new.
* Something is committed: the partitions above it are committed in ascending order. If a member crashes in between, no
  gap remains below a committed partition. So no member takes a new partition for one whose offset has expired.

Partitions of one member go in one commit. Plain functions of partition numbers: no ``await``, no clock.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["awaited", "highest_of", "is_new", "next_to_go"]

_NONE = -1


def highest_of(numbers: Collection[int]) -> int:
    """Return the highest of these partitions; -1 if there is none."""
    return max(numbers, default=_NONE)


def is_new(number: int, committed: Collection[int]) -> bool:
    """Return whether this partition was added after the group began to read the topic. ``committed``: partitions of the
    topic for which the group has committed a position."""
    return bool(committed) and number > highest_of(committed)


def next_to_go(waiting: Collection[int], committed: Collection[int], highest: int) -> set[int]:
    """Return which of a member's waiting partitions may be committed now, in one commit. ``highest``: the highest
    partition of the topic."""
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
    """Return the partition for which this one waits, if it may not be committed yet."""
    return number - 1 if committed else highest
