"""The log of one partition, for every isolation level. Plain data without clock or waiting."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from operator import attrgetter, itemgetter
from typing import NamedTuple

from aioparallel.records.record import Headers, Record, TopicPartition, raw_name

__all__ = ["PartitionLog", "Slice", "Stored", "Transaction"]


class Transaction:
    """A producer's transaction. Records appended within it are undecided until it ends. It compares by identity."""

    __slots__ = ("is_committed",)

    def __init__(self) -> None:
        self.is_committed: bool | None = None  # None: it is open


class Stored(NamedTuple):
    """The entry at one offset: a record, or the marker that ends a transaction."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    transaction: Transaction | None
    is_marker: bool


class Slice(NamedTuple):
    """The result of a read: nothing else below ``next_offset`` is visible to this reader."""

    records: list[Stored]
    next_offset: int


_offset = attrgetter("offset")


class PartitionLog:
    """Offsets from :attr:`start_offset` (the first one) up to :attr:`end_offset` (the next one to assign).

    Offsets between them may be missing after compaction. A marker takes an offset, and no reader sees it.
    """

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.leader_epoch = 0
        """Epoch of the current leader. Each election begins a new one."""
        self._epoch_starts: list[tuple[int, int]] = [(0, 0)]  # each epoch with records, and its first offset
        self.has_raw_names = False
        """Whether a record has a header name that is not UTF-8."""
        self._entries: list[Stored] = []
        # The first offset of each transaction that is open here. The lowest one is the last stable offset.
        self._open: dict[Transaction, int] = {}
        # First and last offset of each batch of several records.
        self._batches: list[tuple[int, int]] = []
        self._committed: list[Record] = []  # see committed()
        self._committed_end = 0

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: int = 0,
        transaction: Transaction | None = None,
    ) -> int:
        """Append a record and return its offset."""
        offset = self._add(key, value, headers, timestamp, transaction, is_marker=False)
        if transaction is not None:
            self._open.setdefault(transaction, offset)
        return offset

    def join_batch(self, first: int) -> None:
        """All entries from ``first`` on were written as one batch."""
        if first < self.end_offset - 1:
            self._batches.append((first, self.end_offset - 1))

    def end_transaction(self, transaction: Transaction, timestamp: int = 0) -> None:
        """Write the marker of a decided transaction, which takes one offset."""
        self._open.pop(transaction, None)
        self._add(None, None, (), timestamp, transaction, is_marker=True)

    def _add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int,
        transaction: Transaction | None,
        *,
        is_marker: bool,
    ) -> int:
        offset = self.end_offset
        if self._epoch_starts[-1][0] != self.leader_epoch:
            self._epoch_starts.append((self.leader_epoch, offset))
        if headers and not self.has_raw_names:
            self.has_raw_names = any(raw_name(name) is not None for name, _ in headers)
        self._entries.append(Stored(offset, key, value, headers, timestamp, transaction, is_marker))
        self.end_offset = offset + 1
        return offset

    def readable_end(self, *, read_committed: bool) -> int:
        """The end for such a reader: the last stable offset, or the end of the log."""
        return min(self._open.values()) if read_committed and self._open else self.end_offset

    def holds(self, position: int) -> bool:
        """Whether this is a valid position. It may be in a gap, but not beyond the end."""
        return self.start_offset <= position <= self.end_offset

    def read(self, position: int, max_records: int, *, read_committed: bool) -> Slice:
        """At most ``max_records`` records from ``position`` on, and the position of the next one.

        The caller must have checked :meth:`holds`.
        """
        limit = self.readable_end(read_committed=read_committed)
        taken: list[Stored] = []
        for index in range(self._index(position), len(self._entries)):
            entry = self._entries[index]
            if entry.offset >= limit:
                break
            if _is_visible(entry, read_committed):
                if len(taken) == max_records:
                    return Slice(taken, entry.offset)
                taken.append(entry)
        return Slice(taken, max(position, limit))

    def batches(self, position: int, least_end: int, *, read_committed: bool) -> list[tuple[int, int]]:
        """First and last offsets of batches, from the one with ``position`` or the next one on, at least up to
        ``least_end`` if there are so many. All others are batches of one entry."""
        limit = self.readable_end(read_committed=read_committed)
        found: list[tuple[int, int]] = []
        at = self._index(max(self._batch_with(position)[0], self.start_offset))
        while at < len(self._entries) and self._entries[at].offset < limit:
            batch = self._batch_with(self._entries[at].offset)
            at = self._index(batch[1] + 1)
            if batch[1] >= position:
                found.append(batch)
                if batch[1] >= least_end:
                    break
        return found

    def _batch_with(self, offset: int) -> tuple[int, int]:
        at = bisect_right(self._batches, offset, key=itemgetter(0)) - 1
        return self._batches[at] if at >= 0 and offset <= self._batches[at][1] else (offset, offset)

    def entries(self, first: int, last: int) -> list[Stored]:
        """All entries in this range, markers as well."""
        return self._entries[self._index(first) : self._index(last + 1)]

    def aborted(self, first: int, last: int) -> list[int]:
        """Offsets of records of aborted transactions in this range."""
        return [
            entry.offset
            for entry in self.entries(first, last)
            if entry.transaction is not None and entry.transaction.is_committed is False and not entry.is_marker
        ]

    def committed(self, partition: TopicPartition) -> list[Record]:
        """All records for a ``read_committed`` consumer; ``partition`` is where they are. Do not change the list.

        Each record is made once, for tests that poll this again and again: decided records do not change.
        """
        found, self._committed_end = self.read(self._committed_end, self.end_offset, read_committed=True)
        self._committed += [Record(*partition, s.offset, s.key, s.value, s.headers, s.timestamp) for s in found]
        return self._committed

    def offset_for_time(self, timestamp: int, *, read_committed: bool) -> int | None:
        """The offset of the first record at or after ``timestamp`` (milliseconds since the epoch)."""
        limit = self.readable_end(read_committed=read_committed)
        return next(
            (
                entry.offset
                for entry in self._entries
                if entry.timestamp >= timestamp and not entry.is_marker and entry.offset < limit
            ),
            None,
        )

    def delete_before(self, offset: int) -> None:
        """Move the start of the log to ``offset``, as retention or DeleteRecords does."""
        self.start_offset = min(max(self.start_offset, offset), self.end_offset)
        del self._entries[: self._index(self.start_offset)]
        self._open = {transaction: max(first, self.start_offset) for transaction, first in self._open.items()}
        self._forget_committed()

    def truncate_tail(self, end: int) -> None:
        """Lose all records from ``end`` on, as an unclean leader election does.

        New records reuse the lost offsets. Decided transactions stay decided, although their markers may be lost.
        """
        self.end_offset = max(self.start_offset, min(end, self.end_offset))
        self.elect()
        kept = [(epoch, start) for epoch, start in self._epoch_starts if start < self.end_offset]
        self._epoch_starts = kept or [(0, 0)]
        del self._entries[self._index(self.end_offset) :]
        self._batches = [(first, min(last, self.end_offset - 1)) for first, last in self._batches if first < end]
        self._open = {transaction: first for transaction, first in self._open.items() if first < self.end_offset}
        self._forget_committed()

    def elect(self) -> None:
        """Elect a leader, perhaps the same one. Later records have a new epoch."""
        self.leader_epoch += 1

    def epochs_of(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """The leader epochs of the records in this range, as pairs of first offset and epoch."""
        before = [(first, epoch) for epoch, first in self._epoch_starts if first <= start]
        return (*before[-1:], *[(first, epoch) for epoch, first in self._epoch_starts if start < first < end])

    def valid_end(self, epoch: int) -> int:
        """Where the records of this epoch and earlier ones end, as in OffsetForLeaderEpoch; the start of the log if it
        never had that epoch."""
        if epoch > self.leader_epoch:
            return self.start_offset
        return min((start for later, start in self._epoch_starts if later > epoch), default=self.end_offset)

    def compact(self, offsets: Collection[int]) -> None:
        """Remove these offsets, as compaction does. The end offset does not change."""
        gone = frozenset(offsets)
        self._entries = [entry for entry in self._entries if entry.offset not in gone]
        self._forget_committed()

    def _forget_committed(self) -> None:
        self._committed, self._committed_end = [], self.start_offset

    def _index(self, position: int) -> int:
        entries = self._entries
        if not entries:
            return 0
        # Without gaps the index follows from the offset.
        guess = position - entries[0].offset
        if 0 <= guess < len(entries) and entries[guess].offset == position:
            return guess
        return bisect_left(entries, position, key=_offset)


def _is_visible(entry: Stored, read_committed: bool) -> bool:
    if entry.is_marker:
        return False
    return not read_committed or entry.transaction is None or entry.transaction.is_committed is True
