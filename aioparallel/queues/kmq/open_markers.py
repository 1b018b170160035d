"""Which records of one partition somebody has, and until when. Pure; times are milliseconds since the epoch, as the
markers have them."""

from __future__ import annotations

import heapq
from collections.abc import Collection

__all__ = ["OpenMarkers"]

# Entries of records that have ended, or have a newer lease, that the heap may hold beside as many as are open.
_STALE = 1_000


class OpenMarkers:
    """Start markers without an end marker, of one partition of the queue.

    Of several start markers of a record the last one counts: a lease that was extended, or a record that was delivered
    to two. (KMQ's own tracker lets each of them fire.)
    """

    __slots__ = ("_heap", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # by the record's offset, that of its marker
        self._heap: list[tuple[int, int, int]] = []  # due, offset, marker: stale where the last two are not open

    def __len__(self) -> int:
        return len(self._open)

    def marker_of(self, offset: int) -> int | None:
        """Where the start marker stands that counts for this record; None: it is not open."""
        return self._open.get(offset)

    def started(self, marker: int, offset: int, due: int) -> int | None:
        """The marker at ``marker`` says that somebody has the record at ``offset`` until ``due``. Returns the marker
        that it takes the place of."""
        before = self._open.get(offset)
        self._open[offset] = marker
        heapq.heappush(self._heap, (due, offset, marker))
        if len(self._heap) > 2 * len(self._open) + _STALE:
            self._heap = [one for one in self._heap if self._open.get(one[1]) == one[2]]
            heapq.heapify(self._heap)
        return before

    def ended(self, offset: int) -> int | None:
        """The record has ended. Returns the marker that is not open any more; None: there was none."""
        return self._open.pop(offset, None)

    def due(self, now: int, at_most: int) -> list[int]:
        """Take out the offsets of records whose time is over, those first that have waited for longest. They stay open
        until their end is read; each is told once, or again after :meth:`again`."""
        found: list[int] = []
        heap = self._heap
        while heap and heap[0][0] <= now and len(found) < at_most:
            _, offset, marker = heapq.heappop(heap)
            if self._open.get(offset) == marker:
                found.append(offset)
        return found

    def again(self, offsets: Collection[int], due: int) -> None:
        """Tell of these once more, at ``due``."""
        for offset in offsets:
            marker = self._open.get(offset)
            if marker is not None:
                heapq.heappush(self._heap, (due, offset, marker))
