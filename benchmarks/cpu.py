"""CPU time of this process."""

from __future__ import annotations

import resource

__all__ = ["cpu_seconds"]


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
