"""Event logs of handlers as arrays: a log of half a million records is read in milliseconds."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from aioparallel.records.errors import AioparallelError
from aioparallel.testing.event_log import (
    KIND_SHIFT,
    OFFSET_MASK,
    PARTITION_MASK,
    PARTITION_SHIFT,
    Event,
    EventKind,
)

__all__ = ["Evidence", "EvidenceWrong", "Integers", "written"]

Integers = npt.NDArray[np.int64]

WORD: Final = np.dtype("<u8")


class EvidenceWrong(AioparallelError, ValueError):
    """A file is not an event log."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The events of one process in order: kinds (values of EventKind), partitions, offsets, and times in nanoseconds
    (0 if the log has no times)."""

    kinds: Integers
    partitions: Integers
    offsets: Integers
    times: Integers

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a log; empty if the file does not exist. Raises EvidenceWrong."""
        if not path.is_file():
            return cls.of([])
        if path.stat().st_size % WORD.itemsize:
            raise EvidenceWrong(f"{path} is no event log: its {path.stat().st_size} bytes are no whole words")
        words = np.fromfile(path, WORD)
        width = int(words[0]) if len(words) else 1
        if width not in (1, 2):
            raise EvidenceWrong(f"{path} is no event log: it begins with {width}, not with 1 or 2 words of an event")
        firsts, times = words[1::width], words[2::2] if width == 2 else np.zeros(len(words[1:]), WORD)
        count = int(np.argmax(firsts == 0)) if not firsts.all() else len(firsts)
        if count > len(times):
            raise EvidenceWrong(f"{path} is no event log: it ends within an event")
        firsts, times = firsts[:count], times[:count]
        kinds = firsts >> np.uint64(KIND_SHIFT)
        if not kinds.all():
            raise EvidenceWrong(f"{path} is no event log: event {int(np.argmin(kinds))} is of no kind")
        partitions = firsts >> np.uint64(PARTITION_SHIFT) & np.uint64(PARTITION_MASK)
        columns = kinds, partitions, firsts & np.uint64(OFFSET_MASK), times
        return cls(*(column.astype(np.int64) for column in columns))

    @classmethod
    def of(cls, events: list[Event]) -> Self:
        """From a list of events."""
        return cls(*np.array(events, np.int64).reshape(-1, 4).T)

    @property
    def began(self) -> npt.NDArray[np.bool_]:
        """Mask of the events that are beginnings."""
        return np.equal(self.kinds, EventKind.BEGAN)

    @property
    def peak_in_flight(self) -> int:
        """Most handlers that ran at once."""
        return int(np.cumsum(np.where(self.began, 1, -1)).max(initial=0))

    def events(self) -> list[Event]:
        """The events as a list, for the public checkers."""
        columns = (column.tolist() for column in (self.kinds, self.partitions, self.offsets, self.times))
        return [Event(EventKind(kind), *rest) for kind, *rest in zip(*columns, strict=True)]


def written(log: Path) -> int:
    """Number of events in a log without times so far. Fast, so that it hardly disturbs the measured processes."""
    if not log.is_file():
        return 0
    with log.open("rb", buffering=0) as file:

        def empty(at: int) -> bool:
            file.seek(at * WORD.itemsize)
            return not any(file.read(WORD.itemsize))

        words = range(log.stat().st_size // WORD.itemsize)
        return max(0, bisect_left(words, True, lo=min(1, len(words)), key=empty) - 1)
