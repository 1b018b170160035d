"""Records that come back from a retry topic: what happened to them before, and not before they are due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aioparallel.delivery.due_times import due_at
from aioparallel.delivery.letters import original_headers, read_letter
from aioparallel.engine.failures import NotDue
from aioparallel.handlers import Before
from aioparallel.history import history_of
from aioparallel.records import Record
from aioparallel.steady_clock import steady_time

__all__ = ["from_retry_topics", "origin_topic"]


def from_retry_topics(
    delays: Mapping[str, float], arrival_of: Callable[[Record[Any, Any]], tuple[float, float]]
) -> Before:
    """What gives records of these topics their history back from their headers before they run, and parks them
    until they are due. One that carries no such headers is run like any other. ``delays``: of each topic, seconds.
    ``arrival_of``: when a record was read, and when it did not stand in its log yet, see :func:`~.due_times.due_at`."""

    def restore(record: Record[Any, Any]) -> None:
        # It may have a history without having been looked at: where it went back behind another.
        if record.topic in delays and (record._history is None or not record._history.is_restored):
            letter = read_letter(record)
            if letter is not None:
                history = history_of(record)
                history.is_restored = True
                history.origin = letter.origin
                history.attempts_before = letter.attempts
                history.first_failure, history.last_failure = letter.first, letter.last
                record.headers = original_headers(record.headers)
                if letter.due is not None:
                    due = due_at(letter.due, record.timestamp / 1_000, delays[record.topic], *arrival_of(record))
                    if (wait := due - steady_time()) > 0:
                        raise NotDue(wait)

    return restore


def origin_topic(record: Record[Any, Any]) -> str | None:
    """Where a record of a retry topic stood first; None: it does not say."""
    if record._history is not None and record._history.is_restored:
        return record.origin.topic
    letter = read_letter(record)
    return None if letter is None else letter.origin.topic
