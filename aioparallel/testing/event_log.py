"""Records what handlers do, in a file that survives the process that writes it.

Each process writes its own file, through shared memory. So the file is complete even after a SIGKILL, and can be read
while it is written. Logging the start and the end of a handler costs a third of a microsecond. A handler for which that
is too much stores words itself, see :attr:`EventLog.words`.

The file is a sequence of 64-bit words, little-endian. The first word is the number of words per event: 1, or 2 with
times. The first word of an event is ``kind << 62 | partition << 44 | offset``. The second is the time (CLOCK_MONOTONIC
in nanoseconds, which is one clock for all processes of a machine), and is written before the first. A first word of 0
is the end.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from aioparallel.records.record import Record
from aioparallel.testing.checkers import DeliveryChecker, OrderChecker

__all__ = ["Event", "EventKind", "EventLog", "EventTail", "read_events", "replay"]

_WORD: Final = 8
KIND_SHIFT: Final = 62
PARTITION_SHIFT: Final = 44
PARTITION_MASK: Final = (1 << KIND_SHIFT - PARTITION_SHIFT) - 1
OFFSET_MASK: Final = (1 << PARTITION_SHIFT) - 1
_GROWTH: Final = 1 << 20
"""Words by which a full file grows. Unwritten words take no disk space."""


class EventKind(enum.IntEnum):
    """What happened to a record."""

    BEGAN = 1
    """The handler was called."""
    ENDED = 2
    """The handler returned."""
    FAILED = 3
    """The handler raised, or was cancelled."""


class Event(NamedTuple):
    """An event of a record."""

    kind: EventKind
    partition: int
    offset: int
    at: int = 0
    """CLOCK_MONOTONIC in nanoseconds; 0 if the log has no times."""


class EventLog:
    """Writes the events of one process to a new file, from one thread. A context manager that closes it.

    ``times``: whether events have times. ``room``: events that fit before the file grows, which takes 50 microseconds.
    Raises FileExistsError, because an existing log belongs to another process.
    """

    def __init__(self, path: Path, *, times: bool = False, room: int = _GROWTH) -> None:
        if sys.byteorder != "little":
            raise NotImplementedError("event logs are only written on little-endian machines")
        self._file = path.open("x+b")
        self._times = times
        self._grow((1 + times) * (room + 1))
        self.at = 1
        """Index of the next event in :attr:`words`."""

    def _grow(self, words: int) -> None:
        self._file.truncate(words * _WORD)
        self._memory = mmap.mmap(self._file.fileno(), words * _WORD)
        self.words = memoryview(self._memory).cast("Q")
        """The content of the file. Code that stores words directly (``words[at] = word_of(...)``) must track the index
        itself, and stay within ``room``."""
        self.words[0] = 1 + self._times

    @staticmethod
    def word_of(kind: int, partition: int, offset: int) -> int:
        """The first word of an event. Raises ValueError if the partition or offset is too large."""
        if partition > PARTITION_MASK or offset > OFFSET_MASK:
            raise ValueError(f"partition {partition}, offset {offset} does not fit into an event")
        return kind << KIND_SHIFT | partition << PARTITION_SHIFT | offset

    def began(self, partition: int, offset: int) -> None:
        """The record's handler was called. Raises ValueError beyond partition 262,143 or offset 2^44 - 1."""
        self._write(1, partition, offset)

    def ended(self, partition: int, offset: int) -> None:
        """The record's handler returned."""
        self._write(2, partition, offset)

    def failed(self, partition: int, offset: int) -> None:
        """The record's handler raised, or was cancelled."""
        self._write(3, partition, offset)

    @contextlib.contextmanager
    def handling(self, record: Record) -> Iterator[None]:
        """Wraps a handler's body in ``began``, and ``ended`` or ``failed``."""
        self.began(record.partition, record.offset)
        try:
            yield
        except BaseException:
            self.failed(record.partition, record.offset)
            raise
        self.ended(record.partition, record.offset)

    def _write(self, kind: int, partition: int, offset: int) -> None:
        at = self.at
        if at + self._times >= len(self.words):
            self._release()
            self._grow(at + _GROWTH)
        if self._times:
            self.words[at + 1] = time.monotonic_ns()
        self.words[at] = self.word_of(kind, partition, offset)
        self.at = at + 1 + self._times

    def close(self) -> None:
        """Stop writing. All events are in the file already."""
        if not self._file.closed:
            self._release()
            self._file.close()

    def _release(self) -> None:
        self.words.release()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventTail:
    """Reads an event log, while another process writes it or afterwards."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0  # words read

    def new(self) -> list[Event]:
        """The events since the last call, oldest first; none if there is no file yet. Raises ValueError if the file is
        not an event log."""
        return [self._event(words) for words in self.new_words()]

    def _event(self, words: tuple[int, ...]) -> Event:
        word = words[0]
        if not word >> KIND_SHIFT:
            raise ValueError(f"{self._path} is not an event log")
        partition = word >> PARTITION_SHIFT & PARTITION_MASK
        return Event(EventKind(word >> KIND_SHIFT), partition, word & OFFSET_MASK, words[1] if words[1:] else 0)

    def new_words(self) -> Iterator[tuple[int, ...]]:
        """The same as the words of each event, for logs with millions of events."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            width = int.from_bytes(file.read(_WORD), "little")
            if not width:
                return  # just created
            if width > 2:
                raise ValueError(f"{self._path} is not an event log")
            self._at = self._at or 1
            while True:
                file.seek(self._at * _WORD)
                data = file.read(_WORD * width * 65_536)
                words = memoryview(data[: len(data) // (_WORD * width) * _WORD * width]).cast("Q")
                for at in range(0, len(words), width):
                    if not words[at]:
                        return
                    self._at += width
                    yield tuple(words[at : at + width])
                if not len(words):
                    return


def read_events(path: Path) -> list[Event]:
    """All events of a log, oldest first. Raises ValueError if the file is not an event log."""
    return EventTail(path).new()


def replay(
    events: Iterable[Event],
    key_of: Callable[[int, int], bytes | None],
    order: OrderChecker | None = None,
    delivery: DeliveryChecker[tuple[int, int]] | None = None,
) -> None:
    """Feed the events of a log to the checkers. ``key_of(partition, offset)``: the key of that record. For
    ``delivery``, records whose handler ended count as handled, identified by partition and offset."""
    for kind, partition, offset, _ in events:
        if order is not None:
            if kind is EventKind.BEGAN:
                order.started(key_of(partition, offset), partition, offset)
            else:
                order.ended(key_of(partition, offset), partition, offset)
        if delivery is not None and kind is EventKind.ENDED:
            delivery.handled((partition, offset))
