"""Chunks of a memory as records of a compacted topic. Pure.

The key says whose chunk it is, as JSON: ``["group", "topic", partition, "name", number]``. The value is JSON in one
zstd frame (RFC 8878), identities gathered by the partition of their source::

    {"v": 1,
     "records": [["flights", 0, [[1024, 0, ""], [1027, 0, ""]]]],
     "marks": [["flights", 0, [["N14228", 1024, 0]]]]}

A record is its source's offset, its number among those made of it, and its tag; a mark is a key, its bytes as the
characters of Latin-1, and the offset and number up to which it was seen. No value at all: there is no such chunk any
more.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import zstandard

from aioparallel.deduplication.identities import ONCE, Identity, Mark, Position, RecordIdentity
from aioparallel.records import TopicPartition

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
    records: defaultdict[tuple[str, int], list[list[object]]] = defaultdict(list)
    marks: defaultdict[tuple[str, int], list[list[object]]] = defaultdict(list)
    for identity, position in entries.items():
        source = identity.topic, identity.partition
        if isinstance(identity, Mark):
            marks[source].append([identity.key.decode("latin-1"), *position])
        else:
            records[source].append([identity.offset, identity.nth, identity.tag])
    told = {
        "v": _VERSION,
        "records": [[*source, found] for source, found in records.items()],
        "marks": [[*source, found] for source, found in marks.items()],
    }
    return zstandard.ZstdCompressor().compress(json.dumps(told, separators=(",", ":")).encode())


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
        for topic, partition, found in told["records"]:
            name = sys.intern(topic)
            for offset, nth, tag in found:
                entries[RecordIdentity(name, int(partition), int(offset), int(nth), str(tag))] = ONCE
        for topic, partition, found in told["marks"]:
            name = sys.intern(topic)
            for key, offset, nth in found:
                entries[Mark(name, int(partition), key.encode("latin-1"))] = int(offset), int(nth)
    except (TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error
    return entries
