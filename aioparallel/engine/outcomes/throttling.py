"""How much of the last minute a place, such as an HTTP host, has refused requests or requested delays."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

__all__ = ["Throttled", "Throttling"]

_WINDOW: Final = 60.0
# A shorter time says little: many services refuse the first requests of a burst.
_LEAST: Final = 20.0
# Seconds between two samples, at least.
_APART: Final = 1.0


class Throttled(NamedTuple):
    """What a place has done within the last ``seconds``."""

    seconds: float
    answered: int
    """Requests that it has not refused. Several requests of one record count as one."""
    refused: int
    delayed: float
    """Seconds of these in which it accepted no request, because it had requested a delay."""

    @property
    def is_mostly(self) -> bool:
        """Whether it has refused most requests, or requested delays for most of the time."""
        return self.refused > self.answered or self.delayed > self.seconds / 2

    def __str__(self) -> str:
        delays = f", and requested delays for {self.delayed:.0f} s of it" if self.delayed >= 1 else ""
        return (
            f"it refused {self.refused:,} of {self.refused + self.answered:,} requests in the last {self.seconds:.0f} s"
            f"{delays}: {self.answered / self.seconds:.3g} requests a second succeed"
        )


class _Sample(NamedTuple):
    at: float
    left: int
    refused: int
    delayed: float


class Throttling:
    """Counts refused requests and delays. Samples are taken when requests are refused, one a second at most."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._samples: deque[_Sample] = deque()
        self._refused = 0
        self._delayed = 0.0
        self._delayed_until = 0.0

    def refused(self, left: int) -> None:
        """A request was refused. ``left``: how many requests have ended since the gate exists."""
        now = self._loop.time()
        if not self._samples or now - self._samples[-1].at >= _APART:
            self._forget(now)
            self._samples.append(_Sample(now, left, self._refused, self._delayed_before(now)))
        self._refused += 1

    def delays(self, until: float) -> None:
        """The place accepts no request until this time of the loop."""
        if until > self._delayed_until:
            self._delayed += until - max(self._delayed_until, self._loop.time())
            self._delayed_until = until

    def of_last_minute(self, left: int) -> Throttled | None:
        """None: it has refused nothing for a minute, or for too short a time."""
        now = self._loop.time()
        self._forget(now)
        if not self._samples or now - (first := self._samples[0]).at < _LEAST:
            return None
        refused = self._refused - first.refused
        answered = max(0, left - first.left - refused)  # a refused one may not have left yet
        return Throttled(now - first.at, answered, refused, self._delayed_before(now) - first.delayed)

    def _delayed_before(self, now: float) -> float:
        return self._delayed - max(0.0, self._delayed_until - now)

    def _forget(self, now: float) -> None:
        while self._samples and now - self._samples[0].at > _WINDOW:
            self._samples.popleft()
