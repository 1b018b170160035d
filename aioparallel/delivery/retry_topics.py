"""The extension that reads retry topics: it restores the history of records, and parks them until they are due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aioparallel.config.extension import Extension
from aioparallel.delivery.letters import original_headers, read_letter
from aioparallel.engine.outcomes.failures import NotDue
from aioparallel.event_loop.steady_clock import steady_time
from aioparallel.records.history import history_of
from aioparallel.records.record import Record, TopicPartition

__all__ = ["RetryTopics", "due_at", "origin_of", "origin_topic"]


class RetryTopics(Extension):
    """Restores the history of a record from its headers before it runs, and parks the record until it is due. A record
    without these headers runs like any other.

    ``delays``: seconds, by topic. ``arrival_of``: returns ``seen`` and ``absent`` of :func:`due_at` for a record.
    """

    def __init__(
        self, delays: Mapping[str, float], arrival_of: Callable[[Record[Any, Any]], tuple[float, float]]
    ) -> None:
        self._delays = delays
        self._arrival_of = arrival_of
        self.arrival_topics = delays.keys()

    def may_attempt(self, record: Record[Any, Any]) -> None:
        """Restore the history. Raises NotDue."""
        # A record that was put back behind another one has a history, although it was not restored yet.
        if record.topic in self._delays and (record._history is None or not record._history.is_restored):
            letter = read_letter(record)
            if letter is not None:
                history = history_of(record)
                history.is_restored = True
                history.origin = letter.origin
                history.attempts_before = letter.attempts
                history.first_failure, history.last_failure = letter.first, letter.last
                record.headers = original_headers(record.headers)
                if letter.due is not None:
                    due = due_at(
                        letter.due, record.timestamp / 1_000, self._delays[record.topic], *self._arrival_of(record)
                    )
                    if (wait := due - steady_time()) > 0:
                        raise NotDue(wait)


def origin_topic(record: Record[Any, Any]) -> str | None:
    """Return the topic in which a record of a retry topic was first; None: unknown."""
    origin = origin_of(record)
    return None if origin is None else origin.topic


def origin_of(record: Record[Any, Any]) -> TopicPartition | None:
    """Return the partition in which a record of a retry topic was first; None: unknown."""
    if record._history is not None and record._history.is_restored:
        return TopicPartition(record.origin.topic, record.origin.partition)
    letter = read_letter(record)
    return None if letter is None else TopicPartition(letter.origin.topic, letter.origin.partition)


def due_at(due: float, timestamp: float, delay: float, seen: float, absent: float) -> float:
    """Return when a record is due. Times are seconds since the epoch.

    ``due``: the time in the header. ``timestamp``: of the record; negative: it has none. ``delay``: seconds, of the
    topic, from the reader's options. ``seen``: when the reader read the record. ``absent``: when the reader had read
    the log to its end, without this record; ``-inf``: never.

    Header and timestamp come from the clocks of the writer and the broker, which may be wrong. The later one counts,
    so one clock that is slow does not shorten the delay. The record was written between ``absent`` and ``seen``, both
    by the reader's clock. So the result is between ``absent + delay`` and ``seen + delay``, whatever other clocks say.
    """
    stated = due if timestamp < 0 else max(due, timestamp + delay)
    return min(max(stated, absent + delay), seen + delay)
