"""Operations on whole rows of numbers and of binary digits.

A row of numbers is one long integer, with a *field* of equal width for each number. It is shifted, masked and
subtracted in one operation. Digits are bytes, moved by slices with a step. Both run at the speed of C, unlike a loop in
Python.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from operator import mul
from typing import NamedTuple

__all__ = [
    "PIECE",
    "Row",
    "digits_of_numbers",
    "digits_of_places",
    "low_bytes",
    "narrowest",
    "numbers_of_digits",
    "regroup",
    "row_of",
    "row_of_ones",
    "row_piece",
    "zero_places",
]

PIECE = 4_096
"""Fields to process at a time: more would not stay in the processor's cache."""

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_BLOCK = 256
_WINDOW = 8_192
_TWO_BYTES = 65_536
_ZEROS = bytes(_BLOCK)
_SINGLE = tuple(bytes((octet,)) for octet in range(_BLOCK))
_DIGIT_ZERO = 48
_TO_DIGITS = bytes([_DIGIT_ZERO] + [_DIGIT_ZERO + 1] * 255)  # 0 to "0", others to "1"
_TO_MASK = bytes([0] * _DIGIT_ZERO + [0xFF] + [0] * 207)
_LOW = bytes(range(_BLOCK)) * (_WINDOW // _BLOCK + 1)


def row_of(numbers: array[int]) -> int:
    """The numbers in fields as wide as the array's items. The first is in the lowest field."""
    if sys.byteorder == "big":  # pragma: no cover
        numbers = numbers[:]
        numbers.byteswap()
    return int.from_bytes(numbers.tobytes(), "little")


def row_of_ones(count: int, octets: int) -> int:
    """A 1 in each of ``count`` fields of ``octets`` bytes."""
    return _piece_of_ones(octets) if count == PIECE else _ones(count, octets)


@cache
def _piece_of_ones(octets: int) -> int:
    return _ones(PIECE, octets)


def _ones(count: int, octets: int) -> int:
    return int.from_bytes(_SINGLE[1].ljust(octets, b"\0") * count, "little")


class Row(NamedTuple):
    """``fields`` numbers in fields of ``octets`` bytes."""

    row: int
    fields: int
    octets: int

    def widest(self) -> int:
        """The bit length of the largest number. The row is folded until one field contains all bits that are set."""
        row, count, width = self.row, self.fields, 8 * self.octets
        while count > 1:
            count = (count + 1) // 2
            row = row >> width * count | row & (1 << width * count) - 1
        return row.bit_length()

    def bit_counts(self, width: int) -> list[int]:
        """For each of the lowest ``width`` bits, the number of fields with that bit set."""
        ones = row_of_ones(self.fields, self.octets)
        return [(self.row & ones << bit).bit_count() for bit in range(width)]


def row_piece(numbers: array[int], start: int, end: int) -> Row:
    """Some of the numbers in fields."""
    piece = numbers[start:end]
    return Row(row_of(piece), len(piece), piece.itemsize)


def narrowest(rows: Sequence[Row]) -> array[int]:
    """The numbers of all rows as an array of the narrowest items that fit them."""
    widest = max((row.widest() for row in rows), default=0)
    needed = next(size for size in _CODES if widest <= 8 * size)
    numbers = array(_CODES[needed])
    for row, count, octets in rows:
        fields = row.to_bytes(octets * count, "little")
        narrow = bytearray(needed * count)
        for at in range(needed):
            narrow[at::needed] = fields[at::octets]
        numbers.frombytes(narrow)
    if sys.byteorder == "big":  # pragma: no cover
        numbers.byteswap()
    return numbers


def low_bytes(numbers: array[int]) -> bytes:
    """The lowest byte of each number."""
    return numbers.tobytes()[0 if sys.byteorder == "little" else numbers.itemsize - 1 :: numbers.itemsize]


def regroup(digits: bytes, width: int, new: int) -> bytearray:
    """Turn groups of ``width`` digits into groups of ``new``, by adding zeros or dropping digits in front."""
    groups = len(digits) // width
    row = bytearray(b"0") * (groups * new)
    for back in range(1, min(width, new) + 1):
        row[new - back :: new] = digits[width - back :: width]
    return row


def digits_of_numbers(numbers: array[int], width: int) -> bytes:
    """The low ``width`` binary digits of each number, concatenated."""
    if not numbers or not width:
        return b""
    if sys.byteorder == "little" and numbers.itemsize > 1:
        numbers = numbers[:]
        numbers.byteswap()
    field = 8 * numbers.itemsize
    digits = format(int.from_bytes(numbers.tobytes(), "big"), f"0{field * len(numbers)}b")
    return bytes(regroup(digits.encode(), field, width))


def numbers_of_digits(digits: bytes, width: int) -> array[int]:
    """The inverse: a number for each ``width`` digits (at most 63)."""
    octets = next(octets for octets in _CODES if width <= 8 * octets)
    numbers = array(_CODES[octets])
    if digits and width:
        row = regroup(digits, width, 8 * octets)
        numbers.frombytes(int(row, 2).to_bytes(len(row) // 8, "big"))
        if sys.byteorder == "little":
            numbers.byteswap()
    return numbers


def digits_of_places(offsets: array[int], base: int, size: int) -> bytearray:
    """A digit for each of ``size`` offsets from ``base`` on: 0 for those in ``offsets``, which ascend.

    Works in blocks of 256: the low bytes of a block's offsets become zeros in a table of all bytes. Takes time in
    proportion to ``size``.
    """
    count, low, first, table = len(offsets), low_bytes(offsets), base % _BLOCK, bytes.maketrans
    ends = range(base - first + _BLOCK, base + size + _BLOCK, _BLOCK)
    blocks: list[bytes] = []
    heads = bytearray(b"1") * len(ends)  # the first place of a block is 0 in every table, so it is kept here
    at = 0
    for end in ends:
        after = bisect_left(offsets, end, at, min(at + _BLOCK, count))
        if after > at and not low[at]:
            heads[len(blocks)] = _DIGIT_ZERO
        blocks.append(table(low[at:after], _ZEROS[: after - at]))
        at = after
    digits = bytearray(b"".join(blocks).translate(_TO_DIGITS))
    digits[::_BLOCK] = heads
    return digits[first : first + size]


def zero_places(base: int, digits: bytes) -> list[int]:
    """The offsets whose digit is 0. The first digit belongs to ``base``. The inverse of :func:`digits_of_places`.

    Works in windows in which only the two low bytes of an offset differ. Takes time in proportion to the digits, and
    memory in proportion to the offsets found.
    """
    places: list[int] = []
    lead = base % _WINDOW
    for at in range(-lead, len(digits), _WINDOW):
        window = digits[max(0, at) : at + _WINDOW]
        start = base + max(0, at)
        places += _zeros_in_window(start, window)
    return places


def _zeros_in_window(start: int, digits: bytes) -> list[int]:
    lead = start % _BLOCK
    size = lead + len(digits)
    # The low byte of each offset whose digit is 0, and zeros for the others. A true zero can only be first in its
    # block.
    mask = (b"1" * lead + digits).translate(_TO_MASK)
    row = (int.from_bytes(mask, "little") & int.from_bytes(_LOW[:size], "little")).to_bytes(size, "little")
    low = [
        (b"\0" if head else b"") + row[at : at + _BLOCK].translate(None, b"\0")
        for at, head in zip(range(0, size, _BLOCK), mask[::_BLOCK], strict=True)
    ]
    lows, middle = b"".join(low), map(mul, _SINGLE[start % _TWO_BYTES // _BLOCK :], map(len, low))
    fields = bytearray((start - start % _TWO_BYTES).to_bytes(8, "little") * len(lows))
    fields[0::8], fields[1::8] = lows, b"".join(middle)
    numbers = array("q", bytes(fields))
    if sys.byteorder == "big":  # pragma: no cover
        numbers.byteswap()
    return numbers.tolist()
