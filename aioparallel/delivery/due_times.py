"""When a record of a retry topic is due. Pure; times are seconds since the epoch.

Its header says when, by the clock of whoever wrote it, and that may be wrong. So may its timestamp, which is the same
clock's, or the broker's where the topic has LogAppendTime. The reader knows by its own clock between which two moments
the record was written: it is due after the delay from some moment between them, and no clock of others changes that.
"""

from __future__ import annotations

__all__ = ["due_at"]


def due_at(due: float, timestamp: float, delay: float, seen: float, absent: float) -> float:
    """``due``: what the header says. ``timestamp``: the record's; less than 0: it has none. ``delay``: the topic's, as
    the options of the reader have it. ``seen``: when the reader read it. ``absent``: when it had read the log to its
    end, and the record was not there; ``-inf``: it never had.

    Of header and timestamp the later one counts: a clock that is behind takes no delay away where the other tells
    better. The result is within ``absent + delay`` and ``seen + delay``.
    """
    told = due if timestamp < 0 else max(due, timestamp + delay)
    return min(max(told, absent + delay), seen + delay)
