"""Whose turn it is: sources with something ready, one after the other."""

from __future__ import annotations

from collections import deque

from aioparallel.engine.sources import Source

__all__ = ["FairRing"]


class FairRing:
    """Sources take turns; one that holds more than its share of the ``slots`` lets the others go first. So a topic
    whose handlers hang takes no more than its part from those that are well.

    It holds those sources that have something ready, and no others.
    """

    __slots__ = ("_ring", "_slots")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._ring: deque[Source] = deque()

    def __bool__(self) -> bool:
        return bool(self._ring)

    def begin(self) -> Source | None:
        """The source whose turn it is, which stays in front until :meth:`end`; None: nobody has anything ready."""
        ring = self._ring
        if not ring:
            return None
        count = len(ring)
        if len(ring[0].in_flight) * count > self._slots:
            for _ in range(count - 1):
                ring.rotate(-1)
                if len(ring[0].in_flight) * count <= self._slots:
                    break
        return ring[0]

    def end(self, source: Source) -> None:
        """Its turn is over: to the end of the line, or out of it."""
        if not source.ready:
            self.leave(source)
        elif source.in_ring:
            self._ring.rotate(-1)

    def join(self, source: Source) -> None:
        """It has something ready."""
        if not source.in_ring:
            source.in_ring = True
            self._ring.append(source)

    def leave(self, source: Source) -> None:
        """It has nothing ready any more."""
        if source.in_ring:
            source.in_ring = False
            self._ring.remove(source)
