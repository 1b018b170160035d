"""The time of this process: the wall clock at its start, and what has passed since by the monotonic clock.

Somebody may put a wall clock forward or back while a program runs. What one process writes down and compares again
later (leases, due times, ages of snapshots) goes by this clock, which nobody can put. Times that other processes wrote
come from other clocks: a reader bounds them by its own time. What people read, and what the outside world judges (the
end of a certificate), goes by the wall clock.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["SteadyClock", "steady_time"]


class SteadyClock:
    """Called, it gives seconds since the epoch, which never go back."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return self._began + time.monotonic()


steady_time: Final = SteadyClock()
"""The one of this process: all of its parts have the same time."""
