"""Shows open records of a queue by partition, from the marker topic."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.live import Live
from rich.table import Table

from aioparallel.cli.cluster import Cluster, connecting_options
from aioparallel.cli.console import make_console, say
from aioparallel.cli.kmq.commands import QueueAccess, Reporting
from aioparallel.cli.reading_client import REQUEST_TIMEOUT, reading_client
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.clients.aiokafka.group_admin import LIST_GROUPS, GroupAdmin
from aioparallel.group.client import Client, Span
from aioparallel.group.unreadable import read_past
from aioparallel.queues.kmq.markers import read_marker, redeliveries
from aioparallel.queues.kmq.redelivery import spans_of
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.records.errors import NotAuthorized
from aioparallel.records.record import Record, TopicPartition

__all__ = ["PartitionStatus", "QueueStatus", "group_of_trackers", "show_status"]

# Open records of a partition, the oldest first, whose number of redeliveries is read.
_LOOKED_AT: Final = 500
REDELIVERY: Final = "-redelivery"
"""The end of the name of the group of a KmqConsumer's own trackers."""


class _Open(NamedTuple):
    """A record that was started and has not ended: since when, and the end of its lease, in seconds since the epoch."""

    since: float
    until: float


@dataclass(slots=True)
class _Markers:
    """The markers of a partition that were read. ``open``: by offset in the queue."""

    position: int
    open: dict[int, _Open] = field(default_factory=dict)

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
            self.open[marker.offset] = _Open(since, since + marker.lease / 1_000)


class PartitionStatus(NamedTuple):
    """A row of the table, and an object of ``--json``: names of fields are a public interface."""

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

    def cells(self, name: str) -> list[str]:
        """The row of the table."""
        oldest = "-" if self.oldest is None else f"{self.oldest:.0f} s"
        behind = "-" if self.behind is None else f"{self.behind:,}"
        return [name, f"{self.open:,}", oldest, f"{self.overdue:,}", f"{self.redelivered:,}", str(self.most), behind]


def table(queue: str, partitions: Sequence[PartitionStatus]) -> Table:
    """The table for people, with a row for all partitions if there are several."""
    shown = Table(box=None, pad_edge=False, header_style="bold", title=f"{queue}: records under way", title_style="")
    for name in ("partition", "open", "oldest", "overdue", "redelivered", "most often", "tracker behind"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in partitions:
        shown.add_row(*one.cells(str(one.partition)))
    if len(partitions) > 1:
        oldest = [one.oldest for one in partitions if one.oldest is not None]
        behind = [one.behind for one in partitions if one.behind is not None]
        total = PartitionStatus(
            partition=-1,
            open=sum(one.open for one in partitions),
            oldest=max(oldest, default=None),
            overdue=sum(one.overdue for one in partitions),
            redelivered=sum(one.redelivered for one in partitions),
            most=max(one.most for one in partitions),
            behind=sum(behind) if behind else None,
        )
        shown.add_row(*total.cells("all"), style="bold")
    return shown


class QueueStatus:
    """Reads the markers of a queue, each once."""

    def __init__(self, client: Client, topics: QueueTopics, skip: Collection[tuple[str, int, int]] = ()) -> None:
        self._client = client
        self._skip = skip
        self._topics = topics
        self._markers: dict[TopicPartition, _Markers] = {}

    async def begin(self, servers: str) -> bool:
        """Find where to read from. Returns whether the group has committed anything. Raises TopicNotFound and other
        errors of the topics."""
        names = [self._topics.queue, self._topics.markers]
        found = await self._client.partitions(names, REQUEST_TIMEOUT)
        dead_letter = TopicPartition(self._topics.dead_letter, 0)  # not needed here
        self._topics.check({*found, dead_letter}, servers)
        partitions = sorted(one for one in found if one.topic == self._topics.markers)
        committed = await self._client.committed(partitions, REQUEST_TIMEOUT)
        beginnings = await self._client.beginning_offsets(partitions, REQUEST_TIMEOUT)
        for partition in partitions:
            start = committed[partition].offset if partition in committed else 0
            self._markers[partition] = _Markers(max(start, beginnings[partition]))
        return bool(committed)

    async def update(self) -> list[PartitionStatus]:
        """Read new markers."""
        partitions = list(self._markers)
        ends = await self._client.end_offsets(partitions, REQUEST_TIMEOUT)
        committed = await self._client.committed(partitions, REQUEST_TIMEOUT)
        spans = {partition: Span(markers.position, ends[partition]) for partition, markers in self._markers.items()}
        async with aclosing(read_past(self._client, spans, self._skip)) as reading:
            async for fetched in reading:
                markers = self._markers[fetched.partition]
                for record in fetched.records:
                    markers.read(record)
                markers.position = fetched.next_offset
        now = time.time()
        counts = await self._redeliveries({one: markers.oldest() for one, markers in self._markers.items()})
        return [
            PartitionStatus(
                partition.partition,
                open=len(markers.open),
                oldest=max((max(0.0, now - one.since) for one in markers.open.values()), default=None),
                overdue=sum(one.until < now for one in markers.open.values()),
                redelivered=sum(count > 0 for count in counts[partition.partition]),
                most=max(counts[partition.partition], default=0),
                behind=ends[partition] - committed[partition].offset if partition in committed else None,
            )
            for partition, markers in self._markers.items()
        ]

    def open_in(self, partition: int) -> Collection[int]:
        """Offsets of the open records of a partition of the queue, after :meth:`update`."""
        return self._markers[TopicPartition(self._topics.markers, partition)].open

    async def _redeliveries(self, wanted: Mapping[TopicPartition, Collection[int]]) -> defaultdict[int, list[int]]:
        """Earlier deliveries of each of these records, by partition."""
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
    group = where.group or await group_of_trackers(queue, topics, where)
    async with reading_client(where, group) as client:
        status = QueueStatus(client, topics, where.skipped)
        if not await status.begin(where.bootstrap_servers):
            say(
                f"Group {group} has committed nothing in {topics.markers}, so it is read from its beginning. If "
                "another group tracks this queue, give it by --group."
            )
        await _show(status, queue, how)


async def group_of_trackers(queue: str, topics: QueueTopics, where: Cluster) -> str:
    """The group that has committed in the marker topic: that of tracker processes, or of a KmqConsumer's own tracker.
    The first one if none has, or if several have."""
    default = f"{queue}-trackers"
    async with GroupAdmin(where.bootstrap_servers, connecting_options(where), timeout=REQUEST_TIMEOUT) as admin:
        if not await admin.supports(LIST_GROUPS):
            return default
        groups = [one.name for one in await admin.list_groups()]
        partitions = [
            TopicPartition(topics.markers, number) for number in range((await admin.topics()).get(topics.markers, 0))
        ]
        candidates = [default, *(group for group in groups if group.endswith(REDELIVERY))]
        found = [group for group in candidates if partitions and await _has_committed(admin, group, partitions)]
    if len(found) > 1:
        say(f"Groups that track {queue}: {', '.join(found)}. Shown by the first; --group chooses another one.")
    return found[0] if found else default


async def _has_committed(admin: Admin, group: str, partitions: Collection[TopicPartition]) -> bool:
    try:
        return bool(await admin.committed(group, partitions))
    except NotAuthorized:
        return False  # somebody else's group


async def _show(status: QueueStatus, queue: str, how: Reporting) -> None:
    """Once, or with ``--watch`` until it is cancelled."""
    console = make_console()
    partitions = await status.update()
    with ExitStack() as stack:
        live = None
        if how.watch and not how.as_json:
            live = stack.enter_context(Live(table(queue, partitions), console=console, auto_refresh=False))
        while True:
            if how.as_json:
                for one in partitions:
                    print(json.dumps(one._asdict()), flush=True)
            elif live is None:
                console.print(table(queue, partitions))
            else:
                live.update(table(queue, partitions), refresh=True)
            if not how.watch:
                return
            await asyncio.sleep(how.every)
            partitions = await status.update()
