"""The locks of one partition of a share group: what is locked for whom, and how locks end by themselves. Plain data;
time is passed in."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from aioparallel.clients.messages.share_records import AcquiredRange
from aioparallel.testing.memory.log import PartitionLog
from aioparallel.testing.memory.share_options import ShareGroupOptions
from aioparallel.testing.memory.share_records import InFlight, InFlightBatch, InFlightRecord, RecordState

__all__ = ["ShareLocks"]


class ShareLocks:
    """Which offsets are locked for which member, and how often each was delivered.

    Offsets below :attr:`start_offset` have ended. Offsets above :attr:`end_offset` were never acquired. (Without
    records in flight, both are the next offset to acquire.)
    """

    def __init__(self, log: PartitionLog, options: ShareGroupOptions, start_offset: int) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.options = options
        self._log = log
        self._in_flight = InFlight()
        self._changing: list[InFlightRecord] = []
        self._locks: list[tuple[float, int, int]] = []  # a heap: when the locks of a range end; some ended earlier

    # -- what there is

    @property
    def locked_width(self) -> int:
        """The number of offsets that count against ``max_record_locks``."""
        return self.end_offset - self.start_offset + 1 if self._in_flight else 0

    @property
    def next_offset(self) -> int:
        """The offset to read from."""
        batches = self._in_flight.batches
        if not batches or self.start_offset > batches[-1].last:
            return self.end_offset
        found = self._in_flight.first_available()
        return self.end_offset + 1 if found is None else found

    @property
    def is_acquirable(self) -> bool:
        """Whether a fetch looks for records here."""
        return self.next_offset != self.end_offset + 1 or self.locked_width < self.options.max_record_locks

    def has_records(self) -> bool:
        """Whether there is something to acquire."""
        position = self.next_offset
        return self.is_acquirable and (
            position < self._log.start_offset
            or bool(self._log.batches(position, position, read_committed=self.options.reads_committed))
        )

    def record(self, offset: int) -> InFlightRecord | None:
        """The state of an offset in flight."""
        return self._in_flight.record(offset)

    def locked(self) -> dict[int, str]:
        """Locked offsets, and for whom."""
        return {
            offset: record.member_id
            for batch in self._in_flight.batches
            for offset, record in batch.within(batch.first, batch.last)
            if record.member_id is not None
        }

    # -- locks that begin

    def _lock(self, batch: InFlightBatch, first: int, last: int, member_id: str, now: float) -> AcquiredRange:
        until = now + self.options.lock_duration
        for _, record in batch.within(first, last):
            record.acquire(member_id, until)
        heappush(self._locks, (until, first, last))
        return AcquiredRange(first, last, batch.records[first - batch.first].delivery_count)

    def _renew(self, offset: int, record: InFlightRecord, now: float) -> None:
        record.locked_until = now + self.options.lock_duration
        heappush(self._locks, (record.locked_until, offset, offset))

    # -- locks that end otherwise

    def release(self, member_id: str) -> bool:
        """Release all that is locked for this member, as when its session is closed. Returns whether anything was."""
        return self._unlock(
            record for batch in self._in_flight.batches for record in batch.records if record.member_id == member_id
        )

    def advance(self, now: float) -> bool:
        """Let locks end. Returns whether any did."""
        ended: list[InFlightRecord] = []
        while self._locks and self._locks[0][0] <= now:
            _, first, last = heappop(self._locks)
            floor = self._in_flight.floor(first)
            if floor is not None:
                ended += [
                    record
                    for batch in self._in_flight.beginning_in(floor.first, last)
                    for _, record in batch.within(first, last)
                    if record.state is RecordState.ACQUIRED and record.locked_until <= now
                ]
        return self._unlock(ended)

    def next_deadline(self) -> float | None:
        """When the next lock ends, or earlier; None: there is none."""
        return self._locks[0][0] if self._locks else None

    def _unlock(self, records: Iterable[InFlightRecord]) -> bool:
        before = self.start_offset
        unlocked = list(records)
        for record in unlocked:
            record.end(RecordState.AVAILABLE, self.options.delivery_count_limit)
            record.store()
        if not unlocked:
            return False
        # What is below the start offset was deleted from the log.
        for batch in self._in_flight.beginning_in(0, before - 1):
            for _, record in batch.within(0, before - 1):
                if record.state is RecordState.AVAILABLE:
                    batch.is_split = True
                    record.state = RecordState.ARCHIVED
        self._move_start()
        return True

    def reload(self) -> None:
        """Load the stored state, as a new leader does. Locks are lost, with the deliveries they stand for."""
        self._locks.clear()
        for batch in self._in_flight.batches:
            batch.is_split = True
            for record in batch.records:
                record.as_stored()

    # -- the start

    def _move_start(self) -> None:
        """Move the start offset past all that has ended."""
        at_start = self._in_flight.record(self.start_offset)
        ended = self._in_flight.last_ended()
        if at_start is None or not at_start.has_ended or ended is None:
            return
        batches = self._in_flight.batches
        if ended == batches[-1].last:
            self.start_offset = self.end_offset = ended + 1
            batches.clear()
            return
        batch = self._in_flight.floor(ended)
        assert batch is not None
        if ended < batch.last:
            self._in_flight.remove_before(batch.first)
            self.start_offset = max(self.start_offset, ended + 1)
        else:
            self._in_flight.remove_before(ended + 1)
            self.start_offset = max(self.start_offset, batches[0].first)

    def _log_start_moved(self, start: int) -> None:
        """Records before ``start`` are gone. Those that are locked end with their locks."""
        if not self._in_flight:
            self.start_offset = self.end_offset = start
            return
        self._archive(self.start_offset, start)
        self.start_offset = start
        self.end_offset = max(self.end_offset, start)

    def _archive_compacted(self, position: int, first: int) -> None:
        """Available records from ``position`` to ``first``, exclusive, are not in the log any more."""
        if position < first:
            self._archive(position, first)

    def _archive(self, first: int, end: int) -> None:
        for batch in self._in_flight.batches:
            for _, record in batch.within(first, end - 1):
                if record.state is RecordState.AVAILABLE:
                    batch.is_split = True
                    record.state = RecordState.ARCHIVED
