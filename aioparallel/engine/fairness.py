"""Whose turn it is: sources with something ready, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sized
from typing import Any, Protocol

__all__ = ["FairRing"]


class InTurn(Protocol):
    """A source, or whatever else takes turns with sources."""

    in_ring: bool

    @property
    def ready(self) -> Sized:
        """What may start."""

    @property
    def holds(self) -> Sized:
        """What it has of the slots: records in flight, or calls of several."""


class FairRing:
    """Sources take turns; one that holds more than its share of the ``slots`` lets the others go first. So a topic
    whose handlers hang takes no more than its part from those that are well.

    ``line``: those sources that have something ready, and no others; for looking at it.
    """

    __slots__ = ("_slots", "line")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.line: deque[Any] = deque()

    def begin(self) -> Any:
        """The source whose turn it is, which stays in front until :meth:`end`. To be called while there is one."""
        line = self.line
        first = line[0]
        count = len(line)
        if len(first.holds) * count <= self._slots:
            return first
        for _ in range(count):  # where none is within its share, the first is first again
            line.rotate(-1)
            if len(line[0].holds) * count <= self._slots:
                break
        return line[0]

    def end(self, source: InTurn) -> None:
        """Its turn is over: to the end of the line, or out of it."""
        if not source.ready:
            self.leave(source)
        elif source.in_ring:
            self.line.rotate(-1)

    def join(self, source: InTurn) -> None:
        """It has something ready."""
        if not source.in_ring:
            source.in_ring = True
            self.line.append(source)

    def leave(self, source: InTurn) -> None:
        """It has nothing ready any more."""
        if source.in_ring:
            source.in_ring = False
            self.line.remove(source)
