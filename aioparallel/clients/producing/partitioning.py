"""Which partition a key belongs to, as Kafka's own producers decide it."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

__all__ = ["KeyHashes", "murmur2", "partition_of_key"]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_SLOTS: Final = 128 * 1024


def partition_of_key(key: bytes, partitions: Sequence[int]) -> int:
    """The one of ``partitions`` (all of the topic, ascending, not empty) that this key belongs to."""
    return partitions[(murmur2(key) & _POSITIVE) % len(partitions)]


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


class KeyHashes:
    """Hashes of the keys met last, in 1.5 MB whatever their number and size. For one thread.

    Keys come again and again, and hashing one takes longer than everything else that is done with an output. A slot
    holds the hash of one key, and to know that key again Python's own hash of it, all 64 bits: no key is kept.
    (Two keys share these by chance once in 10^19 pairs, and Python's hash is keyed, so they cannot be looked for.)
    """

    __slots__ = ("hashes", "keys")

    MASK: Final = _SLOTS - 1
    """``hash(key) & MASK`` is a key's slot."""

    def __init__(self) -> None:
        self.keys = array("q", bytes(8 * _SLOTS))
        """Python's hash of the key that has the slot."""
        self.keys[0] = 1  # no key of this slot; a hash of 0 would look known
        self.hashes = array("i", bytes(4 * _SLOTS))
        """Its murmur2, without the sign."""

    def learn(self, key: bytes) -> int:
        """The hash of a key that does not have its slot; now it has."""
        found = murmur2(key) & _POSITIVE
        python_hash = hash(key)
        slot = python_hash & self.MASK
        self.hashes[slot] = found
        self.keys[slot] = python_hash
        return found
