"""Decodes maps of the Java library, and rejects similar texts.

Counts in the text are not trusted. Before they are used, they are compared with the available bytes, and the incomplete
offsets with MAX_INCOMPLETES. A run of a billion complete offsets is valid and costs nothing, because only incomplete
offsets are listed.
"""

from __future__ import annotations

import binascii
import sys
from array import array
from itertools import accumulate, chain, compress

from aioparallel.offsets.frames import decompress_frame
from aioparallel.offsets.java.java_formats import JAVA_FORMATS, JavaFormat
from aioparallel.offsets.offset_map import MAX_BODY_BYTES, MAX_INCOMPLETES, MAX_OFFSET, OffsetMap
from aioparallel.offsets.packing import zero_places
from aioparallel.records.errors import OffsetMapError

__all__ = ["check_incompletes", "decode_java_payload", "decode_java_text", "highest_offset", "java_format_of"]

_BY_MAGIC = {form.magic: form for form in JAVA_FORMATS.values()}
_KAFKA_STREAMS = (1, 2)
_BYTE_ARRAY = (ord("L"), 0xEE)
_MAX_TEXT = (MAX_BODY_BYTES + 8) * 4 // 3
_PIECE = 4_096  # bytes of a bitset unpacked at a time, which bounds the memory

# The zero bits of each byte: its incomplete offsets.
_ZEROS = tuple(tuple(bit for bit in range(8) if not octet >> bit & 1) for octet in range(256))
_NOT_FULL = bytes([1] * 255 + [0])
_NEGATIVE = bytes(range(128))  # deleting these leaves the high bytes of negative numbers


def decode_java_text(base: int, text: str) -> OffsetMap:
    """Decode base64 text. Raises OffsetMapError with the reason for any other text."""
    if len(text) > _MAX_TEXT:
        raise OffsetMapError(f"offset map: {len(text)} characters are more than the largest body needs")
    # Strict mode still accepts whole groups of padding.
    if len(text) % 4 or len(text) - len(text.rstrip("=")) > 2:
        raise OffsetMapError(f"offset map: not base64: {len(text)} characters, or wrongly padded")
    try:
        payload = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # binascii.Error, or characters outside ASCII
        raise OffsetMapError(f"offset map: not base64, perhaps another program's metadata: {error}") from None
    return decode_java_payload(base, payload)


def java_format_of(text: str) -> str | None:
    """The name of the format that the first byte of base64 text names; None for other text."""
    try:
        form = _BY_MAGIC.get(binascii.a2b_base64(text[:4])[0])
    except (ValueError, IndexError):
        return None
    return None if form is None else form.name


def decode_java_payload(base: int, payload: bytes) -> OffsetMap:
    """Decode magic byte and body. Raises OffsetMapError with the reason for any other bytes."""
    if not payload:
        raise OffsetMapError("offset map: the payload is empty")
    magic = payload[0]
    form = _BY_MAGIC.get(magic)
    if form is None:
        if magic in _KAFKA_STREAMS:
            raise OffsetMapError(f"offset map: metadata of Kafka Streams (magic byte {magic:#04x}), not a map")
        if magic in _BYTE_ARRAY:
            raise OffsetMapError(f"offset map: format ByteArray (magic byte {magic:#04x}) is not in use")
        raise OffsetMapError(f"offset map: unknown magic byte {magic:#04x}")
    body = payload[1:]
    if form.compressed:
        body = decompress_frame(body)
    elif len(body) > MAX_BODY_BYTES:
        raise OffsetMapError(f"offset map: a body of {len(body)} bytes is more than {MAX_BODY_BYTES}")
    return _read_runs(base, body, form) if form.runs else _read_bitset(base, body, form)


def check_incompletes(count: int) -> None:
    """Raise OffsetMapError for more incomplete offsets than a map may list."""
    if count > MAX_INCOMPLETES:
        raise OffsetMapError(f"offset map: {count} incomplete offsets are more than {MAX_INCOMPLETES}")


def highest_offset(base: int, size: int) -> int:
    """The last of ``size`` offsets from ``base`` on. Raises OffsetMapError beyond int64."""
    highest = base + size - 1
    if highest > MAX_OFFSET:
        raise OffsetMapError(f"offset map: {size} offsets from {base} on go beyond 2**63-1")
    return highest


def _read_bitset(base: int, body: bytes, form: JavaFormat) -> OffsetMap:
    if len(body) < form.width:
        raise OffsetMapError(f"offset map: {form.name} is truncated in its count ({len(body)} bytes)")
    size = int.from_bytes(body[: form.width], "big", signed=True)
    if size < 0:
        raise OffsetMapError(f"offset map: {form.name} counts {size} offsets")
    octets = (size + 7) // 8
    bitset = body[form.width :]
    # Java's reader takes missing bits as 0. Its writers add a spare byte, and the last offset is complete unless all
    # are incomplete. So one byte may be missing. If more are missing, the text was cut.
    if octets > len(bitset) + 1:
        raise OffsetMapError(f"offset map: {form.name} counts {size} offsets and has {len(bitset)} bytes of bits")
    spare = bitset[octets:]
    if spare.count(0) != len(spare):
        raise OffsetMapError(f"offset map: {form.name} has bits set after its {size} offsets")
    highest = highest_offset(base, size)
    bitset = bitset[:octets].ljust(octets, b"\0")
    if size % 8:
        past = 0xFF << size % 8 & 0xFF
        if bitset[-1] & past:
            raise OffsetMapError(f"offset map: {form.name} has bits set after its {size} offsets")
        bitset = bitset[:-1] + bytes((bitset[-1] | past,))
    return OffsetMap(base, highest, tuple(_zero_places(base, bitset)))


def _zero_places(base: int, bitset: bytes) -> list[int]:
    """The offsets whose bit is 0. The first bit belongs to ``base``."""
    zeros = 8 * len(bitset) - int.from_bytes(bitset, "little").bit_count()
    check_incompletes(zeros)
    if zeros <= len(bitset) // 2:
        marked = compress(range(len(bitset)), bitset.translate(_NOT_FULL))
        return [base + 8 * at + bit for at in marked for bit in _ZEROS[bitset[at]]]
    places: list[int] = []
    for at in range(0, len(bitset), _PIECE):
        piece = bitset[at : at + _PIECE]
        # One digit per bit, highest first. The extra byte in front preserves leading zeros, and is sliced off again.
        digits = format(int.from_bytes(piece + b"\1", "little"), "b")[:0:-1]
        places += zero_places(base + 8 * at, digits.encode())
    return places


def _read_runs(base: int, body: bytes, form: JavaFormat) -> OffsetMap:
    if not body or len(body) % form.width:
        raise OffsetMapError(
            f"offset map: {form.name} has a body of {len(body)} bytes, not a multiple of {form.width} above 0"
        )
    if body[:: form.width].translate(None, _NEGATIVE):
        raise OffsetMapError(f"offset map: {form.name} has a negative run length")
    entries = array("h" if form.width == 2 else "i", body)
    if sys.byteorder == "little":
        entries.byteswap()
    incomplete, complete = entries[0::2], entries[1::2]
    total = sum(incomplete)
    check_incompletes(total)
    highest = highest_offset(base, total + sum(complete))
    if len(complete) < len(incomplete):
        complete.append(0)
    ends = accumulate(map(int.__add__, incomplete, complete), initial=base)
    if total == len(incomplete) == incomplete.count(1):
        return OffsetMap(base, highest, tuple(ends)[:-1])
    # Starts of the incomplete runs. The empty run before a complete base yields nothing.
    runs = (range(start, start + length) for start, length in zip(ends, incomplete, strict=False))
    return OffsetMap(base, highest, tuple(chain.from_iterable(runs)))
