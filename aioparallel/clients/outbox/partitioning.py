"""Which partition a key belongs to, as Kafka's own producers decide it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

__all__ = ["murmur2", "partition_of_key"]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def partition_of_key(key: bytes, partitions: Sequence[int]) -> int:
    """The one of ``partitions`` (all of the topic, ascending, not empty) that this key belongs to."""
    return partitions[(murmur2(key) & 0x7FFFFFFF) % len(partitions)]


def murmur2(data: bytes) -> int:
    """MurmurHash2 (Austin Appleby) with the seed of Kafka's Java client, unsigned."""
    length = len(data)
    words = length >> 2
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{words}I", data):
        k = k * _M & _MASK  # noqa: PLW2901 - the name of the algorithm's description
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if rest := data[words << 2 :]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
