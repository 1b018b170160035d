"""The content of an offset map, and its limits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MAX_BODY_BYTES", "MAX_INCOMPLETES", "MAX_OFFSET", "OffsetMap"]

MAX_OFFSET = 2**63 - 1
"""Offsets are int64 in Kafka's protocol."""

MAX_INCOMPLETES = 4_194_304
"""Most incomplete offsets of a map (2**22). A few bytes can claim billions, and each one listed takes about 40 bytes of
memory, so more are refused when reading and when writing."""

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Most bytes of a map's body after decompression. A larger body is refused as a bomb, and is never written."""


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Which offsets at or above a committed offset are complete.

    ``base_offset``: the committed offset, the next one to read.
    ``highest_succeeded``: the last offset in the map; ``base_offset - 1`` for an empty map.
    ``incompletes``: ascending, within ``[base_offset, highest_succeeded]``. All other offsets there are complete.
    """

    base_offset: int
    highest_succeeded: int
    incompletes: tuple[int, ...] = ()

    def is_complete(self, offset: int) -> bool:
        """Whether ``offset`` is complete according to the map."""
        if offset < self.base_offset:
            return True
        if offset > self.highest_succeeded:
            return False
        at = bisect_left(self.incompletes, offset)
        return at == len(self.incompletes) or self.incompletes[at] != offset

    def looker(self) -> Callable[[int], bool]:
        """:meth:`is_complete` as a function for many offsets."""
        base, highest, incompletes = self.base_offset, self.highest_succeeded, set(self.incompletes)
        return lambda offset: offset < base or (offset <= highest and offset not in incompletes)

    def covers(self, other: OffsetMap) -> bool:
        """Whether all offsets that are complete in ``other`` are complete in this map."""
        if self.base_offset <= other.highest_succeeded and self.highest_succeeded < other.highest_succeeded:
            return False
        left = {offset for offset in self.incompletes if offset <= other.highest_succeeded}
        return other.base_offset <= self.base_offset and left <= set(other.incompletes)
