"""The partition of a key, as Kafka's own producers choose it."""

from __future__ import annotations

import struct
from array import array
from typing import Final

__all__ = ["KeyHashes", "murmur2"]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_SLOTS: Final = 128 * 1024


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
    """A cache of key hashes: 1.5 MB, whatever the number and size of the keys. For one thread.

    Keys recur, and hashing a key takes longer than all other work for an output. A slot holds the hash of one key. To
    recognise the key, the slot holds its 64-bit Python hash instead of the key itself. Two keys share that hash by
    chance once in 10^19 pairs, and Python's hash is keyed, so collisions cannot be constructed.
    """

    __slots__ = ("hashes", "keys")

    MASK: Final = _SLOTS - 1
    """``hash(key) & MASK`` is the slot of a key."""

    def __init__(self) -> None:
        self.keys = array("q", bytes(8 * _SLOTS))
        """Python's hash of the key in each slot."""
        self.keys[0] = 1  # does not belong to slot 0; a hash of 0 would look known
        self.hashes = array("i", bytes(4 * _SLOTS))
        """murmur2 of the key in each slot, without the sign."""

    def learn(self, key: bytes) -> int:
        """Compute the hash of a key and store it in the key's slot."""
        found = murmur2(key) & _POSITIVE
        python_hash = hash(key)
        slot = python_hash & self.MASK
        self.hashes[slot] = found
        self.keys[slot] = python_hash
        return found
