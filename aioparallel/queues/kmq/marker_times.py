"""When the markers of one partition were written, by one's own clock. Pure; times are milliseconds since the epoch.

The timestamp of a marker comes from its writer's clock, or from the broker's, and either may be wrong. Three things are
known without these clocks. What was read has been written: not later than now. A log is in the order in which it was
written: no marker is older than one that stands before it. And once a partition was read to its end, what comes later
was written later. So each timestamp is bounded by these, and where markers are read as they come, their times are right
whatever the clocks say.
"""

from __future__ import annotations

__all__ = ["MarkerTimes"]


class MarkerTimes:
    """Of one partition, in one session."""

    __slots__ = ("_all_read_at", "latest")

    def __init__(self) -> None:
        self._all_read_at = 0
        self.latest = 0
        """When the last marker that was read was written."""

    def written_at(self, timestamp: int, now: int) -> int:
        """When the next one was. ``now``: by a clock that never goes back."""
        self.latest = min(max(timestamp, self.latest, self._all_read_at), now)
        return self.latest

    def all_read(self, at: int) -> None:
        """All had been read that stood in the log then."""
        self._all_read_at = max(self._all_read_at, at)
