"""The extension of a tracker: reads the markers of each partition, and finds the records that are due.

Open markers are incomplete, so the committed offset is that of the first open marker. A restart reads no more than it
must.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.config.policies import TooLargeLetters
from aioparallel.engine.run.processor import Processor
from aioparallel.event_loop.steady_clock import steady_time
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.observe.health import Problem
from aioparallel.queues.kmq.marker_times import MarkerTimes
from aioparallel.queues.kmq.markers import read_marker
from aioparallel.queues.kmq.open_markers import OpenMarkers
from aioparallel.queues.kmq.redelivery import NotSent, Redeliverer
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record, TopicPartition

__all__ = ["Tracked", "Tracking"]

logger = logging.getLogger(__name__)

_CHECK_INTERVAL: Final = 0.2
"""Seconds between two checks for records that are due."""
_AGAIN: Final = 2.0
"""Seconds until a failed redelivery is tried again. Doubled with each try if the record cannot be read."""
_LOST: Final = 60.0
"""Seconds until an end marker counts as lost and is written again, and until a record is due again that the brokers
refuse, or that is being dead-lettered."""
_UNTOLD: Final = 2.0
"""If the end of a marker partition is older than this many seconds, it may have unread markers."""
_CLOSING: Final = 2.0
"""Seconds for running redeliveries at the end, and for dead letters when partitions are released."""
_AT_ONCE: Final = 1_000
"""Records of one partition in one redelivery."""


class Tracked:
    """One partition of markers, in one assignment."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.open = OpenMarkers()
        self.until: int | None = None
        """The first known end of the log. Before it is reached, it is not known which records have ended."""
        self.times = MarkerTimes()
        self.read_at = 0.0
        """When markers were last read, on the loop's clock."""
        self.under_way: asyncio.Task[None] | None = None
        self.unread: dict[int, int] = {}
        """How often a record could not be read, by offset."""
        self.settled: dict[int, int] = {}
        """The start markers of records that need only an end marker, by offset, until that one is read."""


class Tracking(Extension):
    """Tracks markers; no handler runs. An :class:`~aioparallel.group.admission.Admission`: a marker is complete when
    its record has ended."""

    redeliverer: Redeliverer
    _consumer: ConsumerContext
    _processor: Processor

    def __init__(
        self, topics: QueueTopics, max_redeliveries: int, use_now_after: float, too_large: TooLargeLetters
    ) -> None:
        self._topics = topics
        self._max_redeliveries = max_redeliveries
        self._use_now_after = use_now_after
        self._too_large: TooLargeLetters = too_large
        self.arrival_topics = (topics.markers,)
        self._is_working = False
        self.tracked: dict[Assignment, Tracked] = {}
        self.foreign = 0
        """Records of the marker topic that are not markers of their partition."""

    # -- the consumer -----------------------------------------------------------------------------------

    def attach(self, consumer: ConsumerContext) -> None:
        """Create the redeliverer."""
        if consumer.producer is None:
            raise ConfigurationError("producer", None, "is needed if the client is your own: copies are produced")
        self._consumer = consumer
        self.redeliverer = Redeliverer(
            consumer.client,
            consumer.producer,
            self._topics,
            consumer.group_id,
            self._max_redeliveries,
            self._too_large,
            consumer.options.skip_unreadable,
        )

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Check the topics of the queue. Raises TopicNotFound, ConfigurationError."""
        await self._topics.look_up(self._consumer, timeout)

    def problems(self) -> Iterable[Problem]:
        """Returns the problems of the redeliverer."""
        return self.redeliverer.problems() if self._consumer.is_running() else ()

    # -- admission --------------------------------------------------------------------------------------

    def admission(self, processor: Processor) -> Tracking:
        """Returns itself."""
        self._processor = processor
        return self

    def admit(self, assignment: Assignment, records: Sequence[Record[Any, Any]]) -> int:
        """Read these markers. Returns their bytes."""
        if not records:
            return 0
        tracked = self.tracked.get(assignment)
        if tracked is None:
            tracked = self.tracked[assignment] = Tracked(assignment)
        partition, open_markers = assignment.partition.partition, tracked.open
        complete: list[int] = []
        times, size, clock = tracked.times, 0, _clock()
        if assignment.arrivals is not None and (at := assignment.arrivals.all_read_at) > 0:
            times.all_read(int(at * 1_000))
        for record in records:
            size += record._size
            marker = read_marker(record.key, record.value)
            if marker is None or marker.partition != partition:
                self._note_foreign(record)
                complete.append(record.offset)
                continue
            written_at = times.written_at(record.timestamp, clock)
            if marker.lease is None:
                complete.append(record.offset)
                before = open_markers.ended(marker.offset)
            else:
                before = open_markers.started(record.offset, marker.offset, written_at + marker.lease)
            if before is not None:
                complete.append(before)
        assignment.complete_all(complete)
        tracked.read_at = asyncio.get_running_loop().time()
        return size

    def _note_foreign(self, record: Record[Any, Any]) -> None:
        self.foreign += 1
        if self.foreign in (1, 10) or self.foreign % 1_000 == 0:
            logger.warning(
                "%s is not a marker of its partition; %d such records were skipped",
                record,
                self.foreign,
                extra={"action": "foreign_marker"},
            )

    def waiting(self) -> tuple[int, int]:
        """Returns zeros: nothing waits."""
        return 0, 0

    @property
    def is_idle(self) -> bool:
        """Whether no redelivery is running."""
        return not any(tracked.under_way for tracked in self.tracked.values())

    async def settle(self, assignments: Collection[Assignment], seconds: float, cancel_grace: float) -> None:
        """Wait for running redeliveries: their end markers follow them, and the next owner would redeliver again.

        Dead letters get less time: their topic may be unavailable for long, and a rebalance blocks all trackers.
        """
        await self._processor.drain(list(assignments), 0, 0)  # nothing runs
        tasks = [t.under_way for s in assignments if (t := self.tracked.get(s)) is not None and t.under_way]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, _CLOSING)):
                await self.redeliverer.none_away.wait()

    drain = settle

    # -- records that are due ---------------------------------------------------------------------------

    async def work(self) -> None:
        """Redeliver records that are due, until cancelled. If it ends early, the run ends."""
        self._is_working = True
        try:
            while True:
                await asyncio.sleep(_CHECK_INTERVAL)
                for assignment, tracked in list(self.tracked.items()):
                    if not assignment.current:
                        del self.tracked[assignment]  # its running redelivery ends by itself
                    elif assignment.state is AssignmentState.OPEN:
                        self._check(tracked)
        finally:
            self._is_working = False
            tasks = [tracked.under_way for tracked in self.tracked.values() if tracked.under_way is not None]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=_CLOSING)

    def _check(self, tracked: Tracked) -> None:
        assignment, client, loop = tracked.assignment, self._consumer.client, asyncio.get_running_loop()
        if tracked.until is None:
            tracked.until = client.end_offset_seen(assignment.partition)
        if tracked.until is None or assignment.ledger.position < tracked.until or tracked.under_way is not None:
            return
        # Leases are compared with the time of the last marker, because markers may be read late. Once all are read, and
        # none arrived for some time, they are compared with the clock.
        is_recent = loop.time() - tracked.read_at < self._use_now_after
        now = tracked.times.latest if is_recent or not self._has_all(assignment) else _clock()
        due = tracked.open.due(now, _AT_ONCE)
        if due:
            tracked.under_way = loop.create_task(self._redeliver(tracked, due, now), name="aioparallel-redeliver")
            tracked.under_way.add_done_callback(lambda _: self._redelivered(tracked))

    def _redelivered(self, tracked: Tracked) -> None:
        """Check again at once: more records may be due."""
        tracked.under_way = None
        if self._is_working and tracked.assignment.state is AssignmentState.OPEN:
            self._check(tracked)

    def _has_all(self, assignment: Assignment) -> bool:
        """Whether all markers are read.

        The known end must be recent: if the leader is silent, or this process was suspended, there may be more.
        """
        client = self._consumer.client
        end, age = client.end_offset_seen(assignment.partition), client.since_end_seen(assignment.partition)
        return end is not None and assignment.ledger.position >= end and age is not None and age < _UNTOLD

    async def _redeliver(self, tracked: Tracked, due: Sequence[int], now: int) -> None:
        assignment, partition = tracked.assignment, tracked.assignment.partition.partition
        markers = {offset: tracked.open.marker_of(offset) for offset in due}

        def is_same(offset: int) -> bool:
            """Whether the record has neither ended nor been extended."""
            return tracked.open.marker_of(offset) == markers[offset]

        def is_wanted(offset: int) -> bool:
            return assignment.current and is_same(offset)

        def settled(offset: int) -> None:
            if (marker := markers[offset]) is not None:
                tracked.settled[offset] = marker

        offsets = []
        for offset in due:
            if tracked.settled.get(offset) == markers[offset]:
                self.redeliverer.ends.write(partition, offset)
            else:
                offsets.append(offset)
        missed = NotSent(offsets, ())
        try:
            missed = await self.redeliverer.redeliver(partition, offsets, is_wanted, settled)
        except Exception as error:
            self._consumer.fail(error)
            raise
        finally:
            waits = dict.fromkeys(missed.soon, _AGAIN)
            times = {offset: tracked.unread.pop(offset, 0) for offset in due}
            for offset in missed.unread:
                waits[offset] = min(_LOST, _AGAIN * 2.0 ** min(times[offset], 10))
            for offset in due:
                if is_same(offset):
                    if offset in missed.unread:
                        tracked.unread[offset] = times[offset] + 1
                    tracked.open.again(offset, now + int(waits.get(offset, _LOST) * 1_000))
            tracked.settled = {
                offset: marker for offset, marker in tracked.settled.items() if tracked.open.marker_of(offset) == marker
            }


def _clock() -> int:
    """Milliseconds since the epoch."""
    return int(steady_time() * 1_000)
