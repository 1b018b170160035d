"""When a record of a retry topic is due. Pure; times are seconds since the epoch.

The record's header has the time by the clock of the process that wrote it, which may be wrong. The timestamp may be
wrong as well: it is from the same clock, or from the broker's if the topic has LogAppendTime. But the reader knows two
moments by its own clock, between which the record was written. So the record is due one delay after some moment between
them, whatever other clocks say.
"""

from __future__ import annotations

__all__ = ["due_at"]


def due_at(due: float, timestamp: float, delay: float, seen: float, absent: float) -> float:
    """Return when the record is due.

    ``due``: the time in the header. ``timestamp``: of the record; negative: it has none. ``delay``: seconds, of the
    topic, from the reader's options. ``seen``: when the reader read the record. ``absent``: when the reader had read
    the log to its end, without this record; ``-inf``: never.

    The later one of header and timestamp counts, so one clock that is slow does not shorten the delay. The result is
    between ``absent + delay`` and ``seen + delay``.
    """
    stated = due if timestamp < 0 else max(due, timestamp + delay)
    return min(max(stated, absent + delay), seen + delay)
