"""The formats of the Java Parallel Consumer, encoded byte for byte.

The text is base64 (RFC 4648, padded) of a magic byte and a body. Integers are big-endian and signed.

- ``BitSet``: the number of offsets (int16, or int32 in V2), then bits (1 for complete, first offset in the lowest bit
  of the first byte), then a spare zero byte.
- ``RunLength``: lengths of alternating runs (int16, or int32 in V2), of which the first is of incomplete offsets.
- ``...Compressed``: the body in a zstd frame.

Source: OffsetEncoding, OffsetBitSet and OffsetRunLength of confluentinc/parallel-consumer 0.5.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from typing import NamedTuple

from aioparallel.offsets.dense.pattern import Pattern
from aioparallel.offsets.frames import compress_frame
from aioparallel.offsets.offset_map import MAX_BODY_BYTES

__all__ = [
    "JAVA_FORMATS",
    "JavaFormat",
    "compressed_payloads",
    "java_payload",
    "java_text",
    "run_length_body",
    "smallest_java_payload",
]


class JavaFormat(NamedTuple):
    """One of the Java library's formats. ``width``: bytes of the count, or of each run length."""

    name: str
    magic: int
    runs: bool
    width: int
    compressed: bool

    @property
    def largest(self) -> int:
        """The largest count or run length that fits."""
        return int((1 << (8 * self.width - 1)) - 1)


JAVA_FORMATS = {
    form.name: form
    for form in (
        JavaFormat("BitSet", ord("l"), False, 2, False),
        JavaFormat("RunLength", ord("n"), True, 2, False),
        JavaFormat("BitSetV2", ord("o"), False, 4, False),
        JavaFormat("RunLengthV2", ord("e"), True, 4, False),
        JavaFormat("BitSetCompressed", ord("a"), False, 2, True),
        JavaFormat("RunLengthCompressed", ord("J"), True, 2, True),
        JavaFormat("BitSetV2Compressed", ord("s"), False, 4, True),
        JavaFormat("RunLengthV2Compressed", ord("p"), True, 4, True),
    )
}

_SMALLEST_COMPRESSED = 11
"""Magic byte, frame header (6 bytes), one block (4 bytes): the smallest size of a compressed payload."""
_FEW_RUNS = 2_000
_MANY_RUNS = 20_000
_SMALL_BITSET = 8_192  # bytes
_SMALL_PAYLOAD = 32
_NEAR = 1.2
_REPEATS = 0.8


def java_text(payload: bytes) -> str:
    """The payload as commit metadata."""
    return b64encode(payload).decode("ascii")


def java_payload(pattern: Pattern, form: JavaFormat) -> bytes:
    """Magic byte and body. Raises ValueError if the format cannot represent the pattern."""
    body = run_length_body(pattern, form) if form.runs else _bitset_body(pattern, form)
    return bytes((form.magic,)) + (compress_frame(body) if form.compressed else body)


def run_length_body(pattern: Pattern, form: JavaFormat, entries: int | None = None) -> bytes:
    """The first ``entries`` run lengths, or all, as big-endian integers of ``form.width`` bytes.

    Raises ValueError if one does not fit, or if the body would be too large.
    """
    runs = pattern.runs[:entries]
    if form.width * len(runs) > MAX_BODY_BYTES:
        raise ValueError(f"{form.name}: {len(runs)} runs make a body of more than {MAX_BODY_BYTES} bytes")
    longest = pattern.longest_run if entries is None else max(runs, default=0)
    if longest > form.largest:
        raise ValueError(f"{form.name}: a run of {longest} offsets is longer than {form.largest}")
    lengths = array("I", runs)  # takes half the time of "h"
    if sys.byteorder == "little":
        lengths.byteswap()
    octets = lengths.tobytes()
    if form.width == 4:
        return octets
    body = bytearray(2 * len(runs))
    body[0::2], body[1::2] = octets[2::4], octets[3::4]
    return bytes(body)


def _bitset_body(pattern: Pattern, form: JavaFormat) -> bytes:
    if pattern.size > form.largest:
        raise ValueError(f"{form.name}: {pattern.size} offsets are more than {form.largest}")
    if pattern.size // 8 + form.width + 2 > MAX_BODY_BYTES:
        raise ValueError(f"{form.name}: {pattern.size} offsets make a body of more than {MAX_BODY_BYTES} bytes")
    return pattern.size.to_bytes(form.width, "big") + pattern.bitset + b"\0"


def smallest_java_payload(pattern: Pattern) -> bytes | None:
    """The smallest of all eight formats; None if none can represent the pattern.

    Sizes without zstd follow from the number of offsets and of runs. Payloads with zstd must be made, but most can be
    ruled out beforehand. A sparse pattern is larger as a bitset. Many short runs are larger as run lengths, unless the
    bits have a pattern that zstd finds. With at most 2,000 runs and a bitset of at most 8 KiB all are made, so the
    choice is exact. With up to 20,000 runs a sample decides. Beyond that, a regular pattern may take up to 21 bytes
    more than necessary.
    """
    size, runs = pattern.size, pattern.run_count
    octets = (size + 7) // 8
    short = size <= 0x7FFF or (16 * runs < size + 64 and pattern.longest_run <= 0x7FFF)
    plain = [
        (form, 1 + (form.width * runs if form.runs else form.width + octets + 1))
        for form in JAVA_FORMATS.values()
        if not form.compressed and (short if form.runs and form.width == 2 else size <= form.largest or form.runs)
    ]
    payloads: list[bytes] = []
    for form, _ in sorted(plain, key=lambda entry: entry[1]):
        try:
            payloads.append(java_payload(pattern, form))
        except ValueError:
            continue
        break
    if not payloads or len(payloads[0]) > _SMALLEST_COMPRESSED:
        payloads += compressed_payloads(pattern)
    return min(payloads, key=len, default=None)


def compressed_payloads(pattern: Pattern) -> list[bytes]:
    """The payloads with zstd that can represent the pattern and may be the smallest."""
    size, runs = pattern.size, pattern.run_count
    octets = (size + 7) // 8
    payloads: list[bytes] = []
    if octets <= _SMALL_BITSET or size <= 128 * runs:
        payloads += _those_that_fit(pattern, "BitSetCompressed", "BitSetV2Compressed")
    smallest = min(map(len, payloads), default=octets)
    regular = size >= 8 * runs or _SMALL_PAYLOAD < smallest < octets // 2
    if regular or runs <= _FEW_RUNS or (runs <= _MANY_RUNS and _runs_may_win(pattern)):
        payloads += _those_that_fit(pattern, "RunLengthCompressed", "RunLengthV2Compressed")
    return payloads


def _runs_may_win(pattern: Pattern) -> bool:
    """Whether compressed run lengths may be about as small as a bitset; making them all takes long.

    They may if they are about as small in a sample, the first eighth. They also may if something repeats only beyond
    the sample: the gaps then compress better as a whole than in the sample.
    """
    sample = pattern.cut(pattern.last_complete(pattern.base + pattern.size // 8))
    bitset, runs = _those_that_fit(sample, "BitSetV2Compressed", "RunLengthV2Compressed")
    if len(runs) < _NEAR * len(bitset):
        return True
    of_sample, of_all = (compress_frame(gaps.tobytes()) for gaps in (sample.gaps, pattern.gaps))
    return len(of_all) * len(sample.gaps) < _REPEATS * len(of_sample) * len(pattern.gaps)


def _those_that_fit(pattern: Pattern, *names: str) -> list[bytes]:
    payloads = []
    for name in names:
        try:
            payloads.append(java_payload(pattern, JAVA_FORMATS[name]))
        except ValueError:
            continue
    return payloads
