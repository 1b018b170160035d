"""What waits for one partition, and how it becomes batches: the order is kept here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from aioparallel.clients.outbox.deliveries import Entry
from aioparallel.errors import ProduceFailed
from aioparallel.records import Produced

__all__ = ["Batch", "Encode", "Explain", "Identity", "PartitionQueue", "Unencodable"]

_SEQUENCES: Final = 2**31
"""Sequence numbers go from 0 up to this, and begin again."""


class Identity(NamedTuple):
    """Who the broker takes us for: what it recognises repeated batches by."""

    producer_id: int
    epoch: int


class Unencodable(Exception):
    """The first of the entries cannot be written as a record; the message is the reason."""


class Encode(Protocol):
    """Writes a record batch."""

    def __call__(self, entries: Iterable[Entry], identity: Identity, sequence: int, limit: int) -> tuple[bytes, int]:
        """The batch of as many of the first entries as fit into ``limit`` bytes, at least one; and how many these
        are. Raises Unencodable."""


Explain = Callable[[int], str]
"""Why an output fails, from the size of its batch in bytes."""


class Batch:
    """Entries of one partition in one record batch, with the bytes as they are sent, each time the same.

    ``identity`` and ``sequence``: the numbers that are in these bytes. ``is_in_flight``: a request with it is
    outstanding.
    """

    __slots__ = ("attempts", "data", "entries", "identity", "is_in_flight", "node", "queue", "sequence")

    def __init__(
        self, queue: PartitionQueue, entries: list[Entry], data: bytes, identity: Identity, sequence: int
    ) -> None:
        self.queue = queue
        self.entries = entries
        self.data = data
        self.identity = identity
        self.sequence = sequence
        self.node = -1
        self.attempts = 0
        self.is_in_flight = False


class PartitionQueue:
    """One partition's outputs in the order of ``send``: first the batch under way, then ``pieces`` (what comes out
    of batches that were taken apart, each a batch of its own again), then ``waiting``.

    One batch at a time is under way, so sequence numbers can be given when a batch is made and count as used only
    when it was acknowledged: a refused batch leaves no gap.

    Only the batch under way may change what is under way: answers that come for another one, given up meanwhile,
    change nothing.
    """

    __slots__ = (
        "batch",
        "identity",
        "limit",
        "missing_since",
        "partition",
        "pieces",
        "sequence",
        "topic",
        "trouble",
        "waiting",
    )

    def __init__(self, topic: str, partition: int, limit: int) -> None:
        self.topic = topic
        self.partition = partition
        self.limit = limit
        """Bytes of a batch; goes down when the broker finds one too large."""
        self.waiting: deque[Entry] = deque()
        self.pieces: deque[list[Entry]] = deque()
        self.batch: Batch | None = None
        self.identity: Identity | None = None
        """None: to be taken with the next batch; a number from 0 then."""
        self.sequence = 0
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
    def next_deadline(self) -> float | None:
        """When the oldest entry is out of time. Deadlines ascend with the order of sending."""
        if self.batch is not None:
            return self.batch.entries[0][0].deadline
        if self.pieces:
            return self.pieces[0][0][0].deadline
        return self.waiting[0][0].deadline if self.waiting else None

    def take(self, encode: Encode, identity: Identity) -> Batch | None:
        """The batch to be sent now: the one to be repeated, or a new one. None when there is nothing, or one is in
        flight. An entry that cannot be encoded fails here, by itself."""
        while self.batch is None and not self.is_empty:
            if self.identity is None:
                self.identity, self.sequence = identity, 0
            try:
                self._make(encode, self.identity)
            except Unencodable as error:
                self._fail([self._pop_first()], str(error), passing=False)
        batch = self.batch
        if batch is None or batch.is_in_flight:
            return None
        batch.is_in_flight = True
        batch.attempts += 1
        return batch

    def _make(self, encode: Encode, identity: Identity) -> None:
        if self.pieces:
            piece = self.pieces[0]
            data, count = encode(piece, identity, self.sequence, self.limit)
            entries, rest = piece[:count], piece[count:]
            self.pieces.popleft()
            if rest:
                self.pieces.appendleft(rest)
        else:
            waiting = self.waiting
            data, count = encode(waiting, identity, self.sequence, self.limit)
            entries = [waiting.popleft() for _ in range(count)]
        self.batch = Batch(self, entries, data, identity, self.sequence)

    # -- what became of a batch

    def acknowledged(self, batch: Batch, offset: int, timestamp: int) -> None:
        """It is written from ``offset`` on (-1: the broker no longer knows where). ``timestamp``: milliseconds, -1
        where the records keep theirs."""
        if self.batch is not batch:
            return
        self.batch = None
        self.trouble = ""
        entries = batch.entries
        self.sequence = (self.sequence + len(entries)) % _SEQUENCES
        topic, partition = self.topic, self.partition
        step = 0 if offset < 0 else 1
        new = tuple.__new__  # half the time of Produced(...)
        for delivery, index in entries:
            written = timestamp
            if written < 0:
                given = delivery.outputs[index].timestamp
                written = delivery.timestamp if given is None else given
            delivery.placed(index, new(Produced, (topic, partition, offset, written)))
            offset += step

    def again(self, batch: Batch, trouble: str) -> None:
        """Repeat it as it is: whatever the broker did with it, it does nothing twice."""
        if self.batch is batch:
            batch.is_in_flight = False
            self.trouble = trouble

    def split(self, batch: Batch, explain: Explain, *, is_too_large: bool) -> None:
        """It was refused for one of its entries, or its size: find the guilty one. Nothing of it was written."""
        if self.batch is not batch:
            return
        self.batch = None
        entries, size = batch.entries, len(batch.data)
        if len(entries) > 1:
            if is_too_large:
                self.limit = min(self.limit, max(1, size // 2))
            middle = len(entries) // 2
            self.pieces.extendleft((entries[middle:], entries[:middle]))
        else:
            self._fail(entries, explain(size), passing=False)

    def anew(self, batch: Batch, trouble: str) -> Identity | None:
        """The broker does not accept our numbers: send it under another identity. Returns the one that is lost."""
        if self.batch is not batch:
            return None
        self.batch = None
        self.trouble = trouble
        self.pieces.appendleft(batch.entries)
        return self._lose_identity()

    def refused(self, batch: Batch, reason: str, *, was_written: bool) -> Identity | None:
        """All of it fails for good. Returns the identity that is lost, if it may have been written."""
        if self.batch is not batch:
            return None
        self.batch = None
        lost = self._lose_identity() if was_written else None
        self._fail(batch.entries, reason, passing=False)
        return lost

    # -- giving up

    def expire(self, deadline: float, explain: Callable[[PartitionQueue], str]) -> tuple[Batch | None, Identity | None]:
        """Fail what is out of time, as of ``deadline``.

        Returns the batch to be cut off if one is in flight, and the identity that is lost: whether that batch was
        or will be written is not known, so its number can neither be used again nor be passed over. Younger entries
        of it are sent again, before all others.
        """
        if (first := self.next_deadline) is None or first > deadline:
            return None, None
        late: list[Entry] = []
        cut: Batch | None = None
        lost: Identity | None = None
        batch = self.batch
        if batch is not None:
            self.batch = None
            cut = batch if batch.is_in_flight else None
            lost = self._lose_identity()
            self.pieces.appendleft(batch.entries)
        while self.pieces and self.pieces[0][0][0].deadline <= deadline:
            piece = self.pieces.popleft()
            late += [entry for entry in piece if entry[0].deadline <= deadline]
            if young := [entry for entry in piece if entry[0].deadline > deadline]:
                self.pieces.appendleft(young)
        while self.waiting and self.waiting[0][0].deadline <= deadline:
            late.append(self.waiting.popleft())
        self._fail(late, explain(self), passing=True)
        return cut, lost

    def drain(self) -> list[Entry]:
        """Take everything out, in order; nothing is under way any more."""
        entries = [] if self.batch is None else list(self.batch.entries)
        if self.batch is not None:
            self.batch = None
            self._lose_identity()
        for piece in self.pieces:
            entries += piece
        entries += self.waiting
        self.pieces.clear()
        self.waiting.clear()
        return entries

    def _lose_identity(self) -> Identity | None:
        lost, self.identity = self.identity, None
        return lost

    def _pop_first(self) -> Entry:
        if not self.pieces:
            return self.waiting.popleft()
        piece = self.pieces[0]
        first = piece.pop(0)
        if not piece:
            self.pieces.popleft()
        return first

    def _fail(self, entries: Iterable[Entry], reason: str, *, passing: bool) -> None:
        partition = None if self.partition < 0 else self.partition
        for delivery, _ in entries:
            delivery.failed(ProduceFailed(self.topic, partition, reason, passing=passing))
