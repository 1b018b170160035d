"""Records that a consumer has under way, and until when they are its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from aioparallel.config.handling import check_time
from aioparallel.config.policies import QueueVerdict, RetryPolicy
from aioparallel.engine.outcomes.gates import NoRoom
from aioparallel.engine.sources import Source
from aioparallel.queues.kmq.end_markers import EndMarkers
from aioparallel.records.errors import AioparallelError, ConfigurationError, RetryLater
from aioparallel.records.history import History, history_of
from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.user_errors import repr_of

__all__ = ["Lease", "LeaseFailed", "LeaseOver", "Leased", "Redelivery", "check_lease", "check_seconds"]

Lease = float | Callable[[Record[Any, Any]], float]
"""Seconds, or a function of the record that gives them."""

# The shortest that a marker can say.
_SHORTEST: Final = 0.001


def check_seconds(name: str, seconds: float) -> None:
    """Of a lease. Raises ConfigurationError."""
    check_time(name, seconds)
    if seconds < _SHORTEST:
        raise ConfigurationError(name, seconds, "must be 0.001 seconds or more: markers count milliseconds")


class LeaseOver(AioparallelError):
    """In place of an attempt: the record's lease was over before its handler was called, and another gets it."""

    def __init__(self) -> None:
        super().__init__(
            "its lease was over before its handler was called: handlers hang, or take longer than the lease; or the "
            "consumer was paused, or held, for so long"
        )


class LeaseFailed(AioparallelError):
    """In place of an attempt: the function ``lease`` has no lease for the record, or its bytes cannot be read."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the function lease has failed for it: {repr_of(error)}")
        self.__cause__ = error


class Leased(Source):
    """The records of one partition of the queue, whoever has it now: what was begun here ends here. Made within the
    running loop."""

    __slots__ = (
        "_ends", "_on_wait", "_place", "_renew", "_time", "failed", "leases", "owed", "partition", "seconds", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        partition: TopicPartition,
        ends: EndMarkers,
        renew: Callable[[Leased, int, float], None],
        on_wait: Callable[[float], None],
    ) -> None:
        super().__init__(partition)
        self._place = partition
        self.partition = partition.partition
        self.leases: dict[int, float] = {}
        """By offset, when the lease ends, on the loop's clock; of records not ended."""
        self.seconds: dict[int, float] = {}
        """By offset, how long a lease of it is; of the same records."""
        self.failed: dict[int, LeaseFailed] = {}
        """By offset, of those whose own lease could not be told."""
        self.waiting: dict[int, tuple[float, float]] = {}
        """By offset, of those whose handler was not called yet, or which wait for room or a delay: their lease in
        seconds, and until when it is renewed."""
        self.owed: dict[int, tuple[float, float]] = {}
        """By offset, of those whose handler runs and was called late: their lease in seconds, and until when the
        handler has it. That is written once the handler has run for so long that it may need it."""
        self._ends = ends
        self._renew = renew
        self._on_wait = on_wait
        self._time = asyncio.get_running_loop().time  # to ask for the loop is a system call each time
        self.complete = self._ended
        self.complete_all = self._all_ended
        self.release = self._released

    def lease_left(self, offset: int) -> float:
        """Seconds; infinite where it has none."""
        ends = self.leases.get(offset)
        return math.inf if ends is None else ends - self._time()

    def begin(self, offset: int) -> None:
        """Its handler is called: it has the whole lease to itself. Raises LeaseOver."""
        seconds, _ = self.waiting.pop(offset, (0.0, 0.0))
        left = self.lease_left(offset)
        if left <= 0:
            raise LeaseOver
        if left < seconds / 2:
            self._renew(self, offset, seconds)
        elif left < seconds:
            self.owed[offset] = seconds, self._time() + seconds
            self._on_wait(seconds)

    def wait(self, offset: int) -> None:
        """It waits, for room or because its handler asks for a delay, and has not failed: its lease is renewed
        meanwhile, however long that takes."""
        seconds = self.seconds[offset]
        self.owed.pop(offset, None)
        self.waiting[offset] = seconds, math.inf
        self._on_wait(seconds)

    def _ended(self, offset: int) -> None:
        left = self.lease_left(offset)
        if left < 0:
            self._ends.is_late(self._place, offset, -left)
        self._released(offset)
        self._ends.write(self.partition, offset)

    def _all_ended(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._ended(offset)

    def _released(self, offset: int) -> None:
        self.leases.pop(offset, None)
        self.seconds.pop(offset, None)
        self.waiting.pop(offset, None)
        self.owed.pop(offset, None)
        if self.failed:
            self.failed.pop(offset, None)


def check_lease(record: Record[Any, Any]) -> None:
    """Before an attempt. Raises LeaseOver, LeaseFailed."""
    source = record._source
    assert isinstance(source, Leased)
    if source.failed and (failure := source.failed.get(record.offset)) is not None:
        raise failure
    source.begin(record.offset)


class Redelivery:
    """What becomes of a record that has failed: tried again here while its lease lasts, then left to be delivered
    again. One that waits has not failed: it keeps its lease."""

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry

    def __call__(self, record: Record[Any, Any], error: Exception, attempts: int) -> QueueVerdict:
        """See :data:`~aioparallel.config.policies.RetryFunction`."""
        source = record._source
        assert isinstance(source, Leased)
        delay = self._delay(history_of(record), error, attempts, asyncio.get_running_loop().time())
        left = source.lease_left(record.offset)
        if delay is None or left <= 0:
            return "release"
        if isinstance(error, RetryLater):
            source.wait(record.offset)
        elif delay >= left:
            return "release"
        return delay

    def _delay(self, history: History, error: Exception, attempts: int, now: float) -> float | None:
        if isinstance(error, LeaseOver | LeaseFailed):
            return None
        if isinstance(error, RetryLater):
            wish = 0.0 if isinstance(error, NoRoom) else error.delay
            return self._retry.wait(wish, now - (history.waiting_since or now))
        return self._retry.delay(error, attempts, max(0.0, now - (history.trying_since or now) - history.waited))
