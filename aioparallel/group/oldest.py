"""Who holds things up: the record that is in flight for longest, the one that is tried for longest, and what each
partition waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from aioparallel.engine.processor import Processor
from aioparallel.engine.scheduler import AnyRecord
from aioparallel.engine.sources import Source
from aioparallel.observe.stats import InFlight, Retrying

__all__ = ["first_incompletes", "longest_retrying", "oldest_in_flight", "sources_by_name"]


def oldest_in_flight(processor: Processor) -> InFlight | None:
    """The one whose handler was started first, of those that have not ended, outputs that wait for room included."""
    found = processor.oldest
    if found is None:
        return None
    record, seconds = found
    return InFlight(record.topic_partition, record.offset, seconds, record.attempt)


def longest_retrying(sources: Iterable[Source], now: float) -> Retrying | None:
    """The one that has failed first, of those that wait for their next attempt. ``now``: on the loop's clock."""
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
        now - since,
        longest.attempt - 1,
        "" if failure is None else f"{failure.type}: {failure.message}",
    )


def sources_by_name(sources: Iterable[Source]) -> Mapping[Hashable, Sequence[Source]]:
    """Those that hold records of one partition."""
    found: defaultdict[Hashable, list[Source]] = defaultdict(list)
    for source in sources:
        found[source.name].append(source)
    return found


def first_incompletes(heads: Iterable[AnyRecord]) -> Mapping[Hashable, AnyRecord]:
    """Of the sources of one name, among the heads of their lanes: nothing before it is incomplete."""
    first: dict[Hashable, AnyRecord] = {}
    for record in heads:
        source = record._source
        found = first.get(source.name)
        if not source.dropped and (found is None or record.offset < found.offset):
            first[source.name] = record
    return first
