"""Ends single records of a source that wait: buffered, parked, or in a batch that is not full yet. They do not run.

A record may be anywhere in its lane, and the lane goes on without it. Finding records walks all records of the source,
so the caller skips several in one step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

from aioparallel.engine.schedule.batch_assembler import BatchAssembler
from aioparallel.engine.schedule.lanes import StaleLanes
from aioparallel.engine.sources import Source
from aioparallel.records.record import Record

__all__ = ["Waiting"]

AnyRecord = Record[Any, Any]


class Waiting:
    """The records of one source at this moment, and what is before each in its lane. Use it within one step."""

    def __init__(self, source: Source, stale_lanes: StaleLanes, assembler: BatchAssembler | None) -> None:
        self._source = source
        self._stale_lanes = stale_lanes
        self._assembler = assembler
        self._before: dict[AnyRecord, AnyRecord] = {}
        self.by_offset: Mapping[int, AnyRecord] = self._walk()

    def _walk(self) -> dict[int, AnyRecord]:
        found: dict[int, AnyRecord] = {}
        for first in self._firsts():
            record: AnyRecord | None = first
            while record is not None and record.offset not in found:
                found[record.offset] = record
                following = record._next
                if following is not None:
                    self._before[following] = record
                record = following
        return found

    def _firsts(self) -> Iterator[AnyRecord]:
        """At least the first record of each lane, and all records without a lane."""
        source = self._source
        yield from chain(source.in_flight, source.producing, source.parked, source.ready, source.held)
        if self._assembler is not None:
            yield from self._assembler.records_of(source)
        yield from [head for head in self._stale_lanes.waiting if head._source is source]

    def take_out(self, gone: Collection[AnyRecord]) -> Collection[AnyRecord]:
        """Take waiting records out of everything but their lanes. Returns the records that are still in batches which
        are not full yet: they must not become ready."""
        source = self._source
        for queue in (source.ready, source.held):
            kept = [record for record in queue if record not in gone]
            queue.clear()
            queue.extend(kept)
        return () if self._assembler is None else self._assembler.take_out(source, gone)

    def unlink(self, record: AnyRecord) -> None:
        """Close the gap in its lane, unless the end of the record opens the lane for the next one."""
        lane, before, following = record._lane, self._before.pop(record, None), record._next
        if lane is None:
            return
        if following is not None:
            del self._before[following]
        if before is not None:
            before._next = following
        elif not self._stale_lanes.replace(record, following):
            if following is not None and self._assembler is not None:
                self._assembler.is_head(following)
            return
        if following is not None and before is not None:
            self._before[following] = before
        elif following is None and before is not None:
            self._source.lanes[lane] = before
        elif following is None:
            del self._source.lanes[lane]
        record._lane = record._next = None
