"""Who holds things up: the record that is in flight for longest, the one that is tried for longest, and what each
partition waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from aioparallel.engine.processor import Processor
from aioparallel.engine.scheduler import AnyRecord
from aioparallel.engine.sources import Source
from aioparallel.observe.stats import InFlight, Retrying

__all__ = ["first_incompletes", "longest_retrying", "oldest_in_flight"]


def oldest_in_flight(processor: Processor) -> InFlight | None:
    """The one whose handler was started first, of those that have not ended, outputs that wait for room included."""
    found = processor.oldest
    if found is None:
        return None
    record, seconds = found
    return InFlight(record.topic_partition, record.offset, seconds, record.attempt)


def longest_retrying(sources: Iterable[Source]) -> Retrying | None:
    """The one that has failed first, of those that wait for their next attempt."""
    longest, since = None, float("inf")
    for source in sources:
        for record in source.parked:
            history = record._history
            if history is not None and history.trying_since is not None and history.trying_since < since:
                longest, since = record, history.trying_since
    if longest is None:
        return None
    failure = longest.last_failure
    return Retrying(
        longest.topic_partition,
        longest.offset,
        max(0.0, time.time() - since),
        longest.attempt - 1,
        "" if failure is None else f"{failure.type}: {failure.message}",
    )


def first_incompletes(heads: Iterable[AnyRecord]) -> Mapping[Source, AnyRecord]:
    """Of each source, among the heads of its lanes: nothing before it is incomplete."""
    first: dict[Source, AnyRecord] = {}
    for record in heads:
        found = first.get(record._source)
        if found is None or record.offset < found.offset:
            first[record._source] = record
    return first
