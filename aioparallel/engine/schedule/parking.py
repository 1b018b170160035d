"""Bounds the number of parked records: a source with too many records that wait for a retry starts nothing new.

A service that is down makes every record of some topic fail. Without a bound, memory fills with parked records. With
one bound for all, topics without failures stop as well. So half of the bound is reserved for the sources in equal
parts, and any source may use the rest. A single source has the whole bound. One of many has half of the bound and its
own part. A source that may park no more records is *full* and starts retries only.

Nothing is tried again of a paused source, so its parked records stay. They count half, so at least half of the bound is
left for the others. However many sources are paused one after the other, at most twice the bound is parked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from aioparallel.engine.sources import Source
from aioparallel.records.record import Record

__all__ = ["Parking"]


class Parking:
    """Counts parked records, and sets :attr:`Source.full`. ``bound``: records. Records in flight when it is reached may
    be parked beyond it.

    ``on_change(source)`` is called when :attr:`Source.full` has changed.
    """

    def __init__(self, bound: int, sources: Collection[Source], on_change: Callable[[Source], None]) -> None:
        self._bound = bound
        self._sources = sources
        self._on_change = on_change
        self._full: dict[Source, None] = {}  # in the order in which they became full
        self._reserve = 0  # records reserved for each source
        self._unused = 0  # unused parts of all reserves
        self._stale = True  # sources were added or removed; recomputed only when needed, because it walks all of them
        self._discounts: dict[Source, int] = {}  # records of paused sources that do not count
        self._discount = 0
        self.count = 0

    def set_bound(self, bound: int) -> None:
        """Change the bound. If more are parked, sources are full until fewer are."""
        self._bound = bound
        self._share_out()
        self._look(tuple(self._sources))

    def follow_pauses(self, sources: Iterable[Source]) -> None:
        """Handle a change of :attr:`Source.paused` of these sources, in one step: it walks all sources."""
        for source in sources:
            self._set_discount(source, len(source.parked) // 2 if source.paused else 0)
        self._share_out()
        self._look(tuple(self._sources))

    def _set_discount(self, source: Source, discount: int) -> None:
        self._discount += discount - self._discounts.pop(source, 0)
        if discount:
            self._discounts[source] = discount

    def join(self, source: Source) -> None:
        """Handle a new source, which is in ``sources`` already."""
        self._stale = True
        if self.count - self._discount >= self._bound // 2:  # below this no source can be full
            self._share_out()
            self._look((source,))

    def enter(self, record: Record[Any, Any]) -> None:
        """Count a parked record."""
        source = record._source
        source.parked.add(record)
        self.count += 1
        if self._stale:
            self._share_out()
        elif len(source.parked) <= self._reserve:
            self._unused -= 1
        if self.count - self._discount + self._unused >= self._bound:
            self._look(self._sources)

    def leave(self, record: Record[Any, Any]) -> None:
        """Count a record that is no longer parked."""
        source = record._source
        source.parked.remove(record)
        self.count -= 1
        if source in self._discounts:  # skipped while its source is paused
            self._set_discount(source, min(self._discounts[source], len(source.parked) // 2))
        if self._stale:
            self._share_out()
        elif len(source.parked) < self._reserve:
            self._unused += 1
        if self._full:
            self._look(tuple(self._full))

    def forget(self, source: Source) -> None:
        """Handle a dropped source and its parked records. It is not in ``sources`` any more."""
        self._full.pop(source, None)
        source.full = False
        self._set_discount(source, 0)
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
        count = self.count - self._discount
        for source in sources:
            # A full source stays full until it falls an eighth below the bound, or it would change with each record.
            eighths = 7 if source.full else 8
            at = self._bound * eighths
            full = count * 8 >= at or (
                (count + self._unused) * 8 >= at and len(source.parked) * 8 >= self._reserve * eighths
            )
            if full != source.full:
                source.full = full
                if full:
                    self._full[source] = None
                else:
                    del self._full[source]
                self._on_change(source)
