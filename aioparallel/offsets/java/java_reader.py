"""Reading what the Java library wrote, or what only looks like it.

Counts in the text are claims: before anything is made from one, it is held against the bytes that are there,
and the incomplete offsets against MAX_INCOMPLETES. A run of a billion complete offsets is legitimate and costs
nothing, because only incomplete ones are listed.
"""

from __future__ import annotations

import binascii
import sys
from array import array
from itertools import accumulate, chain, compress

from aioparallel.errors import OffsetMapError
from aioparallel.offsets.frames import decompress_frame
from aioparallel.offsets.java.java_formats import JAVA_FORMATS, JavaFormat
from aioparallel.offsets.offset_map import MAX_BODY_BYTES, MAX_INCOMPLETES, MAX_OFFSET, OffsetMap
from aioparallel.offsets.packing import zero_places

__all__ = ["check_incompletes", "decode_java_payload", "decode_java_text"]

_BY_MAGIC = {form.magic: form for form in JAVA_FORMATS.values()}
_KAFKA_STREAMS = (1, 2)
_BYTE_ARRAY = (ord("L"), 0xEE)
_MAX_TEXT = (MAX_BODY_BYTES + 8) * 4 // 3
_PIECE = 4_096  # bytes of a bitset unpacked at a time: memory stays small whatever the bitset's length

# The places of the zero bits in each byte: what is incomplete in it.
_ZEROS = tuple(tuple(bit for bit in range(8) if not octet >> bit & 1) for octet in range(256))
_NOT_FULL = bytes([1] * 255 + [0])
_NEGATIVE = bytes(range(128))  # what to delete to see whether a high byte is left


def decode_java_text(base: int, text: str) -> OffsetMap:
    """The map in base64 text. Raises OffsetMapError with the reason for anything else."""
    if len(text) > _MAX_TEXT:
        raise OffsetMapError(f"offset map: {len(text)} characters are more than the largest body needs")
    # Strict mode still lets whole groups of padding through.
    if len(text) % 4 or len(text) - len(text.rstrip("=")) > 2:
        raise OffsetMapError(f"offset map: not base64: {len(text)} characters, or wrongly padded")
    try:
        payload = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # binascii.Error, or characters outside ASCII
        raise OffsetMapError(f"offset map: not base64, perhaps another program's metadata: {error}") from None
    return decode_java_payload(base, payload)


def decode_java_payload(base: int, payload: bytes) -> OffsetMap:
    """The map in magic byte and body. Raises OffsetMapError with the reason for anything else."""
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
    """Raises OffsetMapError for more incomplete offsets than a map may list."""
    if count > MAX_INCOMPLETES:
        raise OffsetMapError(f"offset map: {count} incomplete offsets are more than {MAX_INCOMPLETES}")


def _highest(base: int, size: int) -> int:
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
    # Java's reader takes absent bits as 0. Its writers always end with a spare byte, and the last offset is
    # complete unless nothing is, so one byte may be absent; where more are, the text was cut.
    if octets > len(bitset) + 1:
        raise OffsetMapError(f"offset map: {form.name} counts {size} offsets and has {len(bitset)} bytes of bits")
    spare = bitset[octets:]
    if spare.count(0) != len(spare):
        raise OffsetMapError(f"offset map: {form.name} has bits set after its {size} offsets")
    highest = _highest(base, size)
    bitset = bitset[:octets].ljust(octets, b"\0")
    if size % 8:
        past = 0xFF << size % 8 & 0xFF
        if bitset[-1] & past:
            raise OffsetMapError(f"offset map: {form.name} has bits set after its {size} offsets")
        bitset = bitset[:-1] + bytes((bitset[-1] | past,))
    return OffsetMap(base, highest, tuple(_zero_places(base, bitset)))


def _zero_places(base: int, bitset: bytes) -> list[int]:
    """The offsets whose bit is 0, the first bit being that of ``base``."""
    zeros = 8 * len(bitset) - int.from_bytes(bitset, "little").bit_count()
    check_incompletes(zeros)
    if zeros <= len(bitset) // 2:
        marked = compress(range(len(bitset)), bitset.translate(_NOT_FULL))
        return [base + 8 * at + bit for at in marked for bit in _ZEROS[bitset[at]]]
    places: list[int] = []
    for at in range(0, len(bitset), _PIECE):
        piece = bitset[at : at + _PIECE]
        # A digit a bit, the highest first: the one put in front keeps leading zeros, and falls away again.
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
    highest = _highest(base, total + sum(complete))
    if len(complete) < len(incomplete):
        complete.append(0)
    ends = accumulate(map(int.__add__, incomplete, complete), initial=base)
    if total == len(incomplete) == incomplete.count(1):
        return OffsetMap(base, highest, tuple(ends)[:-1])
    # Starts of the incomplete runs; an empty one, where base is complete, yields nothing.
    runs = (range(start, start + length) for start, length in zip(ends, incomplete, strict=False))
    return OffsetMap(base, highest, tuple(chain.from_iterable(runs)))
