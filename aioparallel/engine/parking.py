"""The bound of parked records: which partitions start nothing new because too many of theirs wait for a retry.

A service that is down makes every record of some topic fail. Without a bound, memory fills with parked records; with
one bound for all, the topics that are well stop with it. So half of the bound is reserved for the sources in equal
parts, and whatever is not reserved for others anybody may use: one source alone has the whole bound, one of many has
half of it and its own part. A source that may park no more is *full* and starts retries only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from aioparallel.engine.sources import Source
from aioparallel.records import Record

__all__ = ["Parking"]


class Parking:
    """Counts parked records, and says which sources are full. ``bound``: records; more may be in flight.

    ``on_change(source)`` hears when :attr:`Source.full` has changed.
    """

    def __init__(self, bound: int, sources: Collection[Source], on_change: Callable[[Source], None]) -> None:
        self._bound = bound
        self._sources = sources
        self._on_change = on_change
        self._full: dict[Source, None] = {}  # in the order in which they became full
        self._reserve = 0  # for each source
        self._unused = 0  # of the reserves of all
        self._stale = True  # sources have come or gone since: to share out anew takes time in proportion to all
        self.count = 0

    def join(self, source: Source) -> None:
        """The source is new, and among the sources already."""
        self._stale = True
        if self.count >= self._bound // 2:  # with less there is room for certain
            self._share_out()
            self._look((source,))

    def enter(self, record: Record[Any, Any]) -> None:
        """This record is parked."""
        source = record._source
        source.parked.add(record)
        self.count += 1
        if self._stale:
            self._share_out()
        elif len(source.parked) <= self._reserve:
            self._unused -= 1
        if self.count + self._unused >= self._bound:
            self._look(self._sources)

    def leave(self, record: Record[Any, Any]) -> None:
        """This record is parked no more."""
        source = record._source
        source.parked.remove(record)
        self.count -= 1
        if self._stale:
            self._share_out()
        elif len(source.parked) < self._reserve:
            self._unused += 1
        if self._full:
            self._look(tuple(self._full))

    def forget(self, source: Source) -> None:
        """The source is dropped, with all that it has parked; it is not among the sources any more."""
        self._full.pop(source, None)
        source.full = False
        self.count -= len(source.parked)
        source.parked = set()
        self._stale = True
        if self._full:
            self._share_out()
            self._look(tuple(self._full))

    def _share_out(self) -> None:
        self._stale = False
        self._reserve = self._bound // 2 // max(1, len(self._sources))
        self._unused = sum(max(0, self._reserve - len(source.parked)) for source in self._sources)

    def _look(self, sources: Collection[Source]) -> None:
        for source in sources:
            # A full one must fall an eighth below before it goes on: not to and fro with each record.
            eighths = 7 if source.full else 8
            at = self._bound * eighths
            full = self.count * 8 >= at or (
                (self.count + self._unused) * 8 >= at and len(source.parked) * 8 >= self._reserve * eighths
            )
            if full != source.full:
                source.full = full
                if full:
                    self._full[source] = None
                else:
                    del self._full[source]
                self._on_change(source)
