"""Whose turn it is: sources with something ready, one after the other."""

from __future__ import annotations

from collections import deque

from aioparallel.engine.sources import Source

__all__ = ["FairRing"]


class FairRing:
    """Sources take turns; one that holds more than its share of the ``slots`` lets the others go first. So a topic
    whose handlers hang takes no more than its part from those that are well.

    ``line``: those sources that have something ready, and no others; for looking at it.
    """

    __slots__ = ("_slots", "line")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.line: deque[Source] = deque()

    def begin(self) -> Source:
        """The source whose turn it is, which stays in front until :meth:`end`. To be called while there is one."""
        line = self.line
        first = line[0]
        count = len(line)
        if len(first.in_flight) * count <= self._slots:
            return first
        for _ in range(count - 1):
            line.rotate(-1)
            if len(line[0].in_flight) * count <= self._slots:
                break
        return line[0]

    def end(self, source: Source) -> None:
        """Its turn is over: to the end of the line, or out of it."""
        if not source.ready:
            self.leave(source)
        elif source.in_ring:
            self.line.rotate(-1)

    def join(self, source: Source) -> None:
        """It has something ready."""
        if not source.in_ring:
            source.in_ring = True
            self.line.append(source)

    def leave(self, source: Source) -> None:
        """It has nothing ready any more."""
        if source.in_ring:
            source.in_ring = False
            self.line.remove(source)
