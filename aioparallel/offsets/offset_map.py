"""What an offset map says, and how much one may say."""

from __future__ import annotations

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
