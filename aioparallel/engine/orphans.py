"""Lanes that outlive their session: something of them still runs, or is being produced, when the session is dropped.

Their keys stay closed for newer sessions of the partition until that ends: this is what keeps I3 when a partition
comes back to the process that had it.
"""

from __future__ import annotations

from collections.abc import Hashable

from aioparallel.engine.lanes import Lane
from aioparallel.records import TopicPartition

__all__ = ["Orphans"]


class Orphans:
    """At most one lane for each key of a partition: a newer one is not started before it ends."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[TopicPartition, Hashable], Lane] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def adopt(self, lane: Lane) -> None:
        """Its session is dropped, its head has begun. A lane without a key has no order to keep."""
        if lane.key is not None:
            self._lanes[lane.session.partition, lane.key] = lane

    def close(self, lane: Lane) -> bool:
        """Whether this new lane must wait for an orphan; of several that wait, the newest is the one."""
        orphan = self._lanes.get((lane.session.partition, lane.key))
        if orphan is None:
            return False
        orphan.successor = lane
        return True

    def end(self, lane: Lane) -> Lane | None:
        """The orphan's head has ended. Returns the lane that has waited for it and may start now."""
        if lane.key is None:
            return None
        del self._lanes[lane.session.partition, lane.key]
        successor, lane.successor = lane.successor, None
        return None if successor is None or successor.session.stopped else successor
