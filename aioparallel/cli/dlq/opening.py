"""A connection to a topic of dead letters: its partitions, where they begin and end, and its group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aioparallel.cli.cluster import connecting_options
from aioparallel.cli.dlq.holding import HEARTBEAT_INTERVAL, REBALANCE_TIMEOUT, SESSION_TIMEOUT, Claim, Hold, one_holder
from aioparallel.cli.dlq.marks import Marks
from aioparallel.cli.dlq.options import Access
from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.errors import ConfigurationError, TopicNotFound
from aioparallel.group.client import Client, Fetched, Span
from aioparallel.group.unreadable import read_past
from aioparallel.records import TopicPartition

__all__ = [
    "CONNECT_TIMEOUT",
    "REQUEST_TIMEOUT",
    "STOP_TIMEOUT",
    "OpenTopic",
    "open_topic",
]

CONNECT_TIMEOUT: Final = 10.0
REQUEST_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 5.0
MARKS_RETENTION: Final = 10 * 365 * 86_400.0
# Seconds. The last: Kafka forgets the offsets of a group without members after a week unless a commit says otherwise.


@dataclass(frozen=True, slots=True)
class OpenTopic:
    """What is known of the topic when a command begins. ``marks`` are those of the group at that moment, ``hold`` is
    to be taken before they are changed.

    ``beginnings`` and ``ends`` are by partition: the first offset that is still there, and the offset behind the last
    one that is decided (no open transaction). What is written after that is left to the next command.
    ``options``: of aiokafka's consumer, as they were given. ``skip``: batches that are passed over where they cannot be
    read.
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
        """What to read of each partition: everything, or from the first letter on that may be open.

        ``within`` narrows it to some offsets.
        """
        spans = {}
        for number, end in self.ends.items():
            start = self.beginnings[number]
            if not settled_too:
                start = max(start, self.marks[number].base)
            narrowed = Span(start, end) if within is None else Span(max(start, within.start), min(end, within.end))
            spans[number] = Span(narrowed.start, max(narrowed))
        return spans

    def read(self, spans: Mapping[int, Span]) -> aclosing[AsyncGenerator[Fetched, None]]:
        """The records of these spans; ``async with`` closes the connection."""
        places = {TopicPartition(self.name, number): span for number, span in spans.items()}
        return aclosing(read_past(self.client, places, self.skip))


@asynccontextmanager
async def open_topic(topic: str, partitions: Collection[int], access: Access) -> AsyncIterator[OpenTopic]:
    """Connect; ``partitions`` narrows it to these numbers, none means all.

    Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized, TopicNotFound, ConfigurationError for a wrong option
    or a partition that does not exist, and TimeoutError.
    """
    options, claim = connecting_options(access), Claim()
    _ = access.skipped  # what is wrong with it is said before anything is connected
    ours = {"isolation_level": "read_committed", "partition_assignment_strategy": [one_holder(claim)]}
    # A static member would take the place of another one of its name, instead of waiting for it.
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
    hold = Hold(client, topic, access.group, claim)
    try:
        await client.start(CONNECT_TIMEOUT)
        found = await client.partitions([topic], REQUEST_TIMEOUT)
        if not found:
            raise TopicNotFound([topic], access.bootstrap_servers)
        wanted = sorted({TopicPartition(topic, number) for number in partitions} or found)
        if missing := set(wanted) - found:
            raise ConfigurationError(
                "partition", min(missing).partition, f"{topic} has the partitions 0 to {len(found) - 1}"
            )
        beginnings = await client.beginning_offsets(wanted, REQUEST_TIMEOUT)
        ends = await client.end_offsets(wanted, REQUEST_TIMEOUT)
        committed = await client.committed(wanted, REQUEST_TIMEOUT)
        marks = Marks(client, access.group, committed, beginnings, hold)
        begins, behind = ({tp.partition: offsets[tp] for tp in wanted} for offsets in (beginnings, ends))
        yield OpenTopic(topic, client, options, marks, hold, begins, behind, access.skipped)
    finally:
        await hold.release()
        await client.stop(STOP_TIMEOUT)
