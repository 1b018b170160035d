"""One partition of a share group at its leader (KIP-932, KIP-1206, KIP-1222). Plain data; time is passed in.

It follows the ``SharePartition`` of Apache Kafka 4.3 also where this is surprising: what is acquired together, which
acknowledgements are refused, and with which code. ``tests/integration/share/test_memory_as_kafka.py`` compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from aioparallel.clients.messages.share_records import AcknowledgementBatch, AcknowledgeType, AcquiredRange
from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing.memory.share_denials import Denial, malformed, not_held
from aioparallel.testing.memory.share_locks import ShareLocks
from aioparallel.testing.memory.share_records import InFlightBatch, InFlightRecord, RecordState

__all__ = ["Acquisition", "SharePartition"]


_STATES: Final = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}
_LEAST_THROTTLED: Final = 2


class Acquisition(NamedTuple):
    """What a member wants to acquire."""

    member_id: str
    most: int
    """Records. Reached exactly in the mode ``record_limit``; else whole batches of the log are acquired."""
    record_limit: bool = True
    batch_size: int = 500
    """Without ``record_limit``: records in each acquired range, about."""


class _Saved(NamedTuple):
    record: InFlightRecord
    state: RecordState
    member_id: str | None


class SharePartition(ShareLocks):
    """What members acquire and acknowledge."""

    # -- acquiring

    def acquire(self, wanted: Acquisition, now: float) -> list[AcquiredRange]:
        """Acquire records for a member."""
        position, most = self.next_offset, wanted.most
        if not self.is_acquirable or most <= 0:
            return []
        if position < self._log.start_offset:
            self._log_start_moved(self._log.start_offset)
            return []
        read = self._log.batches(
            position,
            max(self.end_offset, position) + most,
            read_committed=self.options.reads_committed,
        )
        if not read:
            return []
        most, last = self._limited(position, most, read[-1][1])
        if most <= 0:
            return []
        self._archive_compacted(position, read[0][0])
        taken = self._take(wanted._replace(most=most), read, last, now)
        return self._without_aborted(taken) if self.options.reads_committed else taken

    def _limited(self, position: int, most: int, last: int) -> tuple[int, int]:
        """How many may be acquired, and up to which offset."""
        limit = self.options.max_record_locks
        allowed = min(most, limit - self.locked_width)
        if allowed <= 0 and position <= self.end_offset:
            # No new offsets, but those that are in flight.
            return min(most, self.end_offset - position + 1), min(last, self.end_offset)
        return allowed, last

    def _take(self, wanted: Acquisition, read: Sequence[tuple[int, int]], last: int, now: float) -> list[AcquiredRange]:
        first = base = read[0][0]
        floor = self._in_flight.floor(base)
        if floor is None:
            base = max(base, self.start_offset)
        elif floor.last >= base:
            base = floor.first
        overlapping = self._in_flight.beginning_in(base, last)
        if not overlapping:
            return self._take_new(wanted, read, first, last, now)
        taken: list[AcquiredRange] = []
        left = wanted.most
        for batch in overlapping:
            if left <= 0:
                break
            is_throttled = self._is_throttled(batch, first, last)
            if is_throttled and left < wanted.most:
                left = 0  # it must come alone, with the next fetch
                break
            is_whole = batch.covered_by(first, last) and not batch.is_split and not is_throttled
            if is_whole and not (wanted.record_limit and len(batch) > left):
                if batch.records[0].is_available:
                    taken.append(self._lock(batch, batch.first, batch.last, wanted.member_id, now))
                    left -= len(batch)
                continue
            if not batch.is_split and not batch.records[0].is_available:
                continue
            batch.is_split = True
            some = self._take_some(batch, first, last, wanted._replace(most=left), now)
            taken += _joined(some)
            left -= len(some)
            if is_throttled and some:
                left = 0
        after = overlapping[-1].last + 1
        if left > 0 and after <= last:
            taken += self._take_new(wanted._replace(most=left), read, after, last, now)
        return taken

    def _is_throttled(self, batch: InFlightBatch, first: int, last: int) -> bool:
        """Whether the batch has a record that was delivered so often that it may be what breaks its members."""
        if not batch.is_split:
            return batch.records[0].delivery_count >= self._throttled_from
        counts = [r.delivery_count for _, r in batch.within(first, last) if r.is_available]
        return max(counts, default=0) >= self._throttled_from

    @property
    def _throttled_from(self) -> int:
        return max(_LEAST_THROTTLED, (self.options.delivery_count_limit + 1) // 2)

    def _take_some(
        self, batch: InFlightBatch, first: int, last: int, wanted: Acquisition, now: float
    ) -> list[AcquiredRange]:
        """Acquire single offsets of a split batch. For its last delivery a record comes alone, and before that with
        fewer others each time."""
        limit, throttled_from = self.options.delivery_count_limit, self._throttled_from
        taken: list[AcquiredRange] = []
        throttled: int | None = None
        for offset, record in batch.within(first, last):
            if not record.is_available:
                continue
            count = record.delivery_count
            if limit > 2 and count == limit - 1 and taken:
                break
            if count >= throttled_from and throttled is None:
                throttled = max(1, len(batch) >> (count - throttled_from + 1))
            taken.append(self._lock(batch, offset, offset, wanted.member_id, now))
            if limit > 2 and count + 1 == limit:
                break
            if (wanted.record_limit and len(taken) == wanted.most) or len(taken) == throttled:
                break
        return taken

    def _take_new(
        self, wanted: Acquisition, read: Sequence[tuple[int, int]], first: int, last: int, now: float
    ) -> list[AcquiredRange]:
        """Acquire offsets for the first time: whole batches of the log, of which ``record_limit`` leaves some
        available."""
        if not self._in_flight and self.end_offset > first:
            first = self.end_offset
        if wanted.most < last - first + 1:
            wished = first + wanted.most - 1
            last = next((end for start, end in read if start <= wished <= end), wished)
        if not self._in_flight:
            self.start_offset = first
        self.end_offset = max(self.end_offset, last)
        if wanted.record_limit:
            batch = InFlightBatch(first, last)
            self._in_flight.add(batch)
            batch.is_split = len(batch) > wanted.most
            return [self._lock(batch, first, min(last, first + wanted.most - 1), wanted.member_id, now)]
        taken = []
        for start, end in _divided(read, first, last, wanted.batch_size):
            batch = InFlightBatch(start, end)
            self._in_flight.add(batch)
            taken.append(self._lock(batch, start, end, wanted.member_id, now))
        return taken

    def _without_aborted(self, taken: Iterable[AcquiredRange]) -> list[AcquiredRange]:
        """The ranges without records of aborted transactions, which end here."""
        kept: list[AcquiredRange] = []
        for some in taken:
            following = some.first_offset
            for offset in self._log.aborted(some.first_offset, some.last_offset):
                batch = self._in_flight.floor(offset)
                assert batch is not None
                batch.is_split = True
                batch.records[offset - batch.first].end(RecordState.ARCHIVED, 0)
                if following < offset:
                    kept.append(AcquiredRange(following, offset - 1, some.delivery_count))
                following = offset + 1
            if following <= some.last_offset:
                kept.append(AcquiredRange(following, some.last_offset, some.delivery_count))
        return kept

    # -- acknowledging

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch], now: float) -> Denial | None:
        """Acknowledge all of these, or, with a denial, none. (Locks that were renewed before the denial was found stay
        renewed, as in Kafka.)"""
        denial = self.begin_acknowledge(member_id, batches, now)
        self.complete()
        return denial

    def begin_acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch], now: float) -> Denial | None:
        """The same, before the broker has stored the new states: until :meth:`complete` nothing becomes available, and
        the start offset stays. A fetch acquires records while those that it acknowledges are in this state."""
        if (denial := malformed(batches)) is not None:
            return denial
        saved: list[_Saved] = []
        for batch in batches:
            if batch.last_offset >= self.start_offset:
                denial = self._acknowledge(member_id, batch, saved, now)
                if denial is not None:
                    for record, state, owner in saved:
                        record.state, record.member_id = state, owner
                    return denial
        for record, _, _ in saved:
            record.is_changing = True
        self._changing += [record for record, _, _ in saved]
        return None

    def complete(self) -> bool:
        """The new states are stored. Returns whether there are any."""
        changed, self._changing = self._changing, []
        for record in changed:
            record.store()
        if changed:
            self._move_start()
        return bool(changed)

    def _acknowledge(
        self, member_id: str, asked: AcknowledgementBatch, saved: list[_Saved], now: float
    ) -> Denial | None:
        first, last, types = asked.first_offset, asked.last_offset, asked.acknowledge_types
        floor = self._in_flight.floor(first)
        if floor is None and first < self.start_offset:
            floor = self._in_flight.floor(self.start_offset)
        if floor is None:
            return not_held("Batch record not found. The request batch offsets are not found in the cache.")
        named = self._in_flight.beginning_in(floor.first, last)
        if named[-1].last < last:
            return Denial(ErrorCode.INVALID_REQUEST, "Batch record not found. An offset is past acquired records.")
        for batch in named:
            if batch.last < self.start_offset:
                continue
            if not batch.is_split:
                if batch.records[0].member_id != member_id:
                    return not_held("The batch is not acquired, or the member is not the owner of it.")
                batch.is_split = not batch.covered_by(first, last) or len(types) > 1 or batch.first < self.start_offset
            for offset, record in batch.within(max(first, self.start_offset), last):
                if record.state is not RecordState.ACQUIRED:
                    return not_held("The offset cannot be acknowledged. The offset is not acquired.")
                if record.member_id != member_id:
                    return not_held("Member is not the owner of offset")
                kind = types[offset - first] if len(types) > 1 else types[0]
                if kind == AcknowledgeType.RENEW:
                    self._renew(offset, record, now)
                    continue
                saved.append(_Saved(record, record.state, record.member_id))
                record.end(_STATES[AcknowledgeType(kind)], self.options.delivery_count_limit)
        return None


def _divided(read: Iterable[tuple[int, int]], first: int, last: int, size: int) -> Iterable[tuple[int, int]]:
    """The range, divided at starts of batches into parts of about ``size``."""
    if last - first + 1 > size:
        for start, _ in read:
            if start > last:
                break
            if start - first >= size:
                yield first, start - 1
                first = start
    yield first, last


def _joined(singles: Iterable[AcquiredRange]) -> list[AcquiredRange]:
    """Adjacent ranges with the same delivery count as one."""
    joined: list[AcquiredRange] = []
    for one in singles:
        if joined and (joined[-1].last_offset + 1, joined[-1].delivery_count) == (one.first_offset, one.delivery_count):
            joined[-1] = AcquiredRange(joined[-1].first_offset, one.last_offset, one.delivery_count)
        else:
            joined.append(one)
    return joined
