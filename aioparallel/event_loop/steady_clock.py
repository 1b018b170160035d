"""A wall clock that is never set: the time at the start of the process, plus the time since on the monotonic clock.

The system's clock may be set while a program runs. Times that one process stores and compares later (leases, due times,
ages of snapshots) come from this clock. Times that other processes wrote come from other clocks: the reader limits them
by its own time. Times for people, and those that others check (the end of a certificate), come from the system's clock.
"""

from __future__ import annotations

import time
from typing import Final

__all__ = ["SteadyClock", "steady_time"]


class SteadyClock:
    """A function that returns seconds since the epoch, which never decrease."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Return the time."""
        return self._began + time.monotonic()


steady_time: Final = SteadyClock()
"""The clock of this process."""
