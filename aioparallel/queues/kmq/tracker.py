"""RedeliveryTracker: reads the markers, and redelivers records that were started and not ended in time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from aioparallel.config.handling import Ordering, check_time
from aioparallel.config.option_docs import takes_options
from aioparallel.config.options import Options
from aioparallel.config.policies import Producing, TooLargeLetters, check_too_large
from aioparallel.config.security import Security
from aioparallel.consumer import ParallelConsumer
from aioparallel.delivery.producer import Producer
from aioparallel.group.client import Client
from aioparallel.observe.health import Health, ProblemKind
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.queues.kmq.tracking import Tracking
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record

__all__ = ["RedeliveryTracker", "TrackedPartition", "TrackerStats"]

_AT_ONCE = 5_000
"""Markers in one fetch, at most: processing them takes a few hundredths of a second."""


class TrackedPartition(NamedTuple):
    """One partition of the queue."""

    partition: int
    open: int
    """Leased records, as far as the markers are read."""
    lag: int | None
    """Markers that are unread or open; None: not known."""


class TrackerStats(NamedTuple):
    """The statistics of a tracker since its start."""

    open: int
    """Leased records."""
    redelivered: int
    """Records that were redelivered."""
    dead_lettered: int
    """Records that were dead-lettered."""
    gone: int
    """Records that were due for redelivery and that the queue no longer holds."""
    foreign: int
    """Records of the marker topic that are not markers."""
    lost_ends: int
    """End markers that could not be written."""
    partitions: tuple[TrackedPartition, ...]
    """The partitions of this tracker."""
    cut_letters: int = 0
    """Dead letters that lack a part of their record, because it is too large for their topic."""


@takes_options(Options)
class RedeliveryTracker:
    """Redelivers records that a consumer of a queue started and did not end in time.

    A redelivered record is appended to the same partition. After ``max_redeliveries`` it is dead-lettered. Any number
    of trackers share the partitions.

    ::

        async with RedeliveryTracker("jobs", bootstrap_servers="localhost:9092", group_id="trackers") as tracker:
            await tracker.run()

    ``topic``: the queue.
    ``group_id``: the consumer group of the trackers.
    ``bootstrap_servers``: ``"host:port"``, several separated by commas.
    ``marker_topic``: the topic of the markers, with at least as many partitions as the queue. None: the name of the
    queue with ``-markers``.
    ``dead_letter``: the topic for records that were delivered too often. None: the name of the queue with
    ``__undelivered``.
    ``dead_letter_too_large``: what happens to a record that is too large for that topic, as in
    :class:`~aioparallel.FailurePolicy`: it goes there without its value, with a part of it, or waits. A record that is
    too large for the queue itself, with the count of its redeliveries, goes there at once. With ``"hold"`` both wait,
    and are tried once a minute.
    ``max_redeliveries``: maximum number of redeliveries of one record; 0: none.
    ``use_now_after``: seconds without a new marker in a partition after which leases are compared with the clock.
    Before, they are compared with the time of the last marker, so that a tracker that is behind redelivers no record
    whose end marker is unread.
    ``producing``: how copies, dead letters and end markers are produced; copies of more than 1 MiB need
    ``Producing(client_options={"max_request_size": ...})``. ``on_produced`` is not called.
    ``skip_unreadable``: unreadable batches of the marker topic or of the queue that are skipped, each as ``(topic,
    partition, offset)``; see :class:`~aioparallel.Options`.
    ``client``, ``producer``: other Kafka clients in place of aiokafka, e.g. the in-memory ones.

    Topics and formats are those of softwaremill's KMQ 0.3.2, and a tracker of either serves consumers of both. Unlike
    KMQ's, this tracker keeps headers. It resumes at the first open marker. The last start marker of a record counts, so
    a lease can be extended. Records that the queue no longer holds are reported as gone.

    Raises ConfigurationError.
    """

    def __init__(
        self,
        topic: str,
        *,
        group_id: str,
        bootstrap_servers: str = "localhost:9092",
        marker_topic: str | None = None,
        dead_letter: str | None = None,
        dead_letter_too_large: TooLargeLetters = "drop_value",
        max_redeliveries: int = 3,
        use_now_after: float = 1.0,
        security: Security | None = None,
        client_options: Mapping[str, object] | None = None,
        session_timeout: float | None = None,
        heartbeat_interval: float | None = None,
        group_protocol: Literal["classic", "consumer", "auto"] = "auto",
        group_remote_assignor: str | None = None,
        producing: Producing | None = None,
        skip_unreadable: Collection[tuple[str, int, int]] = (),
        client: Client | None = None,
        producer: Producer | None = None,
    ) -> None:
        given: object = max_redeliveries
        if type(given) is not int or given < 0:
            raise ConfigurationError("max_redeliveries", given, "must be 0 or more")
        check_time("use_now_after", use_now_after, zero=True)
        check_too_large("dead_letter_too_large", dead_letter_too_large)
        self.topics = QueueTopics(topic, marker_topic, dead_letter)
        """The topics of the queue."""
        self._tracking = Tracking(self.topics, max_redeliveries, use_now_after, dead_letter_too_large)
        self._markers = ParallelConsumer[bytes, bytes](
            self.topics.markers,
            group_id=group_id,
            ordering=Ordering.UNORDERED,
            max_buffered=_AT_ONCE,
            extensions=(self._tracking,),
            bootstrap_servers=bootstrap_servers,
            security=security,
            client_options={} if client_options is None else client_options,
            group_protocol=group_protocol,
            group_remote_assignor=group_remote_assignor,
            session_timeout=session_timeout,
            heartbeat_interval=heartbeat_interval,
            producing=Producing() if producing is None else producing,
            skip_unreadable=skip_unreadable,
            client=client,
            producer=producer,
        )

    async def __aenter__(self) -> Self:
        """Connect and look up the topics. Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized, TopicNotFound,
        ConfigurationError."""
        await self._markers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commit and leave the group."""
        await self._markers.__aexit__(kind, error, traceback)

    async def run(self) -> None:
        """Run until :meth:`stop`. Raises any error that ends the run."""
        await self._markers.run(_no_handler)

    def run_sync(self) -> None:
        """Open, run and close in a new event loop, until SIGINT or SIGTERM."""
        self._markers.run_sync(_no_handler)

    def stop(self, drain: bool = True) -> None:
        """End :meth:`run`. Without ``drain``, redeliveries that are under way are not waited for. May be called at any
        time, more than once, from any thread."""
        self._markers.stop(drain)

    def stats(self) -> TrackerStats:
        """Returns the current statistics. Raises ConsumerStateError before the run."""
        stats = self._markers.stats()
        tracking, redeliverer = self._tracking, self._tracking.redeliverer
        held = {assignment.partition.partition: len(one.open) for assignment, one in tracking.tracked.items()}
        partitions = tuple(
            TrackedPartition(one.partition, held.get(one.partition, 0), one.lag) for one in stats.partitions
        )
        return TrackerStats(
            sum(one.open for one in partitions),
            redeliverer.redelivered,
            redeliverer.dead_lettered,
            redeliverer.gone,
            tracking.foreign,
            redeliverer.ends.lost,
            partitions,
            redeliverer.cut.count,
        )

    def health(self) -> Health:
        """Like :meth:`ParallelConsumer.health() <aioparallel.ParallelConsumer.health>`."""
        health = self._markers.health()
        # A truncated offset map only means that more markers are read again.
        problems = tuple(problem for problem in health.problems if problem.kind is not ProblemKind.MAP_CUT)
        return Health(running=health.running, problems=problems, joined=health.joined)


async def _no_handler(record: Record[Any, Any]) -> None:
    raise NotImplementedError
