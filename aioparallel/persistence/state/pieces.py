"""Full snapshots as records of a compacted topic. Pure.

A snapshot is a head and a stream of entries, cut in pieces of about half a megabyte: a record each, in a row. The key
is JSON, ``["group", "topic", partition, slot, number]``: the next snapshot in the same slot takes its place. The header
``id`` of each says which snapshot it is of. The head, number 0, is JSON, ``{"v": 1, "base": 1200, "map": "...",
"keys": 91000}``: at which position the state was so, by offset and offset map of any length. The others are the stream
in zstd frames (RFC 8878). An entry is the lengths of key and value, 4 bytes each, big-endian, then both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

import zstandard

from aioparallel.offsets import OffsetMap, decode_offset_map, encode_offset_map
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
"""Of the stream, in one record."""
LARGEST_VALUE: Final = 2**32 - 1
"""Bytes of one value: its length has four of them."""
_LARGEST: Final = 64 * PIECE_BYTES
"""Bytes that a piece may unpack to: far beyond what is ever written."""
_VERSION: Final = 1
_LENGTHS: Final = Struct(">II")


class PieceKey(NamedTuple):
    """Which piece of what."""

    group_id: str
    partition: TopicPartition
    slot: int
    number: int


class Head(NamedTuple):
    """What a snapshot begins with."""

    position: OffsetMap
    keys: int


def encode_piece_key(key: PieceKey) -> bytes:
    """The key of its record."""
    return json.dumps([key.group_id, *key.partition, key.slot, key.number]).encode()


def decode_piece_key(data: bytes | None) -> PieceKey | None:
    """None: it is no key of ours."""
    try:
        match json.loads(data or b""):
            case [str(group_id), str(topic), int(partition), int(slot), int(number)]:
                return PieceKey(group_id, TopicPartition(topic, partition), slot, number)
    except (ValueError, RecursionError):
        pass
    return None


def encode_head(head: Head) -> bytes:
    """The value of the first record."""
    text = encode_offset_map(
        head.position.base_offset, head.position.highest_succeeded, head.position.incompletes, limit=None
    )
    told = {"v": _VERSION, "base": head.position.base_offset, "map": text, "keys": head.keys}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def decode_head(data: bytes | None) -> Head:
    """What :func:`encode_head` was given. Raises ValueError for anything else."""
    try:
        told: Any = json.loads(data or b"")
        if told["v"] != _VERSION:
            raise ValueError(f"version {told['v']!r}, and not {_VERSION}")
        return Head(decode_offset_map(int(told["base"]), told["map"]), int(told["keys"]))
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


class EntryWriter:
    """Writes entries, and gives pieces of their stream as they are full: an entry may be larger than a piece."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """These as well, keys and values."""
        parts, size = self._parts, self._size
        for key, value in entries:
            parts += (_LENGTHS.pack(len(key), len(value)), key, value)
            size += len(key) + len(value) + 8
        self._size = size

    def full_pieces(self) -> Iterator[bytes]:
        """Those of which nothing is left."""
        if self._size < self._piece_bytes:
            return
        stream = b"".join(self._parts)
        ends = len(stream) // self._piece_bytes * self._piece_bytes
        self._parts, self._size = [stream[ends:]], len(stream) - ends
        for at in range(0, ends, self._piece_bytes):
            yield _packed(stream[at : at + self._piece_bytes])

    def last_piece(self) -> Iterator[bytes]:
        """The rest of it."""
        if self._size:
            yield _packed(b"".join(self._parts))
        self._parts, self._size = [], 0


class EntryReader:
    """Reads the entries of a stream, piece by piece."""

    def __init__(self) -> None:
        self._rest = b""

    def entries_in(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Those that end in it. Raises ValueError."""
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
        """Whether nothing of an entry is missing."""
        return not self._rest


def _packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _unpacked(data: bytes) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _LARGEST:
            raise ValueError("its size is not told, or too large")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
