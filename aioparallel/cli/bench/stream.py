"""Which record has which key and partition in the topics of the latency measurement.

Keys are drawn at random from a seed, so every process that knows the seed knows the whole topic. A record's partition
follows from its key. Its value begins with the record's number and the time of its sending.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["STAMP", "STAMP_BYTES", "Stream"]

STAMP: Final = np.dtype([("sent", "<i8"), ("serial", "<u4")])
"""How a value begins: when it was sent (nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share), and
the how-manieth record of its topic it is, from 0."""
STAMP_BYTES: Final = STAMP.itemsize


@dataclass(frozen=True)
class Stream:
    """The records of one topic: how many, over how many partitions and keys."""

    records: int
    partitions: int
    keys: int
    seed: int

    @cached_property
    def key_numbers(self) -> NDArray[np.int64]:
        """The number of each record's key."""
        return np.random.default_rng(self.seed).integers(0, self.keys, self.records)

    def key(self, number: int) -> bytes:
        """The key of that number."""
        return b"key-%d" % number

    @cached_property
    def partition_of_key(self) -> list[int]:
        """The partition of each key, by its number."""
        return [zlib.crc32(self.key(number)) % self.partitions for number in range(self.keys)]

    @cached_property
    def keys_by_offset(self) -> list[NDArray[np.uint32]]:
        """For each partition the key's number at each offset."""
        partitions = np.array(self.partition_of_key)[self.key_numbers]
        return [self.key_numbers[partitions == partition].astype(np.uint32) for partition in range(self.partitions)]
