"""What the handler and the service saw, written so that it outlives the process that saw it.

An event file is a row of 32-byte events, each written by one ``write`` to a file opened for appending: what
was written is in the kernel's hands and survives SIGKILL. 32 divides the page size, so no event crosses a
page, and none is ever torn. Times are CLOCK_MONOTONIC nanoseconds, one clock for all processes of a machine.
"""

from __future__ import annotations

import enum
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["Event", "EventLog", "Kind", "Lines", "Place", "Tail", "read_events"]

LAYOUT = struct.Struct("<BxxxIIIQQ")


class Kind(enum.IntEnum):
    """What happened to one record."""

    BEGAN = 1
    """The handler was called; or the service got the request."""
    COMPLETED = 2
    """The handler has written the enriched record; or the service has given its answer."""
    FAILED = 3
    """The handler raised, or was cancelled."""


class Place(NamedTuple):
    """Where a record stands in the demo's topic."""

    partition: int
    offset: int


class Event(NamedTuple):
    """One thing seen. ``run`` counts the consumer's processes from 0; ``at`` is in nanoseconds."""

    kind: int
    run: int
    partition: int
    attempt: int
    offset: int
    at: int

    @property
    def place(self) -> Place:
        """The record it happened to."""
        return Place(self.partition, self.offset)


class Appended:
    """A file that is only appended to; a context manager that closes it."""

    def __init__(self, path: Path) -> None:
        self._file = open_to_append(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


class EventLog(Appended):
    """Appends events to a file, one system call each."""

    def write(self, kind: Kind, run: int, partition: int, offset: int, attempt: int = 1) -> None:
        """One event, now."""
        os.write(self._file, LAYOUT.pack(kind, run, partition, attempt, offset, time.monotonic_ns()))


class Lines(Appended):
    """Appends lines to a text file, one system call each.

    A line may cross a page, and a SIGKILL may then leave its first part: opening cuts off what follows
    the last end of line.
    """

    def __init__(self, path: Path) -> None:
        cut_torn_line(path)
        super().__init__(path)

    def write(self, line: bytes) -> None:
        """One line, given without its end."""
        os.write(self._file, line + b"\n")


class Tail:
    """Reads an event file while another process writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> Iterator[Event]:
        """The events since the last call; none while the file does not exist."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = len(data) - len(data) % LAYOUT.size
        self._read += whole
        yield from map(Event._make, LAYOUT.iter_unpack(data[:whole]))


def read_events(path: Path) -> list[Event]:
    """All events of a file, oldest first."""
    return list(Tail(path).new())


def open_to_append(path: Path) -> int:
    """A file descriptor for appending; the file is made when missing."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last end of line, if anything does."""
    if not path.exists():
        return
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
