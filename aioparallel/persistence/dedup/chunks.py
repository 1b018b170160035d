"""Chunks of a memory as records of a compacted topic. Pure.

The key says whose chunk it is, as JSON: ``["group", "topic", partition, "name", number]``. The value is JSON in one
zstd frame (RFC 8878), identities gathered by the partition of their source::

    {"v": 1,
     "records": [["flights", 0, [[1024, 0, ""], [1027, 0, ""]]]],
     "marks": [["flights", 0, [["N14228", 1024, 0]]]]}

A record is its source's offset, its number among those made of it, and its tag; a mark is a key, its bytes as the
characters of Latin-1, and the offset and number up to which it was seen. What has digests stands by itself, where
readers that know of none pass over it: a record with its digest, a mark with those seen at its offset::

     "digested": {"records": [["flights", 0, [[1024, 0, "", "9f86d081884c7d65"]]]],
                  "marks": [["flights", 0, [["N14228", 1024, 0, "9f86d081884c7d65"]]]]}

No value at all: there is no such chunk any more.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import zstandard

from aioparallel.persistence.dedup.identities import ONCE, Identity, Mark, Position, RecordIdentity
from aioparallel.records.record import TopicPartition

__all__ = ["ChunkKey", "decode_chunk", "decode_key", "encode_chunk", "encode_key"]

_VERSION: Final = 1
_LARGEST: Final = 64 * 1024 * 1024
"""Bytes that a chunk may unpack to: far beyond what is ever written."""


class ChunkKey(NamedTuple):
    """Whose chunk it is, and which."""

    group_id: str
    partition: TopicPartition
    name: str
    number: int
    """Chunks with greater numbers hold what was seen later."""


def encode_key(key: ChunkKey) -> bytes:
    """The key of its record."""
    return json.dumps([key.group_id, *key.partition, key.name, key.number]).encode()


def decode_key(data: bytes | None) -> ChunkKey | None:
    """None: it is no key of ours."""
    try:
        match json.loads(data or b""):
            case [str(group_id), str(topic), int(partition), str(name), int(number)]:
                return ChunkKey(group_id, TopicPartition(topic, partition), name, number)
    except (ValueError, RecursionError):
        pass
    return None


def encode_chunk(entries: Mapping[Identity, Position]) -> bytes:
    """The value of its record."""
    plain, digested = _Parts(), _Parts()
    for identity, position in entries.items():
        source = identity.topic, identity.partition
        if isinstance(identity, Mark):
            part = digested if position.digests else plain
            offset, nth, digests = position
            part.marks[source].append([identity.key.decode("latin-1"), offset, nth, *digests])
        elif identity.digest:
            digested.records[source].append([identity.offset, identity.nth, identity.tag, identity.digest])
        else:
            plain.records[source].append([identity.offset, identity.nth, identity.tag])
    told: dict[str, object] = {"v": _VERSION, **plain.told()}
    if digested.records or digested.marks:
        told["digested"] = digested.told()
    return zstandard.ZstdCompressor().compress(json.dumps(told, separators=(",", ":")).encode())


class _Parts:
    """Entries by the partition of their source."""

    def __init__(self) -> None:
        self.records: defaultdict[tuple[str, int], list[list[object]]] = defaultdict(list)
        self.marks: defaultdict[tuple[str, int], list[list[object]]] = defaultdict(list)

    def told(self) -> dict[str, object]:
        """As it is written."""
        parts = {"records": self.records, "marks": self.marks}
        return {name: [[*source, found] for source, found in part.items()] for name, part in parts.items()}


def decode_chunk(data: bytes) -> dict[Identity, Position]:
    """What :func:`encode_chunk` was given. Raises ValueError for anything else."""
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _LARGEST:
            raise ValueError("not written by encode_chunk(): its size is not told, or too large")
        told: Any = json.loads(zstandard.ZstdDecompressor().decompress(data))
    except (zstandard.ZstdError, RecursionError) as error:
        raise ValueError(str(error)) from error
    try:
        if told["v"] != _VERSION:
            raise ValueError(f"version {told['v']!r}, and not {_VERSION}")
        entries: dict[Identity, Position] = {}
        for part in (told, told.get("digested", {"records": [], "marks": []})):
            for topic, partition, found in part["records"]:
                name = sys.intern(topic)
                for offset, nth, *words in found:
                    entries[RecordIdentity(name, int(partition), int(offset), int(nth), *map(str, words))] = ONCE
            for topic, partition, found in part["marks"]:
                name = sys.intern(topic)
                for key, offset, nth, *digests in found:
                    mark = Mark(name, int(partition), key.encode("latin-1"))
                    entries[mark] = Position(int(offset), int(nth), tuple(map(str, digests)))
    except (TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error
    return entries
