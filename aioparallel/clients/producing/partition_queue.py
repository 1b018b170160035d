"""The queue of one partition, and how it becomes batches. Order is kept here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from aioparallel.clients.producing.numbering import Identity, Numbering
from aioparallel.clients.producing.pending import Outstanding
from aioparallel.delivery.producer import PendingOutput, TooLarge

__all__ = ["Encode", "Explain", "PartitionQueue", "Piece", "RecordBatch", "Unencodable"]


class Unencodable(Exception):
    """The first entry cannot be encoded as a record; the message is the reason."""


class Encode(Protocol):
    """Encodes a record batch."""

    def __call__(
        self, entries: Iterable[PendingOutput], identity: Identity, sequence: int, limit: int
    ) -> tuple[bytes, int]:
        """Encode as many of the first entries as fit into ``limit`` bytes, at least one.

        Returns the batch and the number of entries in it. Raises Unencodable."""


Explain = Callable[[int], str]
"""Returns why an output failed, given the size of its batch in bytes."""


@dataclass(eq=False, repr=False, slots=True)
class RecordBatch:
    """Entries of one partition in one record batch. Every attempt sends the same bytes, with the same numbers."""

    queue: PartitionQueue
    entries: list[PendingOutput]
    data: bytes
    identity: Identity
    sequence: int
    is_part_of_doubtful: bool = False
    """The batch is a piece of a doubtful batch, so its numbers may be used already."""
    node: int = -1
    attempts: int = 0
    given_up: int = 0
    """Number of leading entries that have timed out; they remain in the bytes."""
    is_in_flight: bool = False
    is_doubtful: bool = False
    """An attempt ended without an answer that says whether the batch was written."""

    @property
    def left(self) -> list[PendingOutput]:
        return self.entries[self.given_up :] if self.given_up else self.entries


class Piece(NamedTuple):
    """Entries to send as one or more batches. ``is_part_of_doubtful``: see :class:`RecordBatch`."""

    entries: list[PendingOutput]
    is_part_of_doubtful: bool


@dataclass(eq=False, repr=False, slots=True)
class PartitionQueue:
    """One partition's outputs, in the order of ``send``: first ``batch``, then ``pieces`` (entries of batches that
    were split), then ``waiting``.

    Only one batch at a time is sent, so a batch gets its sequence number when it is made. The number counts as used
    only when the batch is acknowledged: a refused batch leaves no gap.

    Results are ignored unless they are for the current batch: an earlier batch may have timed out meanwhile.

    **Acknowledged means written once.** A batch without an answer stays current, with the same bytes, until an answer
    arrives or all of its entries have timed out. In the second case its epoch is abandoned, so that it cannot be
    written after newer batches. If the answer is that the batch cannot be written as a whole, its pieces keep its
    numbers. If the whole batch was written after all, the broker refuses the first piece as out of order. The entries
    then fail instead of being written again.
    """

    topic: str
    partition: int
    limit: int
    """Largest batch in bytes; lowered when the broker finds a batch too large."""
    _all_outstanding: Outstanding
    waiting: deque[PendingOutput] = field(default_factory=deque)
    pieces: deque[Piece] = field(default_factory=deque)
    batch: RecordBatch | None = None
    numbering: Numbering = field(default_factory=Numbering)
    missing_since: float | None = None
    """Since when the partition is missing from the metadata."""
    trouble: str = ""
    """The last failure, for the message of a timeout."""

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}-{self.partition} waiting={len(self.waiting)} batch={self.batch}>"

    @property
    def is_empty(self) -> bool:
        return self.batch is None and not self.pieces and not self.waiting

    @property
    def outstanding(self) -> int:
        under_way = 0 if self.batch is None else len(self.batch.entries) - self.batch.given_up
        return under_way + sum(len(piece.entries) for piece in self.pieces) + len(self.waiting)

    @property
    def next_deadline(self) -> float | None:
        """When the oldest entry times out. Deadlines ascend in the order of sending."""
        if self.batch is not None:
            return self.batch.entries[self.batch.given_up].deadline
        if self.pieces:
            return self.pieces[0].entries[0].deadline
        return self.waiting[0].deadline if self.waiting else None

    def take(self, encode: Encode, fresh: Identity | None) -> RecordBatch | None:
        """Return the batch to send now: the current one again, or a new one.

        Returns None if there is nothing to send, if a batch is in flight, or if :meth:`Numbering.next` needs another
        producer id than ``fresh``. An entry that cannot be encoded fails here, alone."""
        while self.batch is None and not self.is_empty:
            if (numbers := self.numbering.next(fresh)) is None:
                return None
            try:
                self._make(encode, *numbers)
            except Unencodable as error:
                entry = self._pop_first()
                self._end_doubt()
                self._fail([entry], str(error), passing=False)
        batch = self.batch
        if batch is None or batch.is_in_flight:
            return None
        batch.is_in_flight = True
        batch.attempts += 1
        return batch

    def _make(self, encode: Encode, identity: Identity, sequence: int) -> None:
        if self.pieces:
            piece = self.pieces[0]
            data, count = encode(piece.entries, identity, sequence, self.limit)
            self.pieces.popleft()
            if rest := piece.entries[count:]:
                self.pieces.appendleft(piece._replace(entries=rest))
                piece = piece._replace(entries=piece.entries[:count])
        else:
            waiting = self.waiting
            data, count = encode(waiting, identity, sequence, self.limit)
            piece = Piece([waiting.popleft() for _ in range(count)], False)
        self.batch = RecordBatch(self, piece.entries, data, identity, sequence, piece.is_part_of_doubtful)

    # -- results of a batch

    def acknowledged(self, batch: RecordBatch, offset: int, timestamp: int) -> None:
        """The batch is written from ``offset`` on; -1 if the broker no longer knows the offset.

        ``timestamp``: milliseconds, or -1 if the records keep their own timestamps."""
        if self.batch is not batch:
            return
        self.batch = None
        self.trouble = ""
        self.numbering.acknowledged(len(batch.entries))
        if batch.is_part_of_doubtful:
            # The broker accepted it in sequence, so the whole batch was not written.
            self.pieces = deque(piece._replace(is_part_of_doubtful=False) for piece in self.pieces)
        if batch.given_up and offset >= 0:
            offset += batch.given_up
        self._all_outstanding.placed(batch.left, self.topic, self.partition, offset, timestamp)

    def again(self, batch: RecordBatch, trouble: str) -> None:
        """Send the batch again, unchanged: the broker does not write it twice."""
        if self.batch is batch:
            batch.is_in_flight = False
            batch.is_doubtful = self.numbering.is_in_doubt = True
            self.trouble = trouble

    def split(self, batch: RecordBatch, explain: Explain, *, is_too_large: bool) -> None:
        """The broker refused one of its entries, or its size: bisect to find the entry."""
        if self.batch is not batch:
            return
        self.batch = None
        entries, size = batch.left, len(batch.data)
        if len(batch.entries) == 1:
            doubtful = self._abandon() if batch.is_doubtful else []
            self._end_doubt()
            self._fail(entries, TooLarge(explain(size)) if is_too_large else explain(size), passing=False)
            self._fail_doubtful(doubtful, explain(size))
            return
        if is_too_large:
            self.limit = min(self.limit, max(1, size // 2))
        in_doubt = batch.is_doubtful or batch.is_part_of_doubtful
        middle = len(entries) // 2
        halves = (entries[middle:], entries[:middle])
        self.pieces.extendleft(Piece(half, in_doubt) for half in halves if half)

    def anew(self, batch: RecordBatch, trouble: str, *, is_rejected: bool) -> None:
        """The broker does not accept the sequence number, or (``is_rejected``) the producer id.

        Entries that were certainly not written are sent again with new numbers. Entries that may have been written
        fail: that may be the very reason for the broker's refusal."""
        if self.batch is not batch:
            return
        self.batch = None
        self.trouble = trouble
        doubtful: list[PendingOutput] = []
        if batch.is_doubtful or batch.is_part_of_doubtful:
            doubtful += batch.left
        else:
            self.pieces.appendleft(Piece(batch.left, False))
        doubtful += self._abandon()
        if is_rejected:
            self.numbering.reject()
        self._fail_doubtful(doubtful, trouble)

    def refused(self, batch: RecordBatch, reason: str, *, was_written: bool) -> None:
        """All of its entries fail for good. ``was_written``: it may have been written all the same."""
        if self.batch is not batch:
            return
        self.batch = None
        doubtful = self._abandon() if was_written or batch.is_doubtful else []
        self._end_doubt()
        self._fail(batch.left, reason, passing=False)
        self._fail_doubtful(doubtful, reason)

    def broken(self, batch: RecordBatch) -> list[PendingOutput] | None:
        """The batch's transaction can no longer be committed. Removes and returns all entries of this queue.

        Returns None if the batch belongs to an earlier transaction."""
        return self.drain() if self.batch is batch else None

    # -- timeouts

    def expire(
        self, deadline: float, explain: Callable[[PartitionQueue], str], *, passing: bool = True
    ) -> RecordBatch | None:
        """Fail the entries whose deadline is at or before ``deadline``. ``passing``: whether a retry may succeed.

        Returns the batch if it was given up in flight, so that its connection is closed. A batch is given up only when
        all of its entries have timed out: if it were split earlier, the remaining entries might be written twice.
        """
        if (first := self.next_deadline) is None or first > deadline:
            return None
        late: list[PendingOutput] = []
        cut: RecordBatch | None = None
        if (batch := self.batch) is not None:
            late += _late(batch.left, deadline)
            batch.given_up += len(late)
            if batch.given_up == len(batch.entries):
                self.batch = None
                cut = batch if batch.is_in_flight else None
                late += self._abandon()
        if self.batch is None:
            late += self._late_pieces(deadline)
        self._fail(late, explain(self), passing=passing)
        return cut

    def _late_pieces(self, deadline: float) -> list[PendingOutput]:
        late: list[PendingOutput] = []
        while self.pieces and self.pieces[0].entries[0].deadline <= deadline:
            if self.pieces[0].is_part_of_doubtful:
                late += self._abandon()
                continue
            piece = self.pieces.popleft()
            gone = _late(piece.entries, deadline)
            late += gone
            if young := piece.entries[len(gone) :]:
                self.pieces.appendleft(piece._replace(entries=young))
        while self.waiting and self.waiting[0].deadline <= deadline:
            late.append(self.waiting.popleft())
        return late

    def drain(self) -> list[PendingOutput]:
        entries: list[PendingOutput] = []
        if self.batch is not None:
            entries += self.batch.left
            self.batch = None
            entries += self._abandon()
        for piece in self.pieces:
            entries += piece.entries
        entries += self.waiting
        self.pieces.clear()
        self.waiting.clear()
        self._end_doubt()
        return entries

    def _abandon(self) -> list[PendingOutput]:
        """Abandon the numbers of the last batch. Removes and returns the pieces that only these numbers protected from
        being written twice; they must fail."""
        self.numbering.abandon()
        entries: list[PendingOutput] = []
        while self.pieces and self.pieces[0].is_part_of_doubtful:
            entries += self.pieces.popleft().entries
        return entries

    def _end_doubt(self) -> None:
        """Abandon numbers in doubt once the last piece of their batch has left without an acknowledgement: the broker
        would take the next batch of the same size for the old one."""
        is_held = self.pieces and self.pieces[0].is_part_of_doubtful
        if self.numbering.is_in_doubt and self.batch is None and not is_held:
            self.numbering.abandon()

    def _pop_first(self) -> PendingOutput:
        if not self.pieces:
            return self.waiting.popleft()
        piece = self.pieces[0]
        first = piece.entries.pop(0)
        if not piece.entries:
            self.pieces.popleft()
        return first

    def _fail_doubtful(self, entries: Iterable[PendingOutput], reason: str) -> None:
        self._fail(entries, f"an attempt without an answer may have written it, and then: {reason}", passing=True)

    def _fail(self, entries: Iterable[PendingOutput], reason: str, *, passing: bool) -> None:
        partition = None if self.partition < 0 else self.partition
        self._all_outstanding.failed(entries, reason, passing=passing, partition=partition)


def _late(entries: list[PendingOutput], deadline: float) -> list[PendingOutput]:
    count = 0
    for entry in entries:
        if entry.deadline > deadline:
            break
        count += 1
    return entries[:count]
