"""Which records delay the others: longest in flight, longest retrying, first incomplete of each partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from aioparallel.engine.run.processor import Processor
from aioparallel.engine.schedule.scheduler import AnyRecord
from aioparallel.engine.sources import Source
from aioparallel.observe.stats import InFlight, Retrying

__all__ = ["first_incompletes", "longest_retrying", "oldest_in_flight", "sources_by_name"]


def oldest_in_flight(processor: Processor) -> InFlight | None:
    """Return the record whose handler was started first, of those that still hold a worker; None if there is none."""
    found = processor.oldest
    if found is None:
        return None
    record, seconds = found
    return InFlight(record.topic_partition, record.offset, seconds, record.attempt)


def longest_retrying(sources: Iterable[Source], now: float) -> Retrying | None:
    """Return the parked record whose first failure is the oldest; None if there is none. ``now``: the loop's time."""
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
    """Group sources by name, which is their partition."""
    found: defaultdict[Hashable, list[Source]] = defaultdict(list)
    for source in sources:
        found[source.name].append(source)
    return found


def first_incompletes(heads: Iterable[AnyRecord]) -> Mapping[Hashable, AnyRecord]:
    """Return the first incomplete record for each name of a source, given the heads of all lanes."""
    first: dict[Hashable, AnyRecord] = {}
    for record in heads:
        source = record._source
        found = first.get(source.name)
        if not source.dropped and (found is None or record.offset < found.offset):
            first[source.name] = record
    return first
