"""How many records to acquire next, by what the workers can begin before the locks end.

Plain: no ``await``, no I/O; times are passed in, in seconds.

What cannot begin soon is better left to other members: it would be released, and each delivery counts towards the
group's limit. So the records that wait here are at most those that begin within a quarter of a lock, by the measured
throughput. As long as nothing has ended, only as many are acquired as may begin at once.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

__all__ = ["Bounds", "Held", "Throughput", "Wanted", "wanted"]

_WINDOW: Final = 10.0
"""Seconds over which the throughput is measured."""
_SAMPLES: Final = 20
"""Samples in a window."""
_SHORTEST: Final = 1.0
"""Seconds that a measurement covers at least: the first handlers that end say little."""
_PART: Final = 4
"""Records that wait begin within one of so many parts of a lock."""
_WORTH: Final = 8
"""A fetch brings at least one of so many parts of what may be held."""
_USUAL_LOCK: Final = 30.0
"""Seconds, before the first response: the default of ``group.share.record.lock.duration.ms``."""


class Throughput:
    """Counts records whose handlers have ended, per second."""

    def __init__(self, now: float) -> None:
        self._samples: deque[tuple[float, int]] = deque([(now, 0)])

    def per_second(self, ended: int, now: float) -> float:
        """Return the throughput. ``ended``: records so far."""
        samples = self._samples
        if now - samples[-1][0] >= _WINDOW / _SAMPLES:
            samples.append((now, ended))
            while len(samples) > 2 and now - samples[1][0] >= _WINDOW:
                samples.popleft()
        began, before = samples[0]
        return max(0, ended - before) / max(now - began, _SHORTEST)


class Bounds(NamedTuple):
    """What may be held at most."""

    at_once: int
    """Records whose handlers may run at once."""
    buffered: int
    """Records that wait for a handler."""
    buffered_bytes: int


class Held(NamedTuple):
    """What is held now."""

    in_flight: int
    buffered: int
    buffered_bytes: int
    mean_size: float
    """Bytes of a record."""


class Wanted(NamedTuple):
    """How many records to acquire; 0: none now. ``state``: the reason in words, for ``Stats.intake``."""

    records: int
    state: str


def wanted(bounds: Bounds, held: Held, per_second: float, lock_seconds: float | None) -> Wanted:
    """Return how many records to acquire next."""
    seconds = _USUAL_LOCK if lock_seconds is None else lock_seconds
    ahead = min(bounds.buffered, int(per_second * seconds / _PART))
    free = bounds.at_once - held.in_flight + ahead - held.buffered
    free = min(free, bounds.at_once + bounds.buffered - held.buffered)
    if held.buffered >= bounds.buffered:
        return Wanted(0, "full: max_buffered reached")
    bytes_left = bounds.buffered_bytes - held.buffered_bytes
    if bytes_left <= 0:
        return Wanted(0, "full: max_buffered_bytes reached")
    if free < 1 or (held.buffered and free < (bounds.at_once + ahead) // _WORTH):
        return Wanted(0, "enough ready")
    return Wanted(max(1, min(free, int(bytes_left / max(1.0, held.mean_size)))), "fetching")
