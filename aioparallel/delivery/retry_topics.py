"""Records that come back from a retry topic: what happened to them before, and not before they are due."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from aioparallel.delivery.letters import original_headers, read_letter
from aioparallel.engine.failures import NotDue
from aioparallel.handlers import Before
from aioparallel.history import history_of
from aioparallel.records import Record

__all__ = ["from_retry_topics", "origin_topic", "with_retry_topics"]


def from_retry_topics(topics: Collection[str]) -> Before:
    """What gives records of these topics their history back from their headers before they run, and parks them
    until they are due. One that carries no such headers is run like any other."""

    def restore(record: Record[Any, Any]) -> None:
        # It may have a history without having been looked at: where it went back behind another.
        if record.topic in topics and (record._history is None or not record._history.is_restored):
            letter = read_letter(record)
            if letter is not None:
                history = history_of(record)
                history.is_restored = True
                history.origin = letter.origin
                history.attempts_before = letter.attempts
                history.first_failure, history.last_failure = letter.first, letter.last
                record.headers = original_headers(record.headers)
                if letter.due is not None and (wait := letter.due - time.time()) > 0:
                    raise NotDue(wait)

    return restore


def origin_topic(record: Record[Any, Any]) -> str | None:
    """Where a record of a retry topic stood first; None: it does not say."""
    if record._history is not None and record._history.is_restored:
        return record.origin.topic
    letter = read_letter(record)
    return None if letter is None else letter.origin.topic


def with_retry_topics(
    topics: Sequence[str] | re.Pattern[str], retry_topics: Mapping[str, float]
) -> Sequence[str] | re.Pattern[str]:
    """What to subscribe to: the retry topics as well."""
    if not retry_topics:
        return topics
    if isinstance(topics, re.Pattern):
        names = "|".join(map(re.escape, retry_topics))
        return re.compile(f"(?:{topics.pattern})|{names}", topics.flags)
    return (*topics, *(topic for topic in retry_topics if topic not in topics))
