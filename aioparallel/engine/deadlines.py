"""When handlers must have ended: one timeout for all, so deadlines come in the order of the starts. Plain, no clock.

A dict in insertion order is all it takes: 0.1 microseconds to enter and to leave. Entered are only handlers that
suspend: the others end before any timer could fire.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Deadlines"]

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Deadlines of whatever runs, ``seconds`` after each start (on any one clock)."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running: dict[T, float] = {}
        """What runs, with its deadline. The workers write it themselves, ``running[one] = now + seconds`` at a start
        and ``running.pop(one, None)`` at the end: two calls would cost as much again. Never entered twice."""

    @property
    def next_time(self) -> float | None:
        """The first deadline; None when nothing runs."""
        for deadline in self.running.values():
            return deadline
        return None

    def due(self, now: float) -> list[T]:
        """Take out all whose deadline has come, the earliest first."""
        taken = []
        for one, deadline in self.running.items():
            if deadline > now:
                break
            taken.append(one)
        for one in taken:
            del self.running[one]
        return taken
