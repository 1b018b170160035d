"""The offsets of one map, seen the ways the formats need them: distances, runs, bits.

A map of 100,000 offsets is written in a few milliseconds because nothing here loops over offsets where one
operation on a long integer does: an ``array`` of int64 read as one integer is a row of 64-bit lanes, and one
subtraction works on all of them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, compress, pairwise

from aioparallel.offsets.offset_map import MAX_INCOMPLETES, MAX_OFFSET

__all__ = ["Pattern"]

_LANE = 8  # bytes
_CLEAR = tuple(0xFF ^ (1 << bit) for bit in range(8))
_DENSE = 32
"""Up to so many offsets an incomplete one, bits are made from one byte per offset; beyond, from the bitset."""


class Pattern:
    """``size`` offsets from ``base`` on, of which those in ``offsets`` (ascending) are incomplete.

    Raises ValueError, naming the argument, when the range or the incompletes make no map.
    """

    def __init__(self, base: int, highest: int, incompletes: Iterable[int]) -> None:
        if not 0 <= base <= MAX_OFFSET:
            raise ValueError(f"base_offset={base}: an offset is within 0..2**63-1")
        if not base - 1 <= highest <= MAX_OFFSET:
            raise ValueError(
                f"highest_succeeded={highest}: must be at least base_offset - 1 = {base - 1} and below 2**63"
            )
        self.base = base
        self.highest = highest
        self.size = highest - base + 1
        try:
            self.offsets = array("q", incompletes if isinstance(incompletes, Sequence) else tuple(incompletes))
        except OverflowError:
            raise ValueError("incompletes: an offset is within 0..2**63-1") from None
        if len(self.offsets) > MAX_INCOMPLETES:
            raise ValueError(
                f"{len(self.offsets)} incomplete offsets from {base} on: a map lists at most {MAX_INCOMPLETES}; "
                "cut it with fit_offset_map"
            )
        self.distances = self._distances()

    def _distances(self) -> array[int]:
        """How far each incomplete offset is behind the one before it, the first behind ``base - 1``: all >= 1.

        Any other lane tells of offsets out of order: a smaller one leaves its lane negative, that is with the
        top bit set, and an equal one leaves 0, which loses 1 in the check. A lane that went wrong may borrow
        from those above it, but then it has told already. A negative offset in the middle cannot hide behind
        2**63: the last one is within the range, and the lane where the row comes back down tells.
        """
        offsets, count = self.offsets, len(self.offsets)
        self._lanes = self._ones = 0
        if not count:
            return array("q")
        for end in (offsets[0], offsets[-1]):
            if not self.base <= end <= self.highest:
                raise ValueError(f"incompletes: {end} is outside [{self.base}, {self.highest}]")
        lanes = _as_integer(offsets)
        behind = lanes - ((lanes & ((1 << 64 * (count - 1)) - 1)) << 64) - (self.base - 1)
        ones = int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, "little")
        if behind < 0 or (behind | (behind - ones)) & (ones << 63):
            raise ValueError("incompletes: offsets must ascend, each once")
        self._lanes, self._ones = behind, ones
        return _as_array(behind, count)

    @cached_property
    def gaps(self) -> array[int]:
        """How many complete offsets stand before each incomplete one, since the one before."""
        return _as_array(self._lanes - self._ones, len(self.offsets)) if self.offsets else array("q")

    @cached_property
    def _apart(self) -> bool:
        """Whether no two incomplete offsets stand side by side: every distance but the first is above 1."""
        above_first = self._lanes >> 64
        ones = self._ones >> 64
        return not (above_first - 2 * ones) & (ones << 63)

    @cached_property
    def tail(self) -> int:
        """How many complete offsets follow the last incomplete one."""
        return self.highest - (self.offsets[-1] if self.offsets else self.base - 1)

    @cached_property
    def bits(self) -> int:
        """Bit ``i`` is 1 where offset ``base + i`` is complete."""
        size, base = self.size, self.base
        if not size:
            return 0
        if size > _DENSE * len(self.offsets):
            return int.from_bytes(self._sparse_bitset(), "little")
        digits = bytearray(b"1") * size
        for offset in self.offsets:
            digits[offset - base] = 48
        digits.reverse()
        return int(bytes(digits), 2)

    def _sparse_bitset(self) -> bytearray:
        octets = bytearray(b"\xff") * ((self.size + 7) // 8)
        if self.size % 8:
            octets[-1] = (1 << self.size % 8) - 1
        base = self.base
        for offset in self.offsets:
            place = offset - base
            octets[place >> 3] &= _CLEAR[place & 7]
        return octets

    @cached_property
    def bitset(self) -> bytes:
        """The bits in bytes, the first offset in the lowest bit of the first one."""
        if self.size > _DENSE * len(self.offsets):
            return bytes(self._sparse_bitset())
        return self.bits.to_bytes((self.size + 7) // 8, "little")

    @cached_property
    def run_count(self) -> int:
        """How many entries :attr:`runs` has, without making it."""
        if not self.offsets:
            return 2 if self.size else 1
        leads = self.distances[0] == 1
        if self.size <= _DENSE * len(self.offsets):
            # One change between two runs, and one more run than changes; an empty first run if base is complete.
            changes = ((self.bits ^ (self.bits >> 1)) & ((1 << (self.size - 1)) - 1)).bit_count()
            return changes + 1 + (not leads)
        starts = len(self.offsets) - self.distances.count(1) + leads
        return 2 * starts + (-1 if leads else 1) + (self.tail > 0)

    @cached_property
    def runs(self) -> list[int]:
        """Lengths of the runs in turn, the first of incomplete offsets (0 when ``base`` is complete)."""
        count, distances = len(self.offsets), self.distances
        if not count:
            return [0, self.size] if self.size else [0]
        if not self._apart and self.size <= _DENSE * count:
            return self._runs_of_bits()
        leads = distances[0] == 1
        if self._apart:
            gaps, lengths = self.gaps, [1] * count
        else:
            starts = list(compress(range(count), map((1).__lt__, distances)))
            if leads:
                starts.insert(0, 0)
            gaps = array("q", [distances[start] - 1 for start in starts])
            starts.append(count)
            lengths = [after - start for start, after in pairwise(starts)]
        runs = [0] * (2 * len(gaps))
        runs[0::2] = gaps
        runs[1::2] = lengths
        if leads:
            del runs[0]
        else:
            runs.insert(0, 0)
        if self.tail:
            runs.append(self.tail)
        return runs

    def _runs_of_bits(self) -> list[int]:
        """The same from the bits, where the incomplete offsets are many: a 1 at each change of side."""
        changes = (self.bits ^ (self.bits << 1)) & ((1 << self.size) - 1) & ~1 | 1 << self.size
        pieces = format(changes, "b")[::-1].split("1")
        pieces.pop()  # behind the closing 1
        runs = [length + 1 for length in map(len, pieces)]
        runs[0] -= 1  # the first has no change in front
        return [0, *runs] if self.bits & 1 else runs

    @cached_property
    def run_ends(self) -> list[int]:
        """How many offsets the runs up to and with each one cover."""
        return list(accumulate(self.runs))

    def cut(self, highest: int) -> Pattern:
        """The same up to ``highest``."""
        return Pattern(self.base, highest, self.offsets[: bisect_right(self.offsets, highest)])

    def last_complete(self, highest: int) -> int:
        """The last complete offset at or below ``highest``, or ``base - 1``."""
        at = bisect_right(self.offsets, highest) - 1
        while at >= 0 and self.offsets[at] == highest:
            at -= 1
            highest -= 1
        return highest


def _as_array(lanes: int, count: int) -> array[int]:
    numbers = array("q")
    numbers.frombytes(lanes.to_bytes(_LANE * count, "little"))
    if sys.byteorder == "big":  # pragma: no cover
        numbers.byteswap()
    return numbers


def _as_integer(offsets: array[int]) -> int:
    if sys.byteorder == "big":  # pragma: no cover
        offsets = offsets[:]
        offsets.byteswap()
    return int.from_bytes(offsets.tobytes(), "little")
