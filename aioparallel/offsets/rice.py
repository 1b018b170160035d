"""Golomb-Rice codes, and the rows of binary digits they stand in.

A value ``v`` under parameter ``k`` is its low ``k`` bits and ``v >> k`` in unary (so many ones, then a zero).
For distances between random events it comes within a few percent of the entropy (Golomb 1966, Rice 1979).
All remainders stand together, and all unary parts behind them: so both are read and written in rows and not
value by value. With ``k = 0`` the unary part of the gaps between incomplete offsets *is* the bitset.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, compress, repeat
from typing import NamedTuple

from aioparallel.errors import OffsetMapError

__all__ = [
    "Digits",
    "RiceBlock",
    "RunningSizes",
    "best_parameter",
    "block_size",
    "number",
    "number_size",
    "read_block",
    "write_block",
]

_WIDTH = 6  # bits that tell how many bits a number has: up to 63
_IS_ZERO = bytes([0] * 48 + [1, 0] + [0] * 206)


def number(value: int) -> str:
    """``value`` (0..2**63-1) as 6 digits that tell its length and then its digits; 0 has length 0."""
    width = value.bit_length()
    return format(width, "06b") + (format(value, "b") if width else "")


def number_size(value: int) -> int:
    """How many digits :func:`number` makes."""
    return _WIDTH + value.bit_length()


class Digits:
    """A row of digits read from the front. Raises OffsetMapError when it ends too early."""

    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def take(self, count: int) -> str:
        """The next ``count`` digits."""
        text = self._text[self._at : self._at + count]
        if len(text) < count:
            raise OffsetMapError("offset map: Dense is truncated")
        self._at += count
        return text

    def number(self) -> int:
        """What :func:`number` wrote; a leading zero, which it never writes, is refused."""
        width = int(self.take(_WIDTH), 2)
        if not width:
            return 0
        text = self.take(width)
        if text[0] == "0":
            raise OffsetMapError("offset map: Dense has a number with a leading zero")
        return int(text, 2)

    def end(self) -> None:
        """Raises OffsetMapError unless only the padding of the last character is left: under 15 zeros."""
        rest = self._text[self._at :]
        if len(rest) >= 15 or "1" in rest:
            raise OffsetMapError(f"offset map: Dense has {len(rest)} digits after its end")


class RiceBlock(NamedTuple):
    """A block as read: its parameter, the remainders, and the places of the zeros in the unary part."""

    k: int
    remainders: list[int]
    zeros: list[int]

    def values(self) -> list[int]:
        """The values in order."""
        k, remainders = self.k, self.remainders or repeat(0)
        before = [-1, *self.zeros]
        return [(zero - last - 1) << k | low for zero, last, low in zip(self.zeros, before, remainders, strict=False)]


def best_parameter(values: array[int]) -> tuple[int, int]:
    """The parameter under which the values (an array of int64) take the fewest digits, and how many the block
    takes then.

    How many of the values have bit ``j`` set, for each ``j``, tells the sum of ``value >> k`` for every ``k``.
    The row of all values as one integer counts each bit with one mask.
    """
    count = len(values)
    ones = int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, sys.byteorder)
    row = int.from_bytes(values.tobytes(), sys.byteorder)
    widest = _widest(row, count)
    with_bit = [(row & ones << bit).bit_count() for bit in range(widest)]
    best, shortest, shifted, unary = widest, widest * count, 0, 0
    for k in reversed(range(widest)):
        shifted = 2 * shifted + with_bit[k]
        if k * count + shifted <= shortest:
            best, shortest, unary = k, k * count + shifted, shifted
    return best, _block_size(count, best, count + unary)


def _widest(row: int, count: int) -> int:
    """The bit length of the largest of ``count`` values: the row is folded until one lane has all their bits."""
    while count > 1:
        count = (count + 1) // 2
        row = row >> 64 * count | row & (1 << 64 * count) - 1
    return row.bit_length()


def block_size(values: Sequence[int], k: int) -> int:
    """How many digits :func:`write_block` makes under ``k``."""
    return _block_size(len(values), k, len(values) + sum([value >> k for value in values]))


def _block_size(count: int, k: int, unary: int) -> int:
    return number_size(count) + _WIDTH + number_size(unary) + k * count + unary


class RunningSizes:
    """Sizes of the blocks of the first 0, 1, 2, ... values, as far as ``digits`` can reach (:attr:`top`)."""

    __slots__ = ("_k", "_unary", "top")

    def __init__(self, values: Sequence[int], k: int, digits: int) -> None:
        reachable = values[: digits // (k + 1)]
        self._k = k
        self._unary = list(accumulate([(value >> k) + 1 for value in reachable], initial=0))
        self.top = len(reachable)

    def block(self, count: int) -> int:
        """How many digits the block of the first ``count`` values takes."""
        return _block_size(count, self._k, self._unary[count])


def write_block(values: Sequence[int], k: int, unary: str | None = None) -> str:
    """Count, ``k`` in 6 digits, length of the unary part, remainders, unary part (made unless it is there)."""
    remainders = ""
    if k:
        mask = (1 << k) - 1
        if mask < 4 * len(values):
            table = [format(low, f"0{k}b") for low in range(mask + 1)]
            remainders = "".join([table[value & mask] for value in values])
        else:
            remainders = "".join([format(value & mask, f"0{k}b") for value in values])
    if unary is None:
        unary = "".join(["1" * (value >> k) + "0" for value in values])
    return number(len(values)) + format(k, "06b") + number(len(unary)) + remainders + unary


def read_block(digits: Digits) -> RiceBlock:
    """What :func:`write_block` wrote. Raises OffsetMapError; makes nothing larger than the digits there are."""
    count, k, length = digits.number(), int(digits.take(_WIDTH), 2), digits.number()
    remainders: list[int] = []
    if k:
        row = digits.take(k * count)
        remainders = [int(row[at : at + k], 2) for at in range(0, k * count, k)]
    unary = digits.take(length)
    if unary.count("0") != count or not unary.endswith("0" if count else ""):
        raise OffsetMapError(f"offset map: Dense has a block that does not hold its {count} values")
    return RiceBlock(k, remainders, list(compress(range(length), unary.encode().translate(_IS_ZERO))))
