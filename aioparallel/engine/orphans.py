"""Lanes that outlive their source: something of them still runs, or is being produced, when the source is dropped.

Their keys stay closed for newer sources of that name until that ends: this is what keeps I3 when a partition
comes back to the process that had it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from aioparallel.records import Record

__all__ = ["Orphans"]


class Orphans:
    """At most one lane for each key of a source: a newer one is not started before it ends."""

    def __init__(self) -> None:
        # By name of the source and key of the lane: the head of the newer lane that waits for it.
        self._waiting: dict[tuple[Hashable, Hashable], Record[Any, Any] | None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> Iterable[Record[Any, Any]]:
        """Heads of lanes that wait."""
        return [head for head in self._waiting.values() if head is not None and not head._source.stopped]

    def adopt(self, record: Record[Any, Any]) -> None:
        """Its source is dropped, and it has begun. Without a lane there is no order to keep."""
        if record._lane is not None:
            self._waiting[record._source.name, record._lane] = None

    def close(self, head: Record[Any, Any]) -> bool:
        """Whether this new lane must wait for an orphan; of several that wait, the newest is the one."""
        place = head._source.name, head._lane
        if place not in self._waiting:
            return False
        self._waiting[place] = head
        return True

    def end(self, record: Record[Any, Any]) -> Record[Any, Any] | None:
        """An adopted record has ended. Returns the head of the lane that has waited for it and may start now."""
        if record._lane is None:
            return None
        head = self._waiting.pop((record._source.name, record._lane))
        return None if head is None or head._source.stopped else head
