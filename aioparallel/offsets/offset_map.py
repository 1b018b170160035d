"""What an offset map says, and how much one may say."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MAX_BODY_BYTES", "MAX_INCOMPLETES", "MAX_OFFSET", "OffsetMap"]

MAX_OFFSET = 2**63 - 1
"""Offsets are int64 in Kafka's protocol."""

MAX_INCOMPLETES = 4_194_304
"""A map lists at most so many incomplete offsets (2**22). A few bytes can claim billions; each one listed costs
about 40 bytes of memory, so more are refused, in reading and in writing."""

MAX_BODY_BYTES = 16 * 1024 * 1024
"""A map's body has at most so many bytes once unpacked. What expands to more is a bomb, and is never written."""


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Which offsets at or above a committed one are complete.

    ``base_offset``: the committed offset, the next one to read.
    ``highest_succeeded``: the last offset the map speaks of; ``base_offset - 1`` when it says nothing.
    ``incompletes``: ascending, each within ``[base_offset, highest_succeeded]``; all others there are complete.
    """

    base_offset: int
    highest_succeeded: int
    incompletes: tuple[int, ...] = ()

    def is_complete(self, offset: int) -> bool:
        """Whether it says so of this offset."""
        if offset < self.base_offset:
            return True
        if offset > self.highest_succeeded:
            return False
        at = bisect_left(self.incompletes, offset)
        return at == len(self.incompletes) or self.incompletes[at] != offset

    def looker(self) -> Callable[[int], bool]:
        """:meth:`is_complete`, for many offsets."""
        base, highest, incompletes = self.base_offset, self.highest_succeeded, set(self.incompletes)
        return lambda offset: offset < base or (offset <= highest and offset not in incompletes)

    def covers(self, other: OffsetMap) -> bool:
        """Whether it says of all offsets that are complete by the other one that they are."""
        if self.base_offset <= other.highest_succeeded and self.highest_succeeded < other.highest_succeeded:
            return False
        left = {offset for offset in self.incompletes if offset <= other.highest_succeeded}
        return other.base_offset <= self.base_offset and left <= set(other.incompletes)
