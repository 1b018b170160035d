"""Reads the selected records of a topic."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import aclosing
from typing import Final

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.console import say
from aioparallel.cli.consume.command import Chosen, Format
from aioparallel.cli.consume.showing import printer
from aioparallel.cli.reading_client import REQUEST_TIMEOUT, chosen_partitions, reading_client
from aioparallel.group.client import Client, Span
from aioparallel.group.unreadable import read_past
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record, TopicPartition

__all__ = ["Reading", "show_records"]

FOLLOW_INTERVAL: Final = 0.3  # seconds
LOOK_FOR_PARTITIONS: Final = 20
"""Intervals between two looks for partitions that were added."""
_GROUP: Final = "aioparallel-consume"
"""The client's group, which it never joins."""

Position = dict[TopicPartition, int]


async def show_records(topic: str, which: Chosen, how: Format, where: Cluster) -> None:
    """``aioparallel consume``."""
    skipped = where.skipped
    async with reading_client(where, _GROUP, isolation_level="read_committed") as client:
        wanted = await chosen_partitions(client, topic, which.partition, where.bootstrap_servers)
        await Reading(client, wanted, which, skipped).run(printer(how))


class Reading:
    """Reads the selected records of some partitions."""

    def __init__(
        self,
        client: Client,
        partitions: Collection[TopicPartition],
        which: Chosen,
        skip: Collection[tuple[str, int, int]] = (),
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._which = which
        self._skip = skip
        self._left = which.limit

    async def run(self, show: Callable[[Record], None]) -> None:
        """Call ``show`` for each record."""
        beginnings = await self._client.beginning_offsets(self._partitions, REQUEST_TIMEOUT)
        ends = await self._client.end_offsets(self._partitions, REQUEST_TIMEOUT)
        shown = 0
        if (count := self._which.count) is not None:
            newest = await self._newest(count, dict(beginnings), dict(ends))
            for record in newest:
                show(record)
            shown = len(newest)
            if self._left is not None:
                self._left -= shown
            at = dict(ends)
        else:
            at = await self._start(dict(beginnings), dict(ends))
            shown = await self._show(at, dict(ends), show)
        if not shown and not self._which.follow:
            say("No record matches." if self._which != Chosen() else "The topic has no records.")
        if self._which.follow:
            await self._follow(at, show)

    async def _follow(self, at: Position, show: Callable[[Record], None]) -> None:
        topics = {partition.topic for partition in self._partitions}
        ids = await self._client.topic_ids(topics, REQUEST_TIMEOUT)
        for turn in itertools.count():
            if self._left == 0:
                return
            if not self._which.partition and turn % LOOK_FOR_PARTITIONS == 0:
                new = await self._client.partitions(topics, REQUEST_TIMEOUT) - set(self._partitions)
                if new:
                    self._partitions = {*self._partitions, *new}
                    at |= await self._client.beginning_offsets(new, REQUEST_TIMEOUT)
            ends = await self._client.end_offsets(self._partitions, REQUEST_TIMEOUT)
            if any(end < at[partition] for partition, end in ends.items()):
                before, ids = ids, await self._client.topic_ids(topics, REQUEST_TIMEOUT)
                if ids != before:
                    say("The topic was deleted and created again. It is shown from its beginning.")
                    at |= await self._client.beginning_offsets(self._partitions, REQUEST_TIMEOUT)
            await self._show(at, dict(ends), show)
            await asyncio.sleep(FOLLOW_INTERVAL)

    async def _start(self, beginnings: Position, ends: Position) -> Position:
        """Where to begin, unless the newest are shown."""
        if self._which.offset is not None:
            ((partition, first),) = beginnings.items()
            offset = self._which.offset
            if not first <= offset <= ends[partition]:
                raise ConfigurationError("offset", offset, f"{partition} has the offsets {first} to {ends[partition]}")
            return {partition: offset}
        if self._which.since is not None:
            times = dict.fromkeys(beginnings, round(self._which.since * 1000))
            found = await self._client.offsets_for_times(times, REQUEST_TIMEOUT)
            return {partition: ends[partition] if at is None else at for partition, at in found.items()}
        return beginnings

    async def _show(self, at: Position, ends: Position, show: Callable[[Record], None]) -> int:
        """Show the records from ``at`` to ``ends``, and move ``at`` behind them. Returns how many were shown."""
        shown = 0
        async for record in self._records(at, ends):
            if self._left == 0:
                break
            show(record)
            shown += 1
            if self._left is not None:
                self._left -= 1
        at |= ends
        return shown

    async def _newest(self, count: int, beginnings: Position, ends: Position) -> list[Record]:
        """The newest records by timestamp. The last ``count`` offsets of a partition may have fewer records (markers of
        transactions, compaction, other keys): then more are read."""
        window = count
        while True:
            start = {one: max(beginnings[one], end - window) for one, end in ends.items()}
            kept: list[tuple[int, TopicPartition, int, Record]] = []
            found = dict.fromkeys(ends, 0)
            async for record in self._records(start, ends):
                found[record.topic_partition] += 1
                entry = (record.timestamp, record.topic_partition, record.offset, record)
                (heapq.heappush if len(kept) < count else heapq.heappushpop)(kept, entry)
            if all(found[one] >= count or start[one] == beginnings[one] for one in ends):
                return [record for *_, record in sorted(kept, key=lambda entry: entry[:3])]
            window *= 8

    async def _records(self, at: Position, ends: Position) -> AsyncIterator[Record]:
        spans = {one: Span(at[one], end) for one, end in ends.items() if at[one] < end}
        if not spans:
            return
        async with aclosing(read_past(self._client, spans, self._skip)) as reads:
            async for fetched in reads:
                for record in fetched.records:
                    if self._which.key is None or record.key == self._which.key:
                        yield record
