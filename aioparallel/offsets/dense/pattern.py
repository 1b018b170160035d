"""The offsets of one map in the forms that the formats need: gaps, runs, bits.

A map of 100,000 offsets is encoded in a few milliseconds, because operations on a whole row replace loops over offsets
(:mod:`aioparallel.offsets.packing`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, compress
from operator import sub

from aioparallel.offsets.offset_map import MAX_INCOMPLETES, MAX_OFFSET
from aioparallel.offsets.packing import PIECE, Row, digits_of_places, narrowest, row_of, row_of_ones

__all__ = ["Pattern"]

_CLEAR = tuple(0xFF ^ (1 << bit) for bit in range(8))
_SHORT = 2**31
_LONG = "L" if array("L").itemsize == 8 else "Q"  # "L" takes half the time of "Q"
_DENSE = 16
"""Most offsets per incomplete offset for which bits are made block by block instead of one by one."""


class Pattern:
    """``size`` offsets from ``base`` on. Those in ``offsets`` (ascending) are incomplete, the others complete.

    Raises ValueError, naming the argument, if the range or the incompletes are invalid.
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
        self.offsets = _as_array(incompletes, highest)
        if len(self.offsets) > MAX_INCOMPLETES:
            raise ValueError(
                f"{len(self.offsets)} incomplete offsets from {base} on: a map lists at most {MAX_INCOMPLETES}; "
                "cut it with fit_offset_map"
            )
        self._check_ends()
        self._gap_rows = list(self._checked_gaps())
        self._cut: Pattern | None = None

    def _check_ends(self) -> None:
        for end in (*self.offsets[:1], *self.offsets[-1:]):
            if not self.base <= end <= self.highest:
                raise ValueError(f"incompletes: {end} is outside [{self.base}, {self.highest}]")

    def _checked_gaps(self) -> Iterator[Row]:
        """The :attr:`gaps` in rows of fields.

        A negative field, whose top bit is set, means that offsets are equal or out of order. It may borrow from the
        fields above it, but then the error is detected already. An offset whose own top bit is set could hide a
        negative step, so it is an error by itself.
        """
        offsets, octets = self.offsets, self.offsets.itemsize
        before = array(offsets.typecode, (self.base,)) + offsets[:-1]
        for at in range(0, len(offsets), PIECE):
            piece = offsets[at : at + PIECE]
            row, ones = row_of(piece), row_of_ones(len(piece), octets)
            gaps = row - row_of(before[at : at + PIECE]) - (ones if at else ones ^ 1)
            if gaps < 0 or (gaps | row) & ones << 8 * octets - 1:
                raise ValueError("incompletes: offsets must ascend, each once")
            yield Row(gaps, len(piece), octets)

    @cached_property
    def gaps(self) -> array[int]:
        """Number of complete offsets between each incomplete offset and the previous one."""
        return narrowest(self._gap_rows)

    @cached_property
    def tail(self) -> int:
        """Number of complete offsets after the last incomplete one."""
        return self.highest - (self.offsets[-1] if self.offsets else self.base - 1)

    @cached_property
    def digits(self) -> bytearray:
        """One digit per offset: 1 if it is complete."""
        return digits_of_places(self.offsets, self.base, self.size)

    @cached_property
    def bits(self) -> int:
        """Bit ``i`` is 1 if offset ``base + i`` is complete."""
        if not self.size:
            return 0
        if self.size > _DENSE * len(self.offsets):
            return int.from_bytes(self._sparse_bitset(), "little")
        return int(self.digits[::-1], 2)

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
        """The bits as bytes. The first offset is the lowest bit of the first byte."""
        if self.size > _DENSE * len(self.offsets):
            return bytes(self._sparse_bitset())
        return self.bits.to_bytes((self.size + 7) // 8, "little")

    @cached_property
    def run_count(self) -> int:
        """Number of entries in :attr:`runs`, without computing them."""
        if not self.offsets:
            return 2 if self.size else 1
        if self.size <= _DENSE * len(self.offsets):
            # One more run than changes between bits; and an empty first run if base is complete.
            changes = ((self.bits ^ (self.bits >> 1)) & ((1 << (self.size - 1)) - 1)).bit_count()
            return changes + 1 + (self.bits & 1)
        leads = self.leads
        starts = len(self.offsets) - self.gaps.count(0) + leads
        return 2 * starts + (-1 if leads else 1) + (self.tail > 0)

    @property
    def leads(self) -> bool:
        """Whether the first offset is incomplete."""
        return bool(self.offsets) and self.offsets[0] == self.base

    @cached_property
    def sides(self) -> tuple[list[int], list[int]]:
        """Lengths of the incomplete runs, and of the complete runs, in order."""
        count, gaps = len(self.offsets), self.gaps
        complete = list(gaps.tobytes().translate(None, b"\0") if gaps.itemsize == 1 else filter(None, gaps))
        if not count:
            incomplete = []
        elif len(complete) >= count - self.leads:
            incomplete = [1] * count  # no two are adjacent
        else:
            starts = list(compress(range(count), gaps))
            if self.leads:
                starts.insert(0, 0)
            incomplete = list(map(sub, [*starts[1:], count], starts))
        if self.tail:
            complete.append(self.tail)
        return incomplete, complete

    @cached_property
    def runs(self) -> list[int]:
        """Lengths of alternating runs. The first is of incomplete offsets (0 if ``base`` is complete)."""
        incomplete, complete = self.sides
        if not self.leads:
            incomplete = [0, *incomplete]
        runs = [0] * (len(incomplete) + len(complete))
        runs[0::2] = incomplete
        runs[1::2] = complete
        return runs

    @cached_property
    def longest_run(self) -> int:
        """The largest entry of :attr:`runs`."""
        return max(self.runs)

    @cached_property
    def run_ends(self) -> list[int]:
        """Number of offsets up to the end of each run."""
        return list(accumulate(self.runs))

    def cut(self, highest: int) -> Pattern:
        """The pattern up to ``highest``. Caches the last result, which is used repeatedly."""
        if self._cut is None or self._cut.highest != highest:
            self._cut = Pattern(self.base, highest, self.until(highest))
            if "digits" in self.__dict__:
                self._cut.digits = self.digits[: self._cut.size]
        return self._cut

    def until(self, highest: int) -> array[int]:
        """The incomplete offsets up to ``highest``."""
        return self.offsets[: bisect_right(self.offsets, highest)]

    def last_complete(self, highest: int) -> int:
        """The last complete offset at or below ``highest``, or ``base - 1``."""
        at = bisect_right(self.offsets, highest) - 1
        while at >= 0 and self.offsets[at] == highest:
            at -= 1
            highest -= 1
        return highest


def _as_array(incompletes: Iterable[int], highest: int) -> array[int]:
    """The offsets as an array of the fastest item type: 4 bytes if possible."""
    offsets = incompletes if isinstance(incompletes, Sequence) else tuple(incompletes)
    for code in ("I", _LONG, "q") if highest < _SHORT else (_LONG, "q"):
        try:
            return array(code, offsets)
        except OverflowError:  # the checks report which offset is out of range
            continue
    raise ValueError("incompletes: an offset is within 0..2**63-1")
