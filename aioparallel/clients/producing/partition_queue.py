"""What waits for one partition, and how it becomes batches: the order is kept here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from aioparallel.clients.producing.numbering import Identity, Numbering
from aioparallel.clients.producing.pending import Outstanding
from aioparallel.delivery.producer import PendingOutput, TooLarge

__all__ = ["Encode", "Explain", "PartitionQueue", "Piece", "RecordBatch", "Unencodable"]


class Unencodable(Exception):
    """The first of the entries cannot be written as a record; the message is the reason."""


class Encode(Protocol):
    """Writes a record batch."""

    def __call__(
        self, entries: Iterable[PendingOutput], identity: Identity, sequence: int, limit: int
    ) -> tuple[bytes, int]:
        """The batch of as many of the first entries as fit into ``limit`` bytes, at least one; and how many these
        are. Raises Unencodable."""


Explain = Callable[[int], str]
"""Why an output fails, from the size of its batch in bytes."""


class RecordBatch:
    """Entries of one partition in one record batch, with the bytes as they are sent, each time the same.

    ``identity`` and ``sequence``: the numbers that are in these bytes. ``is_in_flight``: a request with it is
    outstanding. ``given_up``: so many of the first entries have failed already, out of time; they are in the bytes.

    Two reasons why its numbers may be taken: ``is_doubtful``, an attempt had no answer that settles whether it was
    written; ``is_part_of_doubtful``, it is a piece of a batch of which that is not settled.
    """

    __slots__ = (
        "attempts",
        "data",
        "entries",
        "given_up",
        "identity",
        "is_doubtful",
        "is_in_flight",
        "is_part_of_doubtful",
        "node",
        "queue",
        "sequence",
    )

    def __init__(self, queue: PartitionQueue, piece: Piece, data: bytes, identity: Identity, sequence: int) -> None:
        self.queue = queue
        self.entries = piece.entries
        self.data = data
        self.identity = identity
        self.sequence = sequence
        self.node = -1
        self.attempts = 0
        self.given_up = 0
        self.is_in_flight = False
        self.is_doubtful = False
        self.is_part_of_doubtful = piece.is_part_of_doubtful

    @property
    def left(self) -> list[PendingOutput]:
        """The entries that have not failed."""
        return self.entries[self.given_up :] if self.given_up else self.entries


class Piece(NamedTuple):
    """Entries to be sent as a batch of their own, or as several. ``is_part_of_doubtful``: see :class:`RecordBatch`."""

    entries: list[PendingOutput]
    is_part_of_doubtful: bool


class PartitionQueue:
    """One partition's outputs in the order of ``send``: first the batch under way, then ``pieces`` (what comes out
    of batches that were taken apart), then ``waiting``.

    One batch at a time is under way, so sequence numbers can be given when a batch is made and count as used only
    when it was acknowledged: a refused batch leaves no gap.

    Only the batch under way may change what is under way: answers that come for another one, given up meanwhile,
    change nothing.

    **Acknowledged means written once.** A batch that was sent and not answered stays under way, with the same bytes,
    until it is answered or none of its entries has time left; then its epoch is abandoned, so that it is not written
    behind newer ones. When it is answered that it cannot be written as a whole, its pieces keep its numbers: if the
    whole stands in the log after all, the broker refuses the first piece as out of order, and the entries fail rather
    than being written again.
    """

    __slots__ = (
        "_among",
        "batch",
        "limit",
        "missing_since",
        "numbering",
        "partition",
        "pieces",
        "topic",
        "trouble",
        "waiting",
    )

    def __init__(self, topic: str, partition: int, limit: int, among: Outstanding) -> None:
        self._among = among
        self.topic = topic
        self.partition = partition
        self.limit = limit
        """Bytes of a batch; goes down when the broker finds one too large."""
        self.waiting: deque[PendingOutput] = deque()
        self.pieces: deque[Piece] = deque()
        self.batch: RecordBatch | None = None
        self.numbering = Numbering()
        self.missing_since: float | None = None
        """Since when the metadata does not know the partition."""
        self.trouble = ""
        """What went wrong last, for the message when the time is up."""

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}-{self.partition} waiting={len(self.waiting)} batch={self.batch}>"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is waiting or under way."""
        return self.batch is None and not self.pieces and not self.waiting

    @property
    def outstanding(self) -> int:
        """Entries that have not ended."""
        under_way = 0 if self.batch is None else len(self.batch.entries) - self.batch.given_up
        return under_way + sum(len(piece.entries) for piece in self.pieces) + len(self.waiting)

    @property
    def next_deadline(self) -> float | None:
        """When the oldest entry is out of time. Deadlines ascend with the order of sending."""
        if self.batch is not None:
            return self.batch.entries[self.batch.given_up].deadline
        if self.pieces:
            return self.pieces[0].entries[0].deadline
        return self.waiting[0].deadline if self.waiting else None

    def take(self, encode: Encode, fresh: Identity | None) -> RecordBatch | None:
        """The batch to be sent now: the one to be repeated, or a new one. None when there is nothing, one is in
        flight, or :meth:`Numbering.next` wants another producer id than ``fresh``. An entry that cannot be encoded
        fails here, by itself."""
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
        self.batch = RecordBatch(self, piece, data, identity, sequence)

    # -- what became of a batch

    def acknowledged(self, batch: RecordBatch, offset: int, timestamp: int) -> None:
        """It is written from ``offset`` on (-1: the broker no longer knows where). ``timestamp``: milliseconds, -1
        where the records keep theirs."""
        if self.batch is not batch:
            return
        self.batch = None
        self.trouble = ""
        self.numbering.acknowledged(len(batch.entries))
        if batch.is_part_of_doubtful:
            # In its turn, so the whole was not written.
            self.pieces = deque(piece._replace(is_part_of_doubtful=False) for piece in self.pieces)
        if batch.given_up and offset >= 0:
            offset += batch.given_up
        self._among.placed(batch.left, self.topic, self.partition, offset, timestamp)

    def again(self, batch: RecordBatch, trouble: str) -> None:
        """Repeat it as it is: whatever the broker did with it, it does nothing twice."""
        if self.batch is batch:
            batch.is_in_flight = False
            batch.is_doubtful = self.numbering.is_in_doubt = True
            self.trouble = trouble

    def split(self, batch: RecordBatch, explain: Explain, *, is_too_large: bool) -> None:
        """It was refused for one of its entries, or its size: find the guilty one."""
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
        """The broker does not accept these numbers, or the producer id (``is_rejected``). What was not written for
        certain is sent again under other numbers; what may have been written fails, for the broker may have said
        no because it was."""
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
        """All of it fails for good. ``was_written``: it may stand in the log all the same."""
        if self.batch is not batch:
            return
        self.batch = None
        doubtful = self._abandon() if was_written or batch.is_doubtful else []
        self._end_doubt()
        self._fail(batch.left, reason, passing=False)
        self._fail_doubtful(doubtful, reason)

    def broken(self, batch: RecordBatch) -> list[PendingOutput] | None:
        """The transaction it is of cannot be committed any more. Returns all that waits here, taken out; None where it
        is of another transaction than the one that goes on now."""
        return self.drain() if self.batch is batch else None

    # -- giving up

    def expire(
        self, deadline: float, explain: Callable[[PartitionQueue], str], *, passing: bool = True
    ) -> RecordBatch | None:
        """Fail what is out of time, as of ``deadline``; returns the batch to be cut off if one is given up in flight.
        ``passing``: whether it may go another time.

        A batch under way is given up when none of its entries has time left: taken apart before, the younger ones
        might be written twice.
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
        """Take everything out, in order; nothing is under way any more."""
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
        """Use the numbers of the last batch never again. Returns the pieces that only these numbers kept from being
        written twice, taken out: they have to fail."""
        self.numbering.abandon()
        entries: list[PendingOutput] = []
        while self.pieces and self.pieces[0].is_part_of_doubtful:
            entries += self.pieces.popleft().entries
        return entries

    def _end_doubt(self) -> None:
        """Entries have left, not acknowledged. With the last piece of a batch that may have been written its numbers
        are given up: the next batch of its size would be taken for it."""
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
        self._among.failed(entries, reason, passing=passing, partition=partition)


def _late(entries: list[PendingOutput], deadline: float) -> list[PendingOutput]:
    """Those of the first that are out of time."""
    count = 0
    for entry in entries:
        if entry.deadline > deadline:
            break
        count += 1
    return entries[:count]
