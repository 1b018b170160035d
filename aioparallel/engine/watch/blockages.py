"""Which handler blocks the event loop, judged from samples of its thread's stack. Pure: no clock, no thread.

The loop pings a thread (:mod:`~aioparallel.engine.watch.loop_watch`). While a ping is overdue the thread takes samples.
A handler is blamed only if two samples in a row show the same record in the same turn of the loop. A busy machine, a
stopped process or a garbage collection does not produce two such samples. In these cases the sampling thread is late as
well (:meth:`BlockageDetector.late`), the loop's thread has waited for a processor (``starved``), or each sample shows
another record.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from aioparallel.records.record import Record

__all__ = [
    "LATE",
    "OVERDUE",
    "PING_INTERVAL",
    "SAMPLE_INTERVAL",
    "Blockage",
    "BlockageDetector",
    "StackLine",
    "StackSample",
]

PING_INTERVAL: Final = 0.1
"""Seconds between two pings."""
SAMPLE_INTERVAL: Final = 0.05
"""Seconds between two samples."""
OVERDUE: Final = 0.05
"""Seconds by which a ping is late when the loop may be blocked."""
LATE: Final = 0.05
"""Seconds by which a sample may be late. A later one says nothing about what ran meanwhile."""
# Seconds between the two samples, without the time that the thread waited for a processor.
_SURE: Final = 0.04
# The same for code that is no handler: it may be many short calls.
_SURE_OF_OTHERS: Final = 0.9
# Seconds after which a blockage is reported although it goes on.
_LONG: Final = 1.0


class StackLine(NamedTuple):
    """The current line of one frame."""

    file: str
    number: int
    function: str


class StackSample(NamedTuple):
    """What the loop's thread ran at one moment."""

    record: Record[Any, Any] | None
    """The record whose handler ran; None: other code."""
    handler: str
    """The qualified name of the handler."""
    stack: tuple[StackLine, ...]
    """The lines of the user's code, the innermost last."""


class Blockage(NamedTuple):
    """A time in which one handler, or other code, blocked the loop. ``sample``: the last one that showed it."""

    sample: StackSample
    since: float
    until: float

    @property
    def seconds(self) -> float:
        """How long it lasted at least."""
        return self.until - self.since


class _First(NamedTuple):
    """The first of several samples that show the same record."""

    sample: StackSample
    since: float
    """The earliest time at which it is known to block."""
    at: float
    starved: float


class BlockageDetector:
    """Judges the samples between two pings. Times are from any one clock.

    ``starved``: how many seconds the loop's thread has waited for a processor, in total.
    """

    def __init__(self) -> None:
        self._asked = 0.0
        self._first: _First | None = None
        self._has_sampled = False
        self._current: Blockage | None = None
        self._over: list[Blockage] = []  # those that ended before the ping came

    def asked(self, now: float) -> None:
        """The next ping is due. If it does not come, the loop counts as blocked from ``now``."""
        self._asked, self._first, self._has_sampled, self._current = now, None, False, None

    def late(self) -> None:
        """Forget the last sample, because the sampling thread was late."""
        self._first, self._has_sampled = None, True

    def sampled(self, sample: StackSample | None, now: float, starved: float) -> None:
        """Judge a sample taken while a ping is overdue. None: nothing blocks the loop, it is about to turn."""
        if self._current is not None and (sample is None or self._current.sample.record is not sample.record):
            self._over.append(self._current)
            self._current = None
        first = self._first
        if sample is None:
            self._first = None
        elif first is None or first.sample.record is not sample.record:
            since = self._current.since if self._current else now if self._has_sampled else self._asked
            self._first = _First(sample, since, now, starved)
        elif (now - first.at) - (starved - first.starved) >= (_SURE if sample.record else _SURE_OF_OTHERS):
            self._current = Blockage(sample, first.since, now)
        self._has_sampled = True

    @property
    def goes_on(self) -> Blockage | None:
        """The current blockage, if it is a long one."""
        return self._current if self._current is not None and self._current.seconds >= _LONG else None

    @property
    def is_held(self) -> bool:
        """Whether it is certain that something blocks the loop."""
        return self._current is not None

    def answered(self, at: float) -> list[Blockage]:
        """The loop has turned. Return all blockages since :meth:`asked`, in order."""
        if self._current is not None:
            self._over.append(self._current._replace(until=max(at, self._current.until)))
        over, self._over, self._current, self._first = self._over, [], None, None
        return over
