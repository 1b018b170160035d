"""Changes which offsets a map has as complete, for tools that change the offsets of a group that is stopped.

Each function returns a new map. Its base is the first incomplete offset, and its last offset is complete.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from aioparallel.offsets.encoding import DENSE, encode_offset_map, format_of
from aioparallel.offsets.offset_map import MAX_INCOMPLETES, OffsetMap
from aioparallel.records.ranges import ranges

__all__ = ["Difference", "completed", "difference", "encode_like", "reopened", "rewound"]


class Difference(NamedTuple):
    """What differs between two maps, as ranges that ascend.

    ``again``: offsets that were complete and are not any more. ``skipped``: offsets that are complete and were not."""

    again: Sequence[range]
    skipped: Sequence[range]


def completed(known: OffsetMap, offsets: Collection[int]) -> OffsetMap:
    """The map with these offsets complete. They may be above the map; offsets between them stay incomplete. Offsets
    that are complete change nothing.

    Raises ValueError if one is so far above that the map would list too many offsets.
    """
    fresh = {offset for offset in offsets if not known.is_complete(offset)}
    if not fresh:
        return known
    highest, most = known.highest_succeeded, max(fresh)
    if len(known.incompletes) + max(0, most - highest) - len(fresh) > MAX_INCOMPLETES:
        raise ValueError(
            f"offset {most} is {most - highest:,} above the last offset of the map ({highest}); a map lists at most "
            f"{MAX_INCOMPLETES:,} incomplete offsets"
        )
    listed = chain(known.incompletes, range(highest + 1, most + 1))
    return _normal(known.base_offset, max(highest, most), [offset for offset in listed if offset not in fresh])


def reopened(known: OffsetMap, offsets: Collection[int]) -> OffsetMap:
    """The map with these offsets incomplete. Offsets below the base become incomplete one by one: those between them
    and the base stay complete. Offsets that are not complete change nothing."""
    fresh = {offset for offset in offsets if known.is_complete(offset)}
    if not fresh:
        return known
    base = min(known.base_offset, *fresh)
    return _normal(base, max(known.highest_succeeded, known.base_offset - 1), sorted(fresh.union(known.incompletes)))


def rewound(known: OffsetMap, to: int) -> OffsetMap:
    """The map with all offsets from ``to`` on incomplete. Offsets below stay as they are."""
    if to <= known.base_offset:
        return OffsetMap(to, to - 1)
    offsets = known.incompletes
    return _normal(known.base_offset, min(known.highest_succeeded, to - 1), offsets[: bisect_left(offsets, to)])


def difference(before: OffsetMap, after: OffsetMap) -> Difference:
    """What differs between two maps. Takes time in proportion to their incomplete offsets."""
    first = min(before.base_offset, after.base_offset)
    end = max(before.highest_succeeded, after.highest_succeeded, before.base_offset, after.base_offset) + 1
    was, now = list(_incomplete(before, first, end)), list(_incomplete(after, first, end))
    return Difference(list(_without(now, was)), list(_without(was, now)))


def encode_like(known: OffsetMap, found: str | None, limit: int | None) -> str:
    """The map as text in the format of ``found``. If a Java format cannot represent it, in another Java format; a map
    that was not there before is in the smallest Java format, which both libraries read.

    Raises ValueError if the text would be longer than ``limit`` characters: the map is not cut.
    """
    base, highest = known.base_offset, known.highest_succeeded
    if highest < base:
        return ""
    if (name := format_of(found)) is not None:
        try:
            return encode_offset_map(base, highest, known.incompletes, format=name, limit=limit)
        except ValueError:
            if name == DENSE:
                raise
    return encode_offset_map(base, highest, known.incompletes, limit=limit, formats="java")


def _normal(base: int, highest: int, offsets: Sequence[int]) -> OffsetMap:
    """The same without incomplete offsets at its end, and with the first incomplete one as its base."""
    count = len(offsets)
    while count and offsets[count - 1] == highest:
        count -= 1
        highest -= 1
    if not count:
        # All that the map has is complete, or nothing is: then its first offset is the next one to read.
        return OffsetMap(highest + 1, highest) if highest >= base else OffsetMap(base, base - 1)
    return OffsetMap(offsets[0], highest, tuple(offsets[:count]))


def _incomplete(known: OffsetMap, first: int, end: int) -> Iterator[range]:
    """Incomplete offsets in [first, end) as ranges."""
    offsets = known.incompletes
    found = list(ranges(offsets[bisect_left(offsets, first) : bisect_right(offsets, end - 1)]))
    above = max(first, known.highest_succeeded + 1, known.base_offset)
    if found and found[-1].stop == above:
        above = found.pop().start
    yield from found
    if above < end:
        yield range(above, end)


def _without(some: Sequence[range], others: Sequence[range]) -> Iterator[range]:
    """Offsets of ``some`` that are in none of ``others``."""
    at = 0
    for one in some:
        start = one.start
        while at < len(others) and others[at].stop <= start:
            at += 1
        here = at
        while here < len(others) and others[here].start < one.stop:
            if start < others[here].start:
                yield range(start, others[here].start)
            start = max(start, others[here].stop)
            here += 1
        if start < one.stop:
            yield range(start, one.stop)
