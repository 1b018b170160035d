"""Which records of one partition are leased, and until when. Pure; times are milliseconds since the epoch, as in the
markers."""

from __future__ import annotations

import heapq

__all__ = ["OpenMarkers"]

_STALE = 1_000
"""Stale heap entries (the record has ended, or has a newer lease) that are kept in addition to one per open marker."""


class OpenMarkers:
    """The start markers of one partition that have no end marker.

    The last start marker of a record counts: its lease was extended, or it was delivered twice. (KMQ's own tracker
    redelivers for each of them.)
    """

    __slots__ = ("_heap", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # offset of the record: offset of its marker
        self._heap: list[tuple[int, int, int]] = []  # due, offset, marker; stale unless the last two are open

    def __len__(self) -> int:
        return len(self._open)

    def marker_of(self, offset: int) -> int | None:
        """Returns the offset of the record's last start marker; None: the record is not leased."""
        return self._open.get(offset)

    def started(self, marker: int, offset: int, due: int) -> int | None:
        """Add the start marker at ``marker``: the record at ``offset`` is leased until ``due``. Returns the marker that
        it replaces."""
        before = self._open.get(offset)
        self._open[offset] = marker
        heapq.heappush(self._heap, (due, offset, marker))
        if len(self._heap) > 2 * len(self._open) + _STALE:
            self._heap = [one for one in self._heap if self._open.get(one[1]) == one[2]]
            heapq.heapify(self._heap)
        return before

    def ended(self, offset: int) -> int | None:
        """Remove the marker of a record that has ended, and return it; None: there was none."""
        return self._open.pop(offset, None)

    def due(self, now: int, at_most: int) -> list[int]:
        """Returns the offsets of records whose leases have ended, the earliest first. Each is returned once, and again
        after :meth:`again`. They stay open until their end markers are read."""
        found: list[int] = []
        heap = self._heap
        while heap and heap[0][0] <= now and len(found) < at_most:
            _, offset, marker = heapq.heappop(heap)
            if self._open.get(offset) == marker:
                found.append(offset)
        return found

    def again(self, offset: int, due: int) -> None:
        """Return this record from :meth:`due` once more, at that time."""
        marker = self._open.get(offset)
        if marker is not None:
            heapq.heappush(self._heap, (due, offset, marker))
