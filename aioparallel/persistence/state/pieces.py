"""Full snapshots as records of a compacted topic. Pure.

A snapshot is a head and a stream of entries, which is cut in pieces of about half a megabyte. Each piece is one record.
The key is JSON, ``["group", "topic", partition, slot, number]``: the next snapshot in the same slot replaces this one.
The header ``id`` names the snapshot. The head has the number 0 and is JSON, ``{"v": 1, "base": 1200, "map": "...",
"keys": 91000}``: offset and offset map (of any length) of the position at which the snapshot was taken. The other
pieces are the stream in zstd frames (RFC 8878). An entry is the lengths of key and value, 4 bytes each, big-endian,
then key and value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

import zstandard

from aioparallel.offsets import OffsetMap, decode_offset_map, encode_offset_map
from aioparallel.persistence.compacted_topic import read_key
from aioparallel.records.record import TopicPartition

__all__ = [
    "LARGEST_VALUE",
    "PIECE_BYTES",
    "EntryReader",
    "EntryWriter",
    "Head",
    "PieceKey",
    "decode_head",
    "decode_piece_key",
    "encode_head",
    "encode_piece_key",
]

PIECE_BYTES: Final = 512 * 1024
"""Bytes of the stream in one record."""
LARGEST_VALUE: Final = 2**32 - 1
"""Bytes of one value at most: its length is written in 4 bytes."""
_LARGEST: Final = 64 * PIECE_BYTES
"""Bytes that a piece may unpack to: far beyond what is ever written."""
_VERSION: Final = 1
_LENGTHS: Final = Struct(">II")


class PieceKey(NamedTuple):
    """The key of one piece."""

    group_id: str
    partition: TopicPartition
    slot: int
    number: int


class Head(NamedTuple):
    """The first piece of a snapshot."""

    position: OffsetMap
    keys: int


def encode_piece_key(key: PieceKey) -> bytes:
    """Returns the key of a piece."""
    return json.dumps([key.group_id, *key.partition, key.slot, key.number]).encode()


def decode_piece_key(data: bytes | None) -> PieceKey | None:
    """Returns None for any other key."""
    match read_key(data):
        case [str(group_id), str(topic), int(partition), int(slot), int(number)]:
            return PieceKey(group_id, TopicPartition(topic, partition), slot, number)
    return None


def encode_head(head: Head) -> bytes:
    """Returns the value of the head."""
    text = encode_offset_map(
        head.position.base_offset, head.position.highest_succeeded, head.position.incompletes, limit=None
    )
    fields = {"v": _VERSION, "base": head.position.base_offset, "map": text, "keys": head.keys}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_head(data: bytes | None) -> Head:
    """Raises ValueError for anything that :func:`encode_head` does not return."""
    try:
        fields: Any = json.loads(data or b"")
        if fields["v"] != _VERSION:
            raise ValueError(f"version {fields['v']!r}, and not {_VERSION}")
        return Head(decode_offset_map(int(fields["base"]), fields["map"]), int(fields["keys"]))
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


class EntryWriter:
    """Writes entries to a stream and cuts it into pieces. An entry may be larger than a piece."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Add keys and values."""
        parts, size = self._parts, self._size
        for key, value in entries:
            parts += (_LENGTHS.pack(len(key), len(value)), key, value)
            size += len(key) + len(value) + 8
        self._size = size

    def full_pieces(self) -> Iterator[bytes]:
        """Take the pieces that are full."""
        if self._size < self._piece_bytes:
            return
        stream = b"".join(self._parts)
        ends = len(stream) // self._piece_bytes * self._piece_bytes
        self._parts, self._size = [stream[ends:]], len(stream) - ends
        for at in range(0, ends, self._piece_bytes):
            yield _packed(stream[at : at + self._piece_bytes])

    def last_piece(self) -> Iterator[bytes]:
        """Take the rest of the stream."""
        if self._size:
            yield _packed(b"".join(self._parts))
        self._parts, self._size = [], 0


class EntryReader:
    """Reads the entries of a stream, piece by piece."""

    def __init__(self) -> None:
        self._rest = b""

    def entries_in(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Returns the keys and values of the entries that end in this piece. Raises ValueError."""
        stream = self._rest + _unpacked(piece)
        at, ends, unpack = 0, len(stream), _LENGTHS.unpack_from
        while at + 8 <= ends:
            key_length, value_length = unpack(stream, at)
            begins = at + 8 + key_length
            after = begins + value_length
            if after > ends:
                break
            yield stream[at + 8 : begins], stream[begins:after]
            at = after
        self._rest = stream[at:]

    @property
    def is_whole(self) -> bool:
        """Whether the last entry is complete."""
        return not self._rest


def _packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _unpacked(data: bytes) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _LARGEST:
            raise ValueError("its size is missing or too large")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
