"""Golomb-Rice codes in rows of binary digits.

With parameter ``k``, a value ``v`` is its low ``k`` bits and ``v >> k`` in unary (that many ones, then a zero). For
distances between random events the size is within a few percent of the entropy (Golomb 1966, Rice 1979). All remainders
are stored first, and all unary parts after them, so both are processed as rows instead of value by value. With
``k = 0`` the unary part of the gaps between incomplete offsets *is* the bitset.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from operator import add, rshift
from typing import NamedTuple

from aioparallel.offsets.packing import (
    PIECE,
    digits_of_numbers,
    numbers_of_digits,
    row_piece,
    zero_places,
)
from aioparallel.records.errors import OffsetMapError

__all__ = [
    "Digits",
    "RiceBlock",
    "RunningSizes",
    "best_parameter",
    "number",
    "number_size",
    "read_block",
    "write_block",
]

_WIDTH = 6  # digits for the length of a number, which is at most 63
_TABLE = 1_024  # unary parts below this come from a table


def number(value: int) -> str:
    """``value`` (0..2**63-1) as its length in 6 digits, followed by its digits. 0 has length 0."""
    width = value.bit_length()
    return format(width, "06b") + (format(value, "b") if width else "")


def number_size(value: int) -> int:
    """Number of digits that :func:`number` makes."""
    return _WIDTH + value.bit_length()


class Digits:
    """Reads a row of digits in order. Raises OffsetMapError if it ends too early."""

    __slots__ = ("_at", "_row")

    def __init__(self, row: bytes) -> None:
        self._row = row
        self._at = 0

    def take(self, count: int) -> bytes:
        """Read the next ``count`` digits."""
        row = self._row[self._at : self._at + count]
        if len(row) < count:
            raise OffsetMapError("offset map: Dense is truncated")
        self._at += count
        return row

    def number(self) -> int:
        """Read a number written by :func:`number`. Refuses leading zeros, which it never writes."""
        width = int(self.take(_WIDTH), 2)
        if not width:
            return 0
        row = self.take(width)
        if row.startswith(b"0"):
            raise OffsetMapError("offset map: Dense has a number with a leading zero")
        return int(row, 2)

    def end(self) -> None:
        """Raise OffsetMapError unless only the padding of the last character is left: fewer than 15 zeros."""
        rest = self._row[self._at :]
        if len(rest) >= 15 or b"1" in rest:
            raise OffsetMapError(f"offset map: Dense has {len(rest)} digits after its end")


class RiceBlock(NamedTuple):
    """A decoded block: number of values, parameter, remainders (empty for parameter 0), unary part."""

    total: int
    k: int
    remainders: array[int]
    unary: bytes

    def values(self) -> list[int]:
        """The values in order."""
        k, zeros = self.k, zero_places(0, self.unary)
        before, remainders = [-1, *zeros], self.remainders or repeat(0)
        return [(zero - last - 1) << k | low for zero, last, low in zip(zeros, before, remainders, strict=False)]


def best_parameter(values: array[int]) -> tuple[int, int]:
    """The parameter with the fewest digits for the values, and the size of its block in digits."""
    sizes = RunningSizes(values)
    k = sizes.best(len(values))
    return k, sizes.block(len(values), k)


class RunningSizes:
    """The size in digits of :func:`write_block` for the first 0, 1, 2, ... values, with any parameter.

    The sum of ``value >> k`` follows from the number of values with bit ``j`` set, for each ``j``. If the values are a
    row of fields in one integer, one mask counts each bit. Stores the counts up to each piece.
    """

    __slots__ = ("_counts", "_values", "_width")

    def __init__(self, values: array[int]) -> None:
        rows = [row_piece(values, at, at + PIECE) for at in range(0, len(values), PIECE)]
        self._values = values
        self._width = max((row.widest() for row in rows), default=0)
        self._counts = [[0] * self._width]
        for row in rows:
            self._counts.append(list(map(add, self._counts[-1], row.bit_counts(self._width))))

    def _bit_counts(self, count: int) -> list[int]:
        piece, rest = divmod(count, PIECE)
        counts = self._counts[piece]
        if not rest:
            return counts
        return list(map(add, counts, row_piece(self._values, count - rest, count).bit_counts(self._width)))

    def best(self, count: int) -> int:
        """The parameter with the fewest digits for the first ``count`` values."""
        shifted, sums = 0, [0]
        for ones in reversed(self._bit_counts(count)):
            shifted = 2 * shifted + ones
            sums.append(shifted)
        sums.reverse()
        return min(range(len(sums)), key=lambda k: k * count + sums[k])

    def block(self, count: int, k: int) -> int:
        """The size in digits of a block of the first ``count`` values with parameter ``k``."""
        unary = count + sum([ones << bit for bit, ones in enumerate(self._bit_counts(count)[k:])])
        return number_size(count) + _WIDTH + number_size(unary) + k * count + unary


def write_block(values: array[int], k: int, unary: bytes | None = None) -> bytes:
    """Encode: count, ``k`` in 6 digits, length of the unary part, remainders, unary part (computed if None)."""
    if unary is None:
        unary = _unary(values, k)
    head = number(len(values)) + format(k, "06b") + number(len(unary))
    return head.encode() + digits_of_numbers(values, k) + unary


def _unary(values: array[int], k: int) -> bytes:
    most = max(values, default=0) >> k
    if most >= _TABLE:
        return b"".join([b"1" * (value >> k) + b"0" for value in values])
    if values.itemsize == 1:
        of_byte = [b"1" * (value >> k) + b"0" for value in range(256)]
        return b"".join(map(of_byte.__getitem__, values))
    table = [b"1" * quotient + b"0" for quotient in range(most + 1)]
    return b"".join(map(table.__getitem__, map(rshift, values, repeat(k))))


def read_block(digits: Digits) -> RiceBlock:
    """Read a block of :func:`write_block`. Raises OffsetMapError. Makes nothing larger than the digits it reads."""
    count, k, length = digits.number(), int(digits.take(_WIDTH), 2), digits.number()
    remainders = numbers_of_digits(digits.take(k * count), k)
    unary = digits.take(length)
    # translate() is faster than count(), which searches for each zero separately.
    if len(unary.translate(None, b"1")) != count or not unary.endswith(b"0" if count else b""):
        raise OffsetMapError(f"offset map: Dense has a block that does not hold its {count} values")
    return RiceBlock(count, k, remainders, unary)
