"""Operations on whole rows of numbers and digits have the result of a loop."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.offsets.packing import (
    PIECE,
    Row,
    digits_of_numbers,
    digits_of_places,
    narrowest,
    numbers_of_digits,
    row_piece,
    zero_places,
)

BASES = [0, 1, 255, 256, 65_535, 2**31 - 1, 2**32 - 7, 2**40 + 8_191, 2**63 - 70_000]


@given(base=st.sampled_from(BASES), flags=st.lists(st.booleans(), max_size=700))
def test_digits_and_places_are_inverse(base: int, flags: list[bool]) -> None:
    """Offsets become digits and the digits become the same offsets, wherever blocks of 256 begin."""
    offsets = [base + at for at, complete in enumerate(flags) if not complete]
    digits = digits_of_places(array("Q", offsets), base, len(flags))
    assert digits == bytes(48 + complete for complete in flags)
    assert zero_places(base, bytes(digits)) == offsets


@pytest.mark.parametrize("base", BASES)
def test_places_across_windows(base: int) -> None:
    """Rows longer than a window, and than two bytes can count, keep their offsets."""
    random = Random(base)
    offsets = [base + at for at in range(69_000) if random.random() < 0.3]
    digits = digits_of_places(array("Q", offsets), base, 69_000)
    assert digits.count(b"0") == len(offsets)
    assert zero_places(base, bytes(digits)) == offsets


@given(numbers=st.lists(st.integers(0, 300) | st.integers(0, 2**63 - 1), max_size=40), width=st.integers(1, 63))
def test_numbers_and_digits_are_inverse(numbers: list[int], width: int) -> None:
    """The low digits of each number, and the numbers of these digits."""
    low = [number % (1 << width) for number in numbers]
    digits = digits_of_numbers(array("Q", numbers), width)
    assert digits.decode() == "".join(format(number, f"0{width}b") for number in low)
    assert list(numbers_of_digits(digits, width)) == low


@given(numbers=st.lists(st.integers(0, 300) | st.integers(0, 2**63 - 1), max_size=40))
def test_fields_hold_the_numbers(numbers: list[int]) -> None:
    """Fields are narrowed to the width of the largest number, and report their width and their bits."""
    fields = row_piece(array("Q", numbers), 0, len(numbers))
    widest = max(numbers, default=0).bit_length()
    assert fields.widest() == widest
    assert fields.bit_counts(widest) == [sum(number >> bit & 1 for number in numbers) for bit in range(widest)]
    narrow = narrowest([fields])
    assert list(narrow) == numbers
    assert 8 * narrow.itemsize >= widest
    assert narrow.itemsize == 1 or 4 * narrow.itemsize < widest


def test_pieces_are_narrowed_together() -> None:
    """One large number in a late piece sets the width of all."""
    pieces = [Row(5, PIECE, 8), Row(70_000, 1, 8)]
    assert list(narrowest(pieces)) == [5] + [0] * (PIECE - 1) + [70_000]
