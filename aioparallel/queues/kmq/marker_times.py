"""When the markers of one partition were written, by the local clock. Pure; times in milliseconds since the epoch.

The timestamp of a marker comes from the clock of its writer or of the broker, and either may be wrong. Three facts do
not depend on these clocks. A marker that was read was written before now. A marker is not older than the markers before
it in the log. A marker that arrives after the partition was read to its end was written after that. These facts bound
each timestamp. If markers are read as they arrive, their times are right whatever the clocks say.
"""

from __future__ import annotations

__all__ = ["MarkerTimes"]


class MarkerTimes:
    """The times of the markers of one partition, in one assignment."""

    __slots__ = ("_all_read_at", "latest")

    def __init__(self) -> None:
        self._all_read_at = 0
        self.latest = 0
        """The time of the last marker that was read."""

    def written_at(self, timestamp: int, now: int) -> int:
        """Returns the time of the next marker. ``now``: from a clock that never goes back."""
        self.latest = min(max(timestamp, self.latest, self._all_read_at), now)
        return self.latest

    def all_read(self, at: int) -> None:
        """The log was read to the end that it had at this time."""
        self._all_read_at = max(self._all_read_at, at)
