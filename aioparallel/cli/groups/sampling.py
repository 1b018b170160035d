"""Reads records of partitions: when the oldest incomplete one was written, and whether offsets without records exist.

Offsets without a record are markers of transactions, records of aborted ones, and what compaction has removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from aioparallel.cli.console import say
from aioparallel.cli.groups.reading import PartitionView, Sampled
from aioparallel.cli.groups.work import PartitionWork
from aioparallel.cli.reading_client import REQUEST_TIMEOUT
from aioparallel.group.client import Client, Span
from aioparallel.group.unreadable import read_past
from aioparallel.records.errors import AioparallelError, FetchFailed
from aioparallel.records.record import Record, TopicPartition

__all__ = ["Sampler", "spans_for"]

TAIL: Final = 100
"""Newest offsets of a partition that are checked for gaps."""
_LIMIT: Final = 15.0
"""Seconds for reading samples."""
_POLICY: Final = 5.0
"""Seconds to ask for a topic's cleanup policy."""


def spans_for(work: PartitionWork, stable: int, *, whole: bool) -> list[Span]:
    """What to read of a partition below ``stable``: its oldest incomplete offset and its newest unread ones; with
    ``whole`` everything from the oldest one on."""
    oldest, stop = work.oldest, min(work.end, stable)
    if oldest is None or oldest >= stop:
        return []
    if whole:
        return [Span(oldest, stop)]
    tail = max(work.first_unread, stop - TAIL)
    if tail <= oldest + 1:
        return [Span(oldest, stop)] if tail < stop else [Span(oldest, oldest + 1)]
    return [Span(oldest, oldest + 1), *([Span(tail, stop)] if tail < stop else [])]


@dataclass(slots=True)
class _Reading:
    """One partition while it is read."""

    work: PartitionWork
    spans: list[Span]
    stop: int
    """The end of what can be read."""
    found: int = 0
    incomplete: int = 0
    oldest_at: float | None = None
    is_read: bool = False

    @property
    def offsets(self) -> int:
        return sum(span.end - span.start for span in self.spans)

    def take(self, records: Iterable[Record]) -> None:
        known = self.work.known.looker()
        for record in records:
            self.found += 1
            if not known(record.offset):
                self.incomplete += 1
                if self.oldest_at is None and record.timestamp >= 0:
                    self.oldest_at = record.timestamp / 1000


class Sampler:
    """Reads samples of partitions. ``whole``: count all records that are left. ``skip``: unreadable batches to skip."""

    def __init__(self, client: Client, skip: Collection[tuple[str, int, int]] = (), *, whole: bool = False) -> None:
        self._client = client
        self._skip = skip
        self._whole = whole
        self._compacted: dict[str, bool] = {}

    async def sample(self, views: Collection[PartitionView]) -> list[PartitionView]:
        """The same views with their samples. Without an answer in time, or if records cannot be read, what they would
        have shown is unknown; a line says so."""
        left = {one.work.partition: one.work for one in views if one.work.remaining}
        stable = await self._client.end_offsets(left, REQUEST_TIMEOUT) if left else {}
        readings = {
            place: _Reading(work, spans, min(work.end, stable[place]))
            for place, work in left.items()
            if (spans := spans_for(work, stable[place], whole=self._whole))
        }
        await self._read(readings)
        return [
            replace(one, sampled=await self._sampled(one.work, readings.get(one.work.partition), stable))
            for one in views
        ]

    async def _sampled(
        self, work: PartitionWork, reading: _Reading | None, stable: Mapping[TopicPartition, int]
    ) -> Sampled | None:
        if reading is None or not reading.is_read:
            return None
        is_undecided = stable[work.partition] < work.end  # a transaction is open
        if self._whole:
            return Sampled(reading.oldest_at, is_undecided, None if is_undecided else reading.incomplete)
        has_gaps = is_undecided or reading.found < reading.offsets or await self._is_compacted(work.partition.topic)
        return Sampled(reading.oldest_at, has_gaps)

    async def _is_compacted(self, topic: str) -> bool:
        if topic not in self._compacted:
            policy = await self._client.cleanup_policy(topic, _POLICY)
            self._compacted[topic] = "compact" in (policy or "")
        return self._compacted[topic]

    async def _read(self, readings: dict[TopicPartition, _Reading]) -> None:
        """Read all spans. A partition that cannot be read does not hold up the others."""
        limit = None if self._whole else _LIMIT
        pending = dict(readings)
        while pending:
            try:
                async with asyncio.timeout(limit):
                    await self._read_once(pending)
            except FetchFailed as error:
                say(f"WARNING {error}: the age of its oldest record is unknown")
                pending.pop(error.partition, None)
                for one in pending.values():
                    one.found, one.incomplete, one.oldest_at = 0, 0, None
                continue
            except TimeoutError:
                say(f"WARNING records could not be read within {_LIMIT:g} s: their ages are unknown")
            except AioparallelError as error:
                say(f"WARNING records could not be read, so their ages are unknown: {error}")
            return

    async def _read_once(self, readings: dict[TopicPartition, _Reading]) -> None:
        await self._take({place: one.spans for place, one in readings.items()}, readings)
        # The oldest incomplete offset may be without a record: then the next record counts.
        missing = {
            place: [Span(one.spans[0].end, one.stop)]
            for place, one in readings.items()
            if one.oldest_at is None and one.spans[0].end < one.stop
        }
        if missing:
            again = {place: _Reading(readings[place].work, spans, spans[-1].end) for place, spans in missing.items()}
            await self._take(missing, again, until_oldest=True)
            for place, one in again.items():
                readings[place].oldest_at = one.oldest_at
        for one in readings.values():
            one.is_read = True

    async def _take(
        self,
        spans: dict[TopicPartition, list[Span]],
        readings: dict[TopicPartition, _Reading],
        *,
        until_oldest: bool = False,
    ) -> None:
        async with aclosing(read_past(self._client, dict(spans), self._skip)) as reads:
            async for place, records, *_ in reads:
                readings[place].take(records)
                if until_oldest and all(one.oldest_at is not None for one in readings.values()):
                    return
