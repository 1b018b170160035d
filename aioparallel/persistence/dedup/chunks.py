"""Chunks of a memory as records of a compacted topic. Pure.

The key is JSON: ``["group", "topic", partition, "name", number]``. The value is JSON in one zstd frame (RFC 8878), with
the identities grouped by the partition of their source::

    {"v": 1,
     "records": [["flights", 0, [[1024, 0, ""], [1027, 0, ""]]]],
     "marks": [["flights", 0, [["N14228", 1024, 0]]]]}

A record is the offset of its source, its number among the records made of that source, and its tag. A mark is a key
(its bytes as Latin-1 characters) and the offset and number up to which it was seen. Entries with digests are in a field
of their own, which older readers ignore: a record with its digest, a mark with the digests seen at its offset::

     "digested": {"records": [["flights", 0, [[1024, 0, "", "9f86d081884c7d65"]]]],
                  "marks": [["flights", 0, [["N14228", 1024, 0, "9f86d081884c7d65"]]]]}

A record without a value deletes the chunk.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import zstandard

from aioparallel.persistence.compacted_topic import read_key
from aioparallel.persistence.dedup.identities import ONCE, Identity, Mark, Position, RecordIdentity
from aioparallel.records.record import TopicPartition

__all__ = ["ChunkKey", "decode_chunk", "decode_key", "encode_chunk", "encode_key"]

_VERSION: Final = 1
_LARGEST: Final = 64 * 1024 * 1024
"""Bytes of an unpacked chunk at most: far more than is ever written."""


class ChunkKey(NamedTuple):
    """The key of one chunk."""

    group_id: str
    partition: TopicPartition
    name: str
    number: int
    """Chunks with higher numbers were seen later."""


def encode_key(key: ChunkKey) -> bytes:
    """Returns the key of a chunk."""
    return json.dumps([key.group_id, *key.partition, key.name, key.number]).encode()


def decode_key(data: bytes | None) -> ChunkKey | None:
    """Returns None for any other key."""
    match read_key(data):
        case [str(group_id), str(topic), int(partition), str(name), int(number)]:
            return ChunkKey(group_id, TopicPartition(topic, partition), name, number)
    return None


def encode_chunk(entries: Mapping[Identity, Position]) -> bytes:
    """Returns the value of a chunk."""
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
    fields: dict[str, object] = {"v": _VERSION, **plain.fields()}
    if digested.records or digested.marks:
        fields["digested"] = digested.fields()
    return zstandard.ZstdCompressor().compress(json.dumps(fields, separators=(",", ":")).encode())


class _Parts:
    """Entries by the partition of their source."""

    def __init__(self) -> None:
        self.records: defaultdict[tuple[str, int], list[list[object]]] = defaultdict(list)
        self.marks: defaultdict[tuple[str, int], list[list[object]]] = defaultdict(list)

    def fields(self) -> dict[str, object]:
        """Returns the JSON fields."""
        parts = {"records": self.records, "marks": self.marks}
        return {name: [[*source, found] for source, found in part.items()] for name, part in parts.items()}


def decode_chunk(data: bytes) -> dict[Identity, Position]:
    """Raises ValueError for anything that :func:`encode_chunk` does not return."""
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _LARGEST:
            raise ValueError("not written by encode_chunk(): its size is missing or too large")
        fields: Any = json.loads(zstandard.ZstdDecompressor().decompress(data))
    except (zstandard.ZstdError, RecursionError) as error:
        raise ValueError(str(error)) from error
    try:
        if fields["v"] != _VERSION:
            raise ValueError(f"version {fields['v']!r}, and not {_VERSION}")
        entries: dict[Identity, Position] = {}
        for part in (fields, fields.get("digested", {"records": [], "marks": []})):
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
