"""The extension that leases records: a record runs when its start marker is written, and a tracker runs as well.

Once the start marker of a record is acknowledged, the marker is responsible for the record: without an end marker, the
record is redelivered. So its offset is complete, and its handler continues even if the partition is revoked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from math import ceil
from typing import Any, Final, NamedTuple

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.delivery.producer import Producer
from aioparallel.engine.run.processor import Processor
from aioparallel.group.assignment import Assignment
from aioparallel.handlers.stack import deserialise
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.queues.kmq.leases import Lease, Leased, LeaseFailed, Leases, RecordLease, check_seconds
from aioparallel.queues.kmq.markers import output_of, start_of
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.queues.kmq.tracker import RedeliveryTracker
from aioparallel.records.errors import ConfigurationError, ConsumerStateError, ProduceFailed
from aioparallel.records.history import refuse_undecodable
from aioparallel.records.record import Produced, Record, TopicPartition
from aioparallel.records.user_errors import RAISED, refuse_coroutine

__all__ = ["Leasing"]

logger = logging.getLogger(__name__)

_RETRY_DELAY: Final = 1.0
"""Seconds until start markers that could not be written are written again."""
_CHECK_INTERVAL: Final = 0.02
"""Seconds between two checks for records that are left while a run ends."""
_IF_FAILED: Final = 30.0
"""Seconds of the lease of a record for which the function ``lease`` has failed."""


class _Portion(NamedTuple):
    """Records of one fetch of one partition, until their start markers are acknowledged."""

    assignment: Assignment
    records: Sequence[Record[Any, Any]]
    size: int


class Leasing(Extension):
    """Leases records; an :class:`~aioparallel.group.admission.Admission`.

    ``new_tracker``: creates the tracker that runs with the consumer; None: there is none.
    """

    _consumer: ConsumerContext
    _producer: Producer
    _processor: Processor
    _prepare: Callable[[Record[Any, Any]], None]

    def __init__(
        self,
        topics: QueueTopics,
        lease: Lease,
        new_tracker: Callable[[ConsumerContext], RedeliveryTracker] | None,
    ) -> None:
        self._topics = topics
        self._lease = lease
        self._new_tracker = new_tracker
        self.tracker: RedeliveryTracker | None = None
        self._of_tracker = contextlib.AsyncExitStack()
        self._leases: Leases | None = None
        self._sending: Counter[Assignment] = Counter()  # portions
        self._records = self._size = 0  # of these portions
        self._changed = asyncio.Event()  # one of these portions has ended
        self._retries: set[asyncio.TimerHandle] = set()
        self._unmarked: dict[TopicPartition, str] = {}  # why the last start markers of a partition were not written

    # -- the consumer -----------------------------------------------------------------------------------

    def attach(self, consumer: ConsumerContext) -> None:
        """Create the tracker. Raises ConfigurationError."""
        if consumer.producer is None:
            raise ConfigurationError("producer", None, "is needed if the client is your own: markers are produced")
        self._consumer = consumer
        self._producer = consumer.producer
        if self._new_tracker is not None:
            self.tracker = self._new_tracker(consumer)

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Check the topics of the queue. Raises TopicNotFound, ConfigurationError."""
        await self._topics.look_up(self._consumer, timeout)

    async def start(self) -> None:
        """Connect the tracker."""
        if self.tracker is not None:
            await self._of_tracker.enter_async_context(self.tracker)

    async def work(self) -> None:
        """Run the tracker. If it ends early, the run ends, because nothing would be redelivered."""
        if self.tracker is not None:
            await self.tracker.run()

    async def stop(self) -> None:
        """Close the tracker."""
        await self._of_tracker.aclose()

    def may_attempt(self, record: Record[Any, Any]) -> None:
        """Check the lease. Raises LeaseOver, LeaseFailed."""
        source = record._source
        assert isinstance(source, Leased)
        source.begin(record.offset)

    async def extend(self, record: Record[Any, Any], seconds: float) -> None:
        """Write a start marker with a lease of so many seconds from now. Raises ProduceFailed, ConsumerStateError."""
        if self._leases is None:
            raise ConsumerStateError("this consumer does not run, so there is no lease to be extended")
        await self._leases.extend(record, seconds)

    def problems(self) -> Iterable[Problem]:
        """Returns the partitions whose start markers cannot be written, and the problems of the tracker."""
        if not self._consumer.is_running():
            return ()
        assigned = self._consumer.partitions()
        unmarked = [
            Problem(ProblemKind.NOT_MARKED, f"no start markers for {reason}; they do not run")
            for partition, reason in self._unmarked.items()
            if partition in assigned
        ]
        return (*unmarked, *(() if self.tracker is None else self.tracker.health().problems))

    # -- admission --------------------------------------------------------------------------------------

    def admission(self, processor: Processor) -> Leasing:
        """Returns itself: it writes start markers before records run."""
        options, scheduler = self._consumer.options, processor.scheduler
        self._processor = processor
        self._prepare = partial(deserialise, options.key_deserializer, options.value_deserializer)
        self._leases = Leases(self._producer, self._topics.markers, lambda: not scheduler.paused)
        return self

    def admit(self, assignment: Assignment, records: Sequence[Record[Any, Any]]) -> int:
        """Write start markers for these records. Returns their bytes."""
        if not records:
            return 0
        size = sum([record._size for record in records])
        self._records += len(records)
        self._size += size
        self._sending[assignment] += 1
        self._mark(_Portion(assignment, records, size))
        return size

    def _mark(self, portion: _Portion) -> None:
        topic, partition = self._topics.markers, portion.assignment.partition.partition
        now, lease, records = asyncio.get_running_loop().time(), self._lease, portion.records
        if callable(lease):
            leases = [self._called(lease, record, now) for record in records]
            values = [start_of(int(one.seconds * 1_000)) for one in leases]
        else:
            leases = [RecordLease(lease, now + lease) for _ in records]
            values = [start_of(int(lease * 1_000))] * len(records)
        markers = [
            output_of(topic, partition, record.offset, value) for record, value in zip(records, values, strict=True)
        ]
        self._producer.send(markers, partial(self._acknowledged, portion, leases))

    def _called(self, lease: Callable[[Record[Any, Any]], float], record: Record[Any, Any], now: float) -> RecordLease:
        """Call the function. If it fails, only this record fails, when its turn comes."""
        try:
            refuse_undecodable(record)
            self._prepare(record)
            seconds = lease(record)
            refuse_coroutine(seconds)
            check_seconds("lease", seconds)
        except RAISED as error:
            return RecordLease(_IF_FAILED, now + _IF_FAILED, LeaseFailed(error))
        return RecordLease(seconds, now + seconds)

    def _acknowledged(
        self, portion: _Portion, leases: Sequence[RecordLease], result: Sequence[Produced] | ProduceFailed
    ) -> None:
        """All start markers of a portion are acknowledged, or one has failed."""
        assignment, failure = portion.assignment, result if isinstance(result, ProduceFailed) else None
        if failure is not None:
            self._unmarked[assignment.partition] = (
                f"{len(portion.records)} records of {assignment.partition}: {failure}"
            )
        elif self._unmarked:
            self._unmarked.pop(assignment.partition, None)
        if not assignment.current:
            self._forget(portion)  # none of it was committed, so the next owner reads it
        elif failure is None:
            self._run(portion, leases)
        elif failure.passing:
            logger.warning(
                "start markers of %d records of %s could not be written (%s); the write is repeated",
                len(portion.records),
                assignment.partition,
                failure,
                extra={"action": "start_markers_retry"},
            )
            self._mark_later(portion)
        else:
            self._consumer.fail(failure)
            self._forget(portion)

    def _run(self, portion: _Portion, leases: Sequence[RecordLease]) -> None:
        assignment = portion.assignment
        assert self._leases is not None
        self._end(portion)
        offsets = [record.offset for record in portion.records]
        # After so many leases, every record that was read before this one has had a handler for one lease.
        max_leases = 1 + ceil(self._consumer.options.max_buffered / self._processor.scheduler.slots)
        now = asyncio.get_running_loop().time()
        for lease in leases:
            lease.renewed_until = now + max_leases * lease.seconds
        source = self._leases.source_of(assignment.partition)
        source.leases.update(zip(offsets, leases, strict=True))
        self._leases.check_within(min([lease.seconds for lease in leases]))
        assignment.complete_all(offsets)
        self._processor.admit(source, portion.records)

    def _forget(self, portion: _Portion) -> None:
        """Release the capacity of a portion that does not run here, and check for the end of the run: no worker does
        either."""
        self._end(portion)
        signals = self._processor.scheduler.counters.signals
        signals.taken()
        signals.idle()

    def _end(self, portion: _Portion) -> None:
        assignment = portion.assignment
        self._sending[assignment] -= 1
        if not self._sending[assignment]:
            del self._sending[assignment]
        self._records -= len(portion.records)
        self._size -= portion.size
        self._changed.set()

    def _mark_later(self, portion: _Portion) -> None:
        def again() -> None:
            self._retries.discard(timer)
            if portion.assignment.current:
                self._mark(portion)
            else:
                self._forget(portion)

        timer = asyncio.get_running_loop().call_later(_RETRY_DELAY, again)
        self._retries.add(timer)

    def waiting(self) -> tuple[int, int]:
        """Returns the records and bytes that wait for start markers or for handlers."""
        sources = () if self._leases is None else self._leases.sources.values()
        return (
            self._records + sum([source.buffered for source in sources]),
            self._size + sum([source.buffered_bytes for source in sources]),
        )

    @property
    def is_idle(self) -> bool:
        """Whether all records that were read have ended."""
        return not self._records and not self._processor.scheduler.unfinished

    async def settle(self, assignments: Collection[Assignment], seconds: float, cancel_grace: float) -> None:
        """Read nothing more of these assignments, and wait for their start markers. Handlers continue."""
        ends = asyncio.get_running_loop().time() + seconds
        # Before the wait: records that are read from now on belong to the next owner, and must not prolong the wait.
        await self._processor.drain(list(assignments), 0, 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends):
                while any(self._sending[assignment] for assignment in assignments):
                    self._changed.clear()
                    await self._changed.wait()

    async def drain(self, assignments: Collection[Assignment], seconds: float, cancel_grace: float) -> None:
        """Run the buffered records too, within the time: other consumers would get them only after their leases.
        Records that must wait longer are released to other consumers."""
        leases, scheduler, time = self._leases, self._processor.scheduler, asyncio.get_running_loop().time
        assert leases is not None
        began = time()
        await self.settle(assignments, seconds, cancel_grace)
        try:
            while scheduler.unfinished and time() - began < seconds:
                if self._processor.only_waits(began + seconds):
                    break
                scheduler.resume()  # repeated, because another stop() pauses it
                self._processor.notify()
                await asyncio.sleep(_CHECK_INTERVAL)
        finally:
            scheduler.pause()
            leases.close()
            for timer in self._retries:
                timer.cancel()
        left = max(0.0, seconds - (time() - began))
        await self._processor.drain(
            list(leases.sources.values()), left, cancel_grace, lasted=seconds, afterwards="when their leases have ended"
        )
