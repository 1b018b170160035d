"""Shows open records of a queue by partition, from the marker topic."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.live import Live
from rich.table import Table

from aioparallel.cli.cluster import connecting_options
from aioparallel.cli.console import make_console, say
from aioparallel.cli.dlq.dead_letter_topic import CONNECT_TIMEOUT, REQUEST_TIMEOUT, STOP_TIMEOUT
from aioparallel.cli.kmq.commands import QueueAccess, Reporting
from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.group.client import Client, Span
from aioparallel.group.unreadable import read_past
from aioparallel.queues.kmq.markers import read_marker, redeliveries
from aioparallel.queues.kmq.redelivery import spans_of
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.records.record import Record, TopicPartition

__all__ = ["Open", "PartitionStatus", "show_status", "status_of", "table"]

# Open records of a partition, the oldest first, whose number of redeliveries is read.
_LOOKED_AT: Final = 500


class Open(NamedTuple):
    """A record that was started and has not ended: since when, and the end of its lease, in seconds since the epoch."""

    since: float
    until: float


@dataclass(slots=True)
class _Markers:
    """The markers of a partition that were read."""

    position: int
    open: dict[int, Open] = field(default_factory=dict)

    def oldest(self) -> list[int]:
        """Offsets of the oldest open records."""
        return sorted(self.open, key=lambda offset: self.open[offset].since)[:_LOOKED_AT]

    def read(self, record: Record) -> None:
        """Apply a marker."""
        marker = read_marker(record.key, record.value)
        if marker is None:
            return
        if marker.lease is None:
            self.open.pop(marker.offset, None)
        else:
            since = record.timestamp / 1_000
            self.open[marker.offset] = Open(since, since + marker.lease / 1_000)


class PartitionStatus(NamedTuple):
    """A row of the table."""

    partition: int
    open: int
    oldest: float | None
    """Seconds since the first of them started."""
    overdue: int
    """Those whose lease is over."""
    redelivered: int
    """Of the oldest 500, those that were delivered before."""
    most: int
    """The most earlier deliveries of one of them."""
    behind: int | None
    """Markers that the trackers have not committed; None: they have committed nothing."""


def status_of(
    partition: int, held: Iterable[Open], counts: Sequence[int], behind: int | None, now: float
) -> PartitionStatus:
    """``counts``: redeliveries of the oldest open records."""
    found = list(held)
    return PartitionStatus(
        partition,
        len(found),
        max(0.0, now - min(one.since for one in found)) if found else None,
        sum(one.until < now for one in found),
        sum(count > 0 for count in counts),
        max(counts, default=0),
        behind,
    )


def table(queue: str, partitions: Sequence[PartitionStatus]) -> Table:
    """The table for people."""
    shown = Table(box=None, pad_edge=False, header_style="bold", title=f"{queue}: records under way", title_style="")
    for name in ("partition", "open", "oldest", "overdue", "redelivered", "most often", "tracker behind"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in partitions:
        shown.add_row(
            str(one.partition),
            f"{one.open:,}",
            "-" if one.oldest is None else f"{one.oldest:.0f} s",
            f"{one.overdue:,}",
            f"{one.redelivered:,}",
            str(one.most),
            "-" if one.behind is None else f"{one.behind:,}",
        )
    if len(partitions) > 1:
        oldest = max((one.oldest for one in partitions if one.oldest is not None), default=None)
        shown.add_row(
            "all",
            f"{sum(one.open for one in partitions):,}",
            "-" if oldest is None else f"{oldest:.0f} s",
            f"{sum(one.overdue for one in partitions):,}",
            f"{sum(one.redelivered for one in partitions):,}",
            str(max(one.most for one in partitions)),
            "-" if is_unknown(partitions) else f"{sum(one.behind or 0 for one in partitions):,}",
            style="bold",
        )
    return shown


def is_unknown(partitions: Iterable[PartitionStatus]) -> bool:
    """Whether the group has committed nothing in any partition."""
    return all(one.behind is None for one in partitions)


class _Status:
    """Reads the markers of a queue, each once."""

    def __init__(self, client: Client, topics: QueueTopics, skip: Collection[tuple[str, int, int]] = ()) -> None:
        self._client = client
        self._skip = skip
        self._topics = topics
        self._markers: dict[TopicPartition, _Markers] = {}
        self.is_from_beginning = False
        """Whether the group has committed nothing."""

    async def begin(self, servers: str) -> None:
        """Find where to read from. Raises TopicNotFound and other errors of the topics."""
        names = [self._topics.queue, self._topics.markers]
        found = await self._client.partitions(names, REQUEST_TIMEOUT)
        dead_letter = TopicPartition(self._topics.dead_letter, 0)  # not needed here
        self._topics.check({*found, dead_letter}, servers)
        partitions = sorted(one for one in found if one.topic == self._topics.markers)
        committed = await self._client.committed(partitions, REQUEST_TIMEOUT)
        beginnings = await self._client.beginning_offsets(partitions, REQUEST_TIMEOUT)
        self.is_from_beginning = not committed
        for partition in partitions:
            start = committed[partition].offset if partition in committed else 0
            self._markers[partition] = _Markers(max(start, beginnings[partition]))

    async def update(self) -> list[PartitionStatus]:
        """Read new markers."""
        partitions = list(self._markers)
        ends = await self._client.end_offsets(partitions, REQUEST_TIMEOUT)
        committed = await self._client.committed(partitions, REQUEST_TIMEOUT)
        spans = {partition: Span(self._markers[partition].position, ends[partition]) for partition in partitions}
        async with aclosing(read_past(self._client, spans, self._skip)) as reading:
            async for fetched in reading:
                markers = self._markers[fetched.partition]
                for record in fetched.records:
                    markers.read(record)
                markers.position = fetched.next_offset
        now = time.time()
        oldest = {partition: self._markers[partition].oldest() for partition in partitions}
        counts = await self._counts(oldest)
        found = []
        for partition in partitions:
            held = self._markers[partition].open
            behind = ends[partition] - committed[partition].offset if partition in committed else None
            found.append(status_of(partition.partition, held.values(), counts[partition.partition], behind, now))
        return found

    async def _counts(self, wanted: Mapping[TopicPartition, Collection[int]]) -> Mapping[int, list[int]]:
        """Earlier deliveries of these records, by partition."""
        counts: defaultdict[int, list[int]] = defaultdict(list)
        offsets = {TopicPartition(self._topics.queue, one.partition): set(some) for one, some in wanted.items() if some}
        spans = {place: spans_of(sorted(some)) for place, some in offsets.items()}
        async with aclosing(read_past(self._client, spans, self._skip)) as reading:
            async for place, records, _, *_ in reading:
                some = offsets[place]
                counts[place.partition] += [redeliveries(record) for record in records if record.offset in some]
        return counts


async def show_status(queue: str, how: Reporting, where: QueueAccess) -> None:
    """``aioparallel kmq status``."""
    topics = QueueTopics(queue, where.marker_topic, None)
    group = where.group or f"{queue}-trackers"
    client = AiokafkaClient(where.bootstrap_servers, group, client_options=connecting_options(where))
    try:
        await client.start(CONNECT_TIMEOUT)
        status = _Status(client, topics, where.skipped)
        await status.begin(where.bootstrap_servers)
        if status.is_from_beginning:
            say(
                f"Group {group} has committed nothing in {topics.markers}, so it is read from its beginning. If "
                "another group tracks this queue, give it by --group: a KmqConsumer's own tracker has the consumer's "
                "group with -redelivery."
            )
        if how.as_json:
            await _as_json(status, how)
            return
        console = make_console()
        if not how.watch:
            console.print(table(queue, await status.update()))
            return
        with Live(table(queue, await status.update()), console=console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(how.every)
                live.update(table(queue, await status.update()), refresh=True)
    finally:
        await client.stop(STOP_TIMEOUT)


async def _as_json(status: _Status, how: Reporting) -> None:
    while True:
        for one in await status.update():
            print(json.dumps(one._asdict()))
        sys.stdout.flush()
        if not how.watch:
            return
        await asyncio.sleep(how.every)
