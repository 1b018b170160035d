"""What handlers did, as rows of numbers.

An event is one signed 64-bit number: partition and offset of a record whose handler began, or its complement (``~``)
when that handler ended. Handlers that return at once only say that they began.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["EventFile", "Events", "begun", "by_partition", "ended", "place"]

_OFFSET_BITS: Final = 40
_NOTHING: Final = -(1 << 63)
"""In a file of events: not written yet."""

Events = NDArray[np.int64]


def place(partition: int, offset: int) -> int:
    """A record as an event of its beginning."""
    return partition << _OFFSET_BITS | offset


def by_partition(events: Events, partitions: int) -> list[Events]:
    """What happened in each partition, in its order: offsets, and complements of them for ends."""
    places = np.where(events < 0, ~events, events)
    offsets = places & (1 << _OFFSET_BITS) - 1
    steps = np.where(events < 0, ~offsets, offsets)
    return [steps[places >> _OFFSET_BITS == partition] for partition in range(partitions)]


class EventFile:
    """A file of events that stays as it is when the process that writes it is killed, and can be read meanwhile.

    Writing is a store into shared memory: ``file.view[at] = event``, for 0, 1, 2 and so on.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.view = memoryview(self._memory).cast("q")

    @staticmethod
    def make(path: Path, events: int) -> None:
        """Make a file for at most so many events."""
        np.full(events, _NOTHING, dtype=np.int64).tofile(path)

    @property
    def count(self) -> int:
        """How many are written so far; quick."""
        return bisect_left(self.view, True, key=_NOTHING.__eq__)

    def read(self) -> Events:
        """What is written so far."""
        return np.array(self.view[: self.count])


def begun(events: Events) -> Events:
    """The places whose handlers began."""
    return events[events >= 0]


def ended(events: Events) -> Events:
    """The places whose handlers ended, in the order of their ends."""
    return ~events[events < 0]
