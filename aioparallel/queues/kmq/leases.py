"""The leases of a consumer's records: when they end, and how they are renewed.

Each handler has a whole lease to itself. The lease of a record that waits for its handler is renewed. So is the lease
of a record whose handler was called late, once the handler may need it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from aioparallel.config.handling import check_time
from aioparallel.config.policies import QueueVerdict, RetryPolicy
from aioparallel.delivery.producer import Producer, SentOutput
from aioparallel.engine.outcomes.failures import delay_of, wait_of
from aioparallel.engine.sources import Source
from aioparallel.queues.kmq.end_markers import EndMarkers
from aioparallel.queues.kmq.markers import output_of, start_of
from aioparallel.records.errors import (
    AioparallelError,
    ConfigurationError,
    ConsumerStateError,
    NotToBlame,
    ProduceFailed,
    RetryLater,
)
from aioparallel.records.history import history_of
from aioparallel.records.record import Outgoing, Produced, Record, TopicPartition
from aioparallel.records.user_errors import repr_of

__all__ = ["Lease", "LeaseFailed", "LeaseOver", "Leased", "Leases", "RecordLease", "Redelivery", "check_seconds"]

Lease = float | Callable[[Record[Any, Any]], float]
"""Seconds, or a function that returns them for a record."""

_SHORTEST: Final = 0.001
"""Seconds; markers count milliseconds."""
_CHECKS: Final = 4
"""Checks within the shortest lease that waits. A lease is renewed at its half, so two checks come before its end."""


def check_seconds(name: str, seconds: float) -> None:
    """Check the length of a lease. Raises ConfigurationError."""
    check_time(name, seconds)
    if seconds < _SHORTEST:
        raise ConfigurationError(name, seconds, "must be 0.001 seconds or more: markers count milliseconds")


class LeaseOver(AioparallelError):
    """The lease ended before the handler was called, so the record is redelivered."""

    def __init__(self) -> None:
        super().__init__(
            "its lease ended before its handler was called: handlers hang or take longer than the lease, or the "
            "consumer was paused or blocked for that long"
        )


class LeaseFailed(AioparallelError):
    """The function ``lease`` has returned no lease for the record, or the record cannot be deserialised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the function lease has failed for it: {repr_of(error)}")
        self.__cause__ = error


class RecordLease:
    """The lease of one record. Times are those of the event loop."""

    __slots__ = ("ends", "extensions", "failure", "is_waiting", "renewed_until", "seconds")

    def __init__(self, seconds: float, ends: float, failure: LeaseFailed | None = None) -> None:
        self.seconds = seconds
        self.ends = ends
        self.extensions = 0
        """Unacknowledged extensions. A renewal after one would replace it, because the last marker counts."""
        self.failure = failure
        """Fails the record when its turn comes."""
        self.is_waiting = True
        """Its handler was not called yet, or it waits for capacity or a delay."""
        self.renewed_until = 0.0
        """While it waits: no longer renewed from then on. While its handler runs: when the handler's lease must not end
        before; a marker for it is written once the handler may need it."""


class Leased(Source):
    """The leased records of one partition. They end here, even if the partition is assigned to another consumer."""

    __slots__ = ("_leases", "_place", "_time", "leases", "partition")

    def __init__(self, partition: TopicPartition, leases: Leases) -> None:
        super().__init__(partition)
        self._place = partition
        self.partition = partition.partition
        self.leases: dict[int, RecordLease] = {}
        """The leases of records that have not ended, by offset."""
        self._leases = leases
        self._time = asyncio.get_running_loop().time  # asking for the loop is a system call each time
        self.complete = self._ended
        self.complete_all = self._all_ended
        self.release = self._released

    def lease_left(self, offset: int) -> float:
        """Seconds; infinite if the record has no lease."""
        lease = self.leases.get(offset)
        return math.inf if lease is None else lease.ends - self._time()

    def begin(self, offset: int) -> None:
        """The handler is about to be called. Raises LeaseOver, LeaseFailed."""
        lease = self.leases.get(offset)
        if lease is None:
            return
        if lease.failure is not None:
            raise lease.failure
        was_waiting, lease.is_waiting = lease.is_waiting, False
        now = self._time()
        left = lease.ends - now
        if left <= 0:
            raise LeaseOver
        if not was_waiting:
            return  # another attempt
        lease.renewed_until = 0.0
        if left < lease.seconds / 2 and not lease.extensions:
            self._leases.renew(self, offset, lease.seconds)
        elif left < lease.seconds:
            lease.renewed_until = now + lease.seconds
            self._leases.check_within(lease.seconds)

    def wait(self, offset: int) -> None:
        """The record waits for capacity or a delay, and has not failed: its lease is renewed as long as that takes."""
        lease = self.leases[offset]
        lease.is_waiting, lease.renewed_until = True, math.inf
        self._leases.check_within(lease.seconds)

    def _ended(self, offset: int) -> None:
        left = self.lease_left(offset)
        if left < 0:
            self._leases.ends.note_late(self._place, offset, -left)
        self._released(offset)
        self._leases.ends.write(self.partition, offset)

    def _all_ended(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._ended(offset)

    def _released(self, offset: int) -> None:
        self.leases.pop(offset, None)


class Leases:
    """All leases of a consumer. ``may_start()``: whether handlers start. While they do not, leases of waiting records
    are not renewed, so other consumers get these records. Make it within the running loop."""

    def __init__(self, producer: Producer, topic: str, may_start: Callable[[], bool]) -> None:
        self._producer = producer
        self._topic = topic
        self._may_start = may_start
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.ends = EndMarkers(producer, topic)
        self.sources: dict[TopicPartition, Leased] = {}

    def source_of(self, partition: TopicPartition) -> Leased:
        """Returns the leased records of a partition."""
        source = self.sources.get(partition)
        if source is None:
            source = self.sources[partition] = Leased(partition, self)
        return source

    async def extend(self, record: Record[Any, Any], seconds: float) -> None:
        """Set the lease of a record to end in so many seconds. Raises ProduceFailed if it is not known whether the
        marker is written, ConsumerStateError if the record has no lease."""
        source = getattr(record, "_source", None)  # missing if the record was never read
        lease = source.leases.get(record.offset) if isinstance(source, Leased) else None
        if not isinstance(source, Leased) or lease is None:
            raise ConsumerStateError(f"{record.place} has no lease here that could be extended")
        until = self._loop.time() + seconds

        def ended(result: Sequence[Produced] | ProduceFailed) -> None:
            lease.extensions -= 1
            if not isinstance(result, ProduceFailed):
                lease.ends = until
            if not done.done():  # else the caller was cancelled
                done.set_result(result)

        done: asyncio.Future[Sequence[Produced] | ProduceFailed] = self._loop.create_future()
        lease.extensions += 1
        self._producer.send((self._marker(source, record.offset, seconds),), ended)
        if isinstance(result := await done, ProduceFailed):
            raise result

    def renew(self, source: Leased, offset: int, seconds: float) -> None:
        """Write a start marker with this lease, and do not wait for it: if it is lost, the lease ends as before."""
        until = self._loop.time() + seconds

        def ended(result: Produced | ProduceFailed) -> None:
            lease = source.leases.get(offset)
            if lease is not None and not isinstance(result, ProduceFailed):
                lease.ends = max(lease.ends, until)
                self.check_within(lease.seconds)  # it may have ended before, and so have the checks

        self._producer.send_one(SentOutput(self._marker(source, offset, seconds), ended))

    def _marker(self, source: Leased, offset: int, seconds: float) -> Outgoing:
        return output_of(self._topic, source.partition, offset, start_of(int(seconds * 1_000)))

    def check_within(self, shortest: float) -> None:
        """Records wait, or were called late. ``shortest``: seconds of the shortest of their leases."""
        due = self._loop.time() + shortest / _CHECKS
        if self._timer is not None and self._timer.when() <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._check)

    def close(self) -> None:
        """Renew no more leases of waiting records, because the run ends."""
        self._is_closed = True

    def _check(self) -> None:
        self._timer = None
        now, shortest = self._loop.time(), math.inf
        may_start = self._may_start() and not self._is_closed
        for source in self.sources.values():
            for offset, lease in source.leases.items():
                if lease.ends <= now:
                    continue
                if lease.is_waiting:
                    if self._is_closed or now >= lease.renewed_until:
                        continue
                    seconds, may_renew = lease.seconds, may_start and not source.paused
                elif lease.ends < lease.renewed_until:
                    seconds, may_renew = lease.renewed_until - now, True
                else:
                    continue
                shortest = min(shortest, lease.seconds)
                if may_renew and not lease.extensions and lease.ends - now < lease.seconds / 2:
                    self.renew(source, offset, seconds)
        if shortest < math.inf:
            self.check_within(shortest)


class Redelivery:
    """Decides about a failed record: another attempt within its lease, or its release and redelivery. A record that
    waits has not failed, and keeps its lease; with ``RetryPolicy(count_waits=True)``, waiting is failing."""

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self.count_waits = retry.count_waits

    def __call__(self, record: Record[Any, Any], error: Exception, attempts: int) -> QueueVerdict:
        """A :data:`~aioparallel.config.policies.RetryFunction`."""
        source, history, now = record._source, history_of(record), asyncio.get_running_loop().time()
        assert isinstance(source, Leased)
        left = source.lease_left(record.offset)
        if left <= 0 or isinstance(error, LeaseOver | LeaseFailed):
            return "release"
        if isinstance(error, RetryLater) and (isinstance(error, NotToBlame) or not self.count_waits):
            delay = wait_of(self._retry, history, error, now)
            if delay is None:
                return "release"
            source.wait(record.offset)
            return delay
        delay = delay_of(self._retry, history, error, attempts, now)
        return "release" if delay is None or delay >= left else delay
