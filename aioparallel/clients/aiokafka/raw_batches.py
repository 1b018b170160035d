"""What aiokafka's decoder refuses, from the bytes of the fetch response: which batch it is, and its records one by one.

aiokafka's decoder is compiled, fast, and ends at the first record that it cannot decode. Each record bears its length,
so the others of its batch are as readable as ever, and of most of it something is readable, too. A batch bears its
length as well, outside of its checksum: so what is broken has an end, and what stands behind it can be read.

The format of a batch, message format 2: <https://kafka.apache.org/documentation/#recordbatch>. Of the older ones
(0 and 1) a batch is a message, perhaps with others compressed in it, and bears the offset of its last.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

from aioparallel.records import Headers

__all__ = ["CloseRecord", "Damaged", "Frame", "Place", "frame_at", "place_of", "records_in"]

_FRAME: Final = struct.Struct(">qi")
"""Offset, and the length of what follows."""
_MAGIC_AT: Final = 16
_NEW: Final = 2
"""The message format of batches with a header of their own."""
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Offset, length, leader epoch, format, checksum, attributes, last offset delta, first and last timestamp, producer's
id, epoch and sequence, number of records."""
_CODEC: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_CODECS: Final[dict[int, tuple[str, Callable[[bytes], bytes]]]] = {
    1: ("gzip", gzip_decode),
    2: ("snappy", snappy_decode),
    3: ("lz4", lz4_decode),
    4: ("zstd", zstd_decode),
}
_LONGEST_VARINT: Final = 63
"""Bits that the last byte of a number is shifted by at most."""


class Place(NamedTuple):
    """Where a batch stands in the log."""

    batch: int
    """The offset that it bears."""
    next_offset: int | None
    """The first offset behind it; None: its header is broken, and nothing stands behind it here that tells."""


class Damaged(Exception):
    """A batch cannot be read, or not from here on. ``place``: None where that is not known."""

    def __init__(self, place: Place | None, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class Frame(NamedTuple):
    """One batch among the bytes of a response."""

    offset: int
    data: bytes
    following: int | None
    """The offset that the batch behind it bears, if that is here, too, be it in part."""

    @property
    def is_new(self) -> bool:
        """Whether it has message format 2."""
        return len(self.data) >= _HEADER.size and self.data[_MAGIC_AT] >= _NEW


class CloseRecord(NamedTuple):
    """A record, as far as it is readable."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    fault: str | None
    """Why it is not decodable as a whole; None: it is."""


def frame_at(response: bytes, number: int) -> Frame | None:
    """The batch of this number, from 0, in the bytes that a fetch has brought of a partition; of one that is cut off,
    what is here. None: there is none."""
    at = 0
    while at + _FRAME.size <= len(response):
        offset, length = _FRAME.unpack_from(response, at)
        end = at + _FRAME.size + max(0, length)
        if not number:
            following = None
            if at < end <= len(response) - _FRAME.size:
                following = int(_FRAME.unpack_from(response, end)[0])
            return Frame(int(offset), response[at:end], following)
        at, number = end, number - 1
    return None


def place_of(frame: Frame, position: int) -> Place:
    """Where it stands. Its header may be what is damaged: what that says counts where nothing contradicts it."""
    following = frame.following if frame.following is not None and frame.following > position else None
    if not frame.is_new:
        behind: int | None = frame.offset + 1
    else:
        delta = _HEADER.unpack_from(frame.data)[6]
        behind = frame.offset + delta + 1 if delta >= 0 else None
    if behind is not None and (behind <= position or (following is not None and behind > following)):
        behind = None
    return Place(frame.offset, following if behind is None else behind)


def records_in(frame: Frame, position: int) -> Iterator[CloseRecord]:
    """Its records, those below ``position`` left out. Raises Damaged where nothing more of it can be read."""
    place = place_of(frame, position)
    if not frame.is_new:
        raise Damaged(place, "a message of format 0 or 1 that cannot be decoded")
    header = _HEADER.unpack_from(frame.data)
    base, attributes, first_timestamp, last_timestamp, count = header[0], header[5], header[7], header[8], header[12]
    reading = _Reading(_unpacked(frame, attributes & _CODEC, place))
    for number in range(1, count + 1):
        try:
            record = _record(reading.framed(), base, first_timestamp)
        except ValueError as error:
            raise Damaged(place, f"record {number} of {count}: {error}") from None
        if record.offset < position:
            continue
        position = record.offset + 1
        yield record if not attributes & _LOG_APPEND_TIME else record._replace(timestamp=last_timestamp)
    if reading.left:
        raise Damaged(place, f"{reading.left} bytes stand behind its {count} records")


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
        raise Damaged(place, f"its codec {name} cannot unpack it: {error!r}") from error


def _record(reading: _Reading, base: int, first_timestamp: int) -> CloseRecord:
    """Raises ValueError where not even its offset can be read."""
    reading.skip_attributes()
    timestamp, offset = first_timestamp + reading.number(), base + reading.number()
    found = _Parts()
    try:
        found.read(reading)
    except ValueError as error:
        found.fault = f"its {found.name} cannot be read: {error}"
    return CloseRecord(offset, timestamp, found.key, found.value, tuple(found.headers), found.fault)


class _Parts:
    """What is read of a record so far; ``name``: what is read now."""

    def __init__(self) -> None:
        self.name = "key"
        self.key: bytes | None = None
        self.value: bytes | None = None
        self.headers: list[tuple[str, bytes | None]] = []
        self.fault: str | None = None

    def read(self, reading: _Reading) -> None:
        """All of it. Raises ValueError."""
        self.key = reading.part()
        self.name = "value"
        self.value = reading.part()
        self.name = "headers"
        count = reading.size()
        for number in range(1, count + 1):
            self.name = f"header {number} of {count}"
            raw, content = reading.take(reading.size()), reading.part()
            name = raw.decode("utf-8", "surrogateescape")
            self.headers.append((name, content))
            if self.fault is None and not name.isascii() and any("\udc80" <= each <= "\udcff" for each in name):
                self.fault = f"the name of {self.name} is no UTF-8: {raw[:100]!r}"
        if reading.left:
            raise ValueError(f"{reading.left} bytes stand behind them")


class _Reading:
    """Bytes, and how far they are read. What does not fit raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """So many."""
        if size > self.left:
            raise ValueError(f"it says that it has {size} bytes, and {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        """A zigzag number."""
        found = shift = 0
        while shift <= _LONGEST_VARINT:
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7
        raise ValueError("a number has no end")

    def size(self) -> int:
        """A number that is not below 0."""
        found = self.number()
        if found < 0:
            raise ValueError(f"its size is {found}")
        return found

    def part(self) -> bytes | None:
        """Bytes behind their number; below 0: none."""
        size = self.number()
        return None if size < 0 else self.take(size)

    def framed(self) -> _Reading:
        """A record, by its length."""
        return _Reading(self.take(self.size()))

    def skip_attributes(self) -> None:
        """They mean nothing yet."""
        self.take(1)
