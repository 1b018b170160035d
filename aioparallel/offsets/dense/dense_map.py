"""This package's own format: 15 bits in each character, about three times as many offsets as in the Java formats.

Kafka limits the characters of commit metadata, not their bytes. Base64 uses 6 bits of a character, this format uses
15. docs/offset-maps.md describes the layout.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, repeat
from operator import add, lshift
from zlib import crc32

from aioparallel.offsets.dense.pattern import Pattern
from aioparallel.offsets.dense.rice import (
    Digits,
    best_parameter,
    number,
    number_size,
    read_block,
    write_block,
)
from aioparallel.offsets.java.java_formats import smallest_java_payload
from aioparallel.offsets.java.java_reader import check_incompletes, decode_java_payload, highest_offset
from aioparallel.offsets.offset_map import MAX_BODY_BYTES, OffsetMap
from aioparallel.offsets.packing import digits_of_numbers, numbers_of_digits, regroup, row_of_ones, zero_places
from aioparallel.records.errors import OffsetMapError

__all__ = ["BITS", "ENVELOPE", "decode_dense", "dense_text", "is_dense", "runs_at_least", "split_runs"]

BITS = 15
ENVELOPE = 3
"""Characters before the body: one with magic, version and kind, and two with the checksum."""
_FIRST = 0x0800
_LAST = 0x87FF
_MAGIC = 0xA9 << 7
_VERSION = 1
_GAPS, _RUNS, _JAVA = 0, 1, 2
_CHECKSUM_BITS = 30
_UNIT = 16
"""Bits of a UTF-16 code unit."""
_LESS_ONE = bytes([255, *range(255)])
_MAX_TEXT = MAX_BODY_BYTES * 8 // BITS + 16


def is_dense(text: str) -> bool:
    """Whether the text may be in this format. Base64 has no characters from its block."""
    return _FIRST <= ord(text[0]) <= _LAST


def split_runs(pattern: Pattern) -> tuple[array[int], array[int], bool]:
    """Lengths less 1 of the incomplete runs and of the complete runs, and whether a complete run is first."""
    incomplete, complete = pattern.sides
    return _less_one(incomplete), _less_one(complete), bool(complete and not pattern.leads)


def _less_one(lengths: list[int]) -> array[int]:
    try:
        return array("B", bytes(lengths).translate(_LESS_ONE))
    except ValueError:
        return array("Q", [length - 1 for length in lengths])


def runs_at_least(pattern: Pattern) -> float:
    """The number of digits that runs take at least, estimated from their number and their mean lengths.

    With parameter ``k`` a run of ``r`` offsets takes ``k + 1 + ((r - 1) >> k)`` digits, which is at least
    ``k + r / 2**k``. Rounding adds a few percent, of which 2 are included.
    """
    pairs = (pattern.run_count - 1) // 2
    means = (len(pattern.offsets) / max(1, pairs), (pattern.size - len(pattern.offsets)) / max(1, pairs))
    return 1.02 * sum(pairs * min(k + mean / (1 << k) for k in range(64)) for mean in means)


def dense_text(pattern: Pattern, java: bytes | None = None, limit: int | None = None) -> str:
    """The smallest of: gaps in Golomb-Rice code (the bitset is a special case), runs in Golomb-Rice code, the Java
    payload unchanged. ``java``: the smallest Java payload, if the caller has it already.

    Raises ValueError if the text would be longer than ``limit`` characters.
    """
    java = smallest_java_payload(pattern) if java is None else java
    between = pattern.gaps
    k, block = best_parameter(between)
    kind, size = _GAPS, number_size(pattern.size) + block
    if runs_at_least(pattern) < size:
        incomplete, complete, complete_first = split_runs(pattern)
        (ki, of_incomplete), (kc, of_complete) = best_parameter(incomplete), best_parameter(complete)
        kind, size = min((kind, size), (_RUNS, 1 + of_incomplete + of_complete), key=lambda entry: entry[1])
    if java is not None:
        as_java = number_size(len(java)) + 8 * len(java)
        kind, size = min((kind, size), (_JAVA, as_java), key=lambda entry: entry[1])
    length = ENVELOPE + -(-size // BITS)
    if limit is not None and length > limit:
        raise ValueError(
            f"Dense: the offset map takes {length} characters, more than limit={limit}; fit_offset_map cuts it"
        )
    if kind == _JAVA and java is not None:
        digits = number(len(java)).encode() + digits_of_numbers(array("B", java), 8)
    elif kind == _RUNS:
        digits = (b"1" if complete_first else b"0") + write_block(incomplete, ki) + write_block(complete, kc)
    else:
        # With k = 0 the unary part of the gaps equals the digits of the offsets, which is faster for short gaps.
        short = not k and pattern.size <= 8 * len(between)
        unary = bytes(pattern.digits[: pattern.size - pattern.tail]) if short else None
        digits = number(pattern.size).encode() + write_block(between, k, unary)
    return _enclose(pattern.base, kind, digits)


def _enclose(base: int, kind: int, digits: bytes) -> str:
    row = int(regroup(digits + b"0" * (-len(digits) % BITS), BITS, _UNIT), 2)
    count = -(-len(digits) // BITS)
    body = (row + _FIRST * row_of_ones(count, 2)).to_bytes(2 * count, "big")
    head = (_FIRST + (_MAGIC | _VERSION << 3 | kind)).to_bytes(2, "big")
    checksum = _checksum(base, head + body)
    found = (_FIRST + (checksum >> BITS)).to_bytes(2, "big") + (_FIRST + (checksum & 0x7FFF)).to_bytes(2, "big")
    return (head + found + body).decode("utf-16-be")


def _checksum(base: int, octets: bytes) -> int:
    # Includes the base: if a tool copies a commit to another offset and keeps its metadata, the map is wrong there, and
    # must not be readable.
    return crc32(octets, crc32(base.to_bytes(8, "big"))) & ((1 << _CHECKSUM_BITS) - 1)


def decode_dense(base: int, text: str) -> OffsetMap:
    """Decode the map in the text. Raises OffsetMapError with the reason if there is none."""
    if len(text) > _MAX_TEXT:
        raise OffsetMapError(f"offset map: {len(text)} characters are more than the largest body needs")
    octets = text.encode("utf-16-be", "surrogatepass")
    count = len(octets) // 2
    # A character below the block makes its field negative, which sets the top bit, as a character above the block does.
    row = int.from_bytes(octets, "big") - _FIRST * row_of_ones(count, 2)
    if row < 0 or row & row_of_ones(count, 2) << BITS:
        raise OffsetMapError("offset map: Dense has a character outside U+0800..U+87FF")
    head = ord(text[0]) - _FIRST
    if head & ~0x7F != _MAGIC:
        raise OffsetMapError("offset map: neither base64 nor Dense, perhaps another program's metadata")
    if head >> 3 & 0xF != _VERSION:
        raise OffsetMapError(f"offset map: Dense of version {head >> 3 & 0xF}; this reader knows {_VERSION}")
    if len(text) <= ENVELOPE:
        raise OffsetMapError("offset map: Dense is truncated in its envelope")
    found = (ord(text[1]) - _FIRST) << BITS | (ord(text[2]) - _FIRST)
    if found != _checksum(base, octets[:2] + octets[2 * ENVELOPE :]):
        raise OffsetMapError(
            f"offset map: Dense has a checksum that does not fit: damaged, or not written for offset {base}"
        )
    units = format(row, f"0{_UNIT * count}b").encode()[_UNIT * ENVELOPE :]
    digits = Digits(bytes(regroup(units, _UNIT, BITS)))
    kind = head & 7
    if kind not in _READERS:
        raise OffsetMapError(f"offset map: Dense has a body of unknown kind {kind}")
    return _READERS[kind](base, digits)


def _read_gaps(base: int, digits: Digits) -> OffsetMap:
    size = digits.number()
    count, k, remainders, unary = read_block(digits)
    digits.end()
    check_incompletes(count)
    highest = highest_offset(base, size)
    if k:
        # Before incomplete offset i there are the gaps 0..i and i incomplete offsets. The unary parts of the gaps add
        # up to zeros[i] - i, the remainders to their running sum: base + i + ((zeros[i] - i) << k) + that sum.
        each, zeros = (1 << k) - 1, zero_places(0, unary)
        rest = map(add, accumulate(remainders), range(base, base - each * count, -each))
        offsets = list(map(add, map(lshift, zeros, repeat(k)), rest))
        last = offsets[-1] if offsets else base - 1
    else:
        last = base + len(unary) - 1
        offsets = zero_places(base, unary) if last <= highest else []
    if last > highest:
        raise OffsetMapError(f"offset map: Dense lists offset {last} above its highest {highest}")
    return OffsetMap(base, highest, tuple(offsets))


def _read_runs(base: int, digits: Digits) -> OffsetMap:
    complete_first = digits.take(1) == b"1"
    incomplete = [length + 1 for length in read_block(digits).values()]
    complete = [length + 1 for length in read_block(digits).values()]
    digits.end()
    if len(complete) - len(incomplete) not in ((0, 1) if complete_first else (-1, 0)):
        raise OffsetMapError(f"offset map: Dense has {len(incomplete)} and {len(complete)} runs in turn")
    total = sum(incomplete)
    check_incompletes(total)
    highest = highest_offset(base, total + sum(complete))
    first, second = (complete, incomplete) if complete_first else (incomplete, complete)
    starts = accumulate(chain.from_iterable(zip(first, [*second, 0], strict=False)), initial=base)
    firsts = list(starts)[int(complete_first) :: 2]
    runs = (range(first, first + length) for first, length in zip(firsts, incomplete, strict=False))
    return OffsetMap(base, highest, tuple(chain.from_iterable(runs)))


def _read_java(base: int, digits: Digits) -> OffsetMap:
    length = digits.number()
    row = digits.take(8 * length)
    digits.end()
    return decode_java_payload(base, numbers_of_digits(row, 8).tobytes())


_READERS = {_GAPS: _read_gaps, _RUNS: _read_runs, _JAVA: _read_java}
