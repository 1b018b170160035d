"""A connection to a topic of dead letters: its partitions, their first and last offsets, and the group's marks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aioparallel.cli.cluster import connecting_options
from aioparallel.cli.dlq.commands import Access
from aioparallel.cli.dlq.holding import HEARTBEAT_INTERVAL, REBALANCE_TIMEOUT, SESSION_TIMEOUT, Hold
from aioparallel.cli.dlq.marks import Marks
from aioparallel.cli.reading_client import CONNECT_TIMEOUT, REQUEST_TIMEOUT, STOP_TIMEOUT, chosen_partitions
from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.group.client import Client, Fetched, Span
from aioparallel.group.unreadable import read_past
from aioparallel.records.record import TopicPartition

__all__ = ["OpenTopic", "open_topic"]

MARKS_RETENTION: Final = 10 * 365 * 86_400.0
"""Seconds. By default Kafka deletes the offsets of a group without members after a week."""


@dataclass(frozen=True, slots=True)
class OpenTopic:
    """The state of the topic when a command begins. ``marks``: the group's marks at that time; take ``hold`` before
    changing them.

    ``beginnings``, ``ends``: by partition the first offset, and the last stable offset, where open transactions begin.
    Later records are left to the next command. ``options``: aiokafka's consumer options. ``skip``: batches to skip if
    they cannot be read.
    """

    name: str
    client: Client
    options: Mapping[str, object]
    marks: Marks
    hold: Hold
    beginnings: Mapping[int, int]
    ends: Mapping[int, int]
    skip: Collection[tuple[str, int, int]] = ()

    def spans(self, *, settled_too: bool, within: Span | None = None) -> dict[int, Span]:
        """The offsets to read of each partition: all, or from the first letter on that may be open. ``within``: only
        offsets within this span."""
        spans = {}
        for number, end in self.ends.items():
            start = self.beginnings[number]
            if not settled_too:
                start = max(start, self.marks[number].base)
            narrowed = Span(start, end) if within is None else Span(max(start, within.start), min(end, within.end))
            spans[number] = Span(narrowed.start, max(narrowed))
        return spans

    def read(self, spans: Mapping[int, Span]) -> aclosing[AsyncGenerator[Fetched, None]]:
        """The records of these spans; use it in ``async with``, which closes the fetcher."""
        places = {TopicPartition(self.name, number): span for number, span in spans.items()}
        return aclosing(read_past(self.client, places, self.skip))


@asynccontextmanager
async def open_topic(topic: str, partitions: Collection[int], access: Access) -> AsyncIterator[OpenTopic]:
    """Connect. ``partitions``: only these numbers; empty means all.

    Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized, TopicNotFound, ConfigurationError for a wrong option
    or a partition that does not exist, and TimeoutError.
    """
    options, hold = connecting_options(access), Hold(topic, access.group)
    _ = access.skipped  # raises before anything is connected
    ours = {"isolation_level": "read_committed", "partition_assignment_strategy": [hold.assignor]}
    # A static member would fence another one of its name, instead of waiting for it.
    given = {name: value for name, value in options.items() if name != "group_instance_id"}
    client: Client = AiokafkaClient(
        access.bootstrap_servers,
        access.group,
        session_timeout=SESSION_TIMEOUT,
        heartbeat_interval=HEARTBEAT_INTERVAL,
        rebalance_timeout=REBALANCE_TIMEOUT,
        client_options={**given, **ours},
        offset_retention=MARKS_RETENTION,
    )
    try:
        await client.start(CONNECT_TIMEOUT)
        wanted = sorted(await chosen_partitions(client, topic, partitions, access.bootstrap_servers))
        beginnings = await client.beginning_offsets(wanted, REQUEST_TIMEOUT)
        ends = await client.end_offsets(wanted, REQUEST_TIMEOUT)
        committed = await client.committed(wanted, REQUEST_TIMEOUT)
        marks = Marks(client, access.group, committed, beginnings, hold)
        begins, behind = ({tp.partition: offsets[tp] for tp in wanted} for offsets in (beginnings, ends))
        yield OpenTopic(topic, client, options, marks, hold, begins, behind, access.skipped)
    finally:
        await hold.release()
        await client.stop(STOP_TIMEOUT)
