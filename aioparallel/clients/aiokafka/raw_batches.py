"""Decodes batches that aiokafka's decoder refuses, record by record, from the bytes of the fetch response.

aiokafka's compiled decoder is fast, and stops at the first record that it cannot decode. Each record contains its
length, so the other records of the batch are readable, and so are most parts of the broken one. A batch contains its
length as well, outside of its checksum, so the batches after a broken one can be read.

A batch in message format 2: <https://kafka.apache.org/documentation/#recordbatch>. In formats 0 and 1 a batch is a
message, which may contain other compressed messages and then has the offset of the last one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

from aioparallel.records.record import Headers

__all__ = ["Damaged", "Frame", "Place", "SalvagedRecord", "frame_at", "head_at", "place_of", "records_in"]

_FRAME: Final = struct.Struct(">qi")
"""Offset, and the length of the rest."""
_EPOCH: Final = struct.Struct(">i")
_MAGIC_AT: Final = 16
_NEW: Final = 2
"""The message format of batches with a header."""
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Offset, length, leader epoch, format, checksum, attributes, last offset delta, first and last timestamp, producer id,
epoch and sequence, number of records."""
_CODEC: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_CODECS: Final[dict[int, tuple[str, Callable[[bytes], bytes]]]] = {
    1: ("gzip", gzip_decode),
    2: ("snappy", snappy_decode),
    3: ("lz4", lz4_decode),
    4: ("zstd", zstd_decode),
}
_LONGEST_VARINT: Final = 63
"""Largest shift of the last byte of a number, in bits."""


class Place(NamedTuple):
    """The position of a batch in the log."""

    batch: int
    """The offset in its header."""
    next_offset: int | None
    """The first offset after the batch. None if its header is broken and no batch follows in the response."""


class Damaged(Exception):
    """A batch cannot be read, or not completely. ``place``: None if it is unknown."""

    def __init__(self, place: Place | None, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class Frame(NamedTuple):
    """One batch in the bytes of a response."""

    offset: int
    data: bytes
    following: int | None
    """The offset of the next batch, if the response contains it, at least in part."""

    @property
    def is_new(self) -> bool:
        return len(self.data) >= _HEADER.size and self.data[_MAGIC_AT] >= _NEW


class SalvagedRecord(NamedTuple):
    """A record, as far as it is readable."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    fault: str | None
    """Why the record is not decodable as a whole; None if it is."""


class Head(NamedTuple):
    """The start of a batch."""

    offset: int
    end: int
    """Where the next batch begins in the response."""
    epoch: int | None
    """The leader epoch; None in formats 0 and 1."""


def head_at(response: bytes, at: int) -> Head | None:
    """The start of the batch that begins there in a partition's bytes of a fetch response; None if none does."""
    body = at + _FRAME.size
    if body > len(response):
        return None
    offset, length = _FRAME.unpack_from(response, at)
    is_new = at + _MAGIC_AT < len(response) and response[at + _MAGIC_AT] >= _NEW
    return Head(offset, body + max(0, length), _EPOCH.unpack_from(response, body)[0] if is_new else None)


def frame_at(response: bytes, at: int) -> Frame | None:
    """The batch that begins there, which may be cut off at the end of the response; None if none does."""
    if (head := head_at(response, at)) is None:
        return None
    following = head_at(response, head.end)
    return Frame(head.offset, response[at : head.end], None if following is None else following.offset)


def place_of(frame: Frame, position: int) -> Place:
    """The position of a batch. Its header, which may be damaged, is used unless something contradicts it."""
    following = frame.following if frame.following is not None and frame.following > position else None
    if not frame.is_new:
        behind: int | None = frame.offset + 1
    else:
        delta = _HEADER.unpack_from(frame.data)[6]
        behind = frame.offset + delta + 1 if delta >= 0 else None
    if behind is not None and (behind <= position or (following is not None and behind > following)):
        behind = None
    return Place(frame.offset, following if behind is None else behind)


def records_in(frame: Frame, position: int) -> Iterator[SalvagedRecord]:
    """The records of a batch from ``position`` on. Raises Damaged when no more records can be read."""
    place = place_of(frame, position)
    if not frame.is_new:
        raise Damaged(place, "a message of format 0 or 1 that cannot be decoded")
    header = _HEADER.unpack_from(frame.data)
    base, attributes, first_timestamp, last_timestamp, count = header[0], header[5], header[7], header[8], header[12]
    reader = _Reader(_unpacked(frame, attributes & _CODEC, place))
    for number in range(1, count + 1):
        try:
            record = _record(reader.framed(), base, first_timestamp)
        except ValueError as error:
            raise Damaged(place, f"record {number} of {count}: {error}") from None
        if record.offset < position:
            continue
        position = record.offset + 1
        yield record if not attributes & _LOG_APPEND_TIME else record._replace(timestamp=last_timestamp)
    if reader.left:
        raise Damaged(place, f"{reader.left} bytes follow its {count} records")


def _unpacked(frame: Frame, codec: int, place: Place) -> bytes:
    packed = frame.data[_HEADER.size :]
    if not codec:
        return packed
    if codec not in _CODECS:
        raise Damaged(place, f"codec {codec} is unknown")
    name, decode = _CODECS[codec]
    try:
        return bytes(decode(packed))
    except Exception as error:
        raise Damaged(place, f"its codec {name} cannot decompress it: {error!r}") from error


def _record(reader: _Reader, base: int, first_timestamp: int) -> SalvagedRecord:
    """Decode a record. Raises ValueError if not even its offset is readable."""
    reader.take(1)  # the attributes, which are unused
    timestamp, offset = first_timestamp + reader.number(), base + reader.number()
    found = _Parts()
    try:
        found.read(reader)
    except ValueError as error:
        found.fault = f"its {found.name} cannot be read: {error}"
    return SalvagedRecord(offset, timestamp, found.key, found.value, tuple(found.headers), found.fault)


@dataclass
class _Parts:
    """The parts of a record that were read so far. ``name``: the part that is being read."""

    name: str = "key"
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    fault: str | None = None

    def read(self, reader: _Reader) -> None:
        self.key = reader.part()
        self.name = "value"
        self.value = reader.part()
        self.name = "headers"
        count = reader.size()
        for number in range(1, count + 1):
            self.name = f"header {number} of {count}"
            raw, content = reader.take(reader.size()), reader.part()
            name = raw.decode("utf-8", "surrogateescape")
            self.headers.append((name, content))
            if self.fault is None and not name.isascii() and any("\udc80" <= each <= "\udcff" for each in name):
                self.fault = f"the name of {self.name} is not UTF-8: {raw[:100]!r}"
        if reader.left:
            raise ValueError(f"{reader.left} bytes follow them")


class _Reader:
    """Reads numbers and bytes in order. Raises ValueError at the end of the data and for invalid numbers."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError(f"its length is {size} bytes, and {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        """Read a zigzag varint."""
        found = shift = 0
        while shift <= _LONGEST_VARINT:
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7
        raise ValueError("a number has no end")

    def size(self) -> int:
        found = self.number()
        if found < 0:
            raise ValueError(f"its size is {found}")
        return found

    def part(self) -> bytes | None:
        """Read bytes after their length; None for a negative length."""
        size = self.number()
        return None if size < 0 else self.take(size)

    def framed(self) -> _Reader:
        """A reader of the next record, which begins with its length."""
        return _Reader(self.take(self.size()))
