"""The transaction coordinator of the in-memory broker: Kafka's transactions of version 2 (KIP-98, KIP-447, KIP-890).

Each transaction has its own epoch. A request with another epoch is refused, however late it is. A repeated end gets the
same answer. Offsets of a transaction are pending until it ends. Plain data; time is passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aioparallel.group.client import Committed
from aioparallel.persistence.transactions import Epoch
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.log import Transaction
from aioparallel.testing.memory.refused import Refused

if TYPE_CHECKING:
    from aioparallel.testing.memory.broker import InMemoryBroker

__all__ = ["TransactionCoordinator"]

LAST_EPOCH: Final = 32_766
"""Last epoch of a producer id; the next transaction gets another id."""
LONGEST_TIMEOUT: Final = 900.0
"""Longest transaction timeout in seconds (``transaction.max.timeout.ms``)."""


@dataclass(slots=True)
class _Open:
    """A transaction that has begun and whose markers are not written yet."""

    transaction: Transaction
    began: float
    offsets: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    is_commit: bool | None = None
    """How it ends; None: not decided yet."""
    ends: float = 0.0
    """When its markers are written."""


@dataclass(slots=True)
class _Producer:
    """The producer of one transactional id."""

    epoch: Epoch
    timeout: float
    before: Epoch | None = None
    """The previous epoch. ``before_was_commit``: how its producer ended it; None: something else ended it."""
    before_was_commit: bool | None = None
    before_may_repeat: bool = False
    open: _Open | None = None


class TransactionCoordinator:
    """Coordinates all transactional ids of a broker, whose logs and groups it writes to."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self._broker = broker
        self._producers: dict[str, _Producer] = {}
        self.marker_delay = 0.0
        """Seconds from the answer to EndTxn until the markers are written. Meanwhile offsets are not stable, and the
        next transaction cannot begin."""
        self.last_epoch = LAST_EPOCH

    # -- requests

    def initialize(self, transactional_id: str, known: Epoch | None, timeout: float, now: float) -> Epoch:
        """InitProducerId. Raises Refused."""
        if timeout > LONGEST_TIMEOUT:
            raise Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        producer = self._producers.get(transactional_id)
        if producer is None:
            producer = self._producers[transactional_id] = _Producer(self._first_epoch(), timeout)
            return producer.epoch
        if known is not None and known not in (producer.epoch, producer.before):
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if producer.open is not None:
            if producer.open.is_commit is None:
                self._decide(producer, commit=False, now=now)
                self._bump(producer, None)
                self.advance(now)
                raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            self.advance(now)
            if producer.open is not None:
                raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        producer.timeout = timeout
        if known is None or known != producer.before:
            self._bump(producer, None)
        return producer.epoch  # a producer with the previous epoch has not received the current one

    def write(self, transactional_id: str, epoch: Epoch, now: float) -> Transaction:
        """The transaction of a batch, which begins it if necessary. Raises Refused."""
        return self._opened(self._current(transactional_id, epoch), now).transaction

    def begin(self, transactional_id: str, epoch: Epoch, now: float) -> None:
        """Begin the transaction, unless it has begun. Offsets do this before the group is checked. Raises Refused."""
        self._opened(self._current(transactional_id, epoch), now)

    def add_offsets(
        self,
        transactional_id: str,
        epoch: Epoch,
        group_id: str,
        offsets: Mapping[TopicPartition, Committed],
        now: float,
    ) -> None:
        """Add offsets that the group's coordinator has accepted to the transaction."""
        opened = self._opened(self._current(transactional_id, epoch), now)
        opened.offsets.setdefault(group_id, {}).update(offsets)

    def end(self, transactional_id: str, epoch: Epoch, now: float, *, commit: bool) -> Epoch:
        """EndTxn. Returns the epoch of the next transaction. Raises Refused."""
        producer = self._producers.get(transactional_id)
        if producer is None:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if epoch == producer.epoch:
            if producer.open is not None and producer.open.is_commit is not None:
                raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
            if producer.open is None and commit:
                raise Refused(ErrorCode.INVALID_TXN_STATE)
            if producer.open is not None:
                self._decide(producer, commit=commit, now=now)
            self._bump(producer, commit)
            self.advance(now)
            return producer.epoch
        if epoch != producer.before or not producer.before_may_repeat:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        if producer.before_was_commit is not commit:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        if producer.open is not None:
            # The next transaction is open, so this end was answered before, and is late.
            raise Refused(
                ErrorCode.PRODUCER_FENCED if producer.open.is_commit is None else ErrorCode.CONCURRENT_TRANSACTIONS
            )
        return producer.epoch

    def pending(self, group_id: str, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those of these partitions whose offsets are part of a transaction."""
        held: set[TopicPartition] = set()
        for opened in self._all_open():
            held.update(opened.offsets.get(group_id, ()))
        return held.intersection(partitions)

    # -- time

    def advance(self, now: float) -> None:
        """Abort transactions that have timed out, and write the markers that are due."""
        for producer in self._producers.values():
            opened = producer.open
            if opened is None:
                continue
            if opened.is_commit is None and now >= opened.began + producer.timeout:
                self._decide(producer, commit=False, now=now)
                self._bump(producer, None)
                producer.before_may_repeat, producer.before_was_commit = True, False
            if opened.is_commit is not None and now >= opened.ends:
                producer.open = None
                self._broker.end_transaction(opened.transaction, commit=opened.is_commit)
                if opened.is_commit:
                    for group_id, offsets in opened.offsets.items():
                        self._broker.group(group_id).offsets.update(offsets)

    @property
    def open_transactions(self) -> int:
        """Number of transactions without markers."""
        return sum(1 for _ in self._all_open())

    def _all_open(self) -> Iterator[_Open]:
        return (producer.open for producer in self._producers.values() if producer.open is not None)

    def _current(self, transactional_id: str, epoch: Epoch) -> _Producer:
        producer = self._producers.get(transactional_id)
        if producer is None:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if epoch != producer.epoch:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        if producer.open is not None and producer.open.is_commit is not None:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        return producer

    def _opened(self, producer: _Producer, now: float) -> _Open:
        if producer.open is None:
            producer.open = _Open(self._broker.begin_transaction(), now)
        return producer.open

    def _decide(self, producer: _Producer, *, commit: bool, now: float) -> None:
        assert producer.open is not None
        producer.open.is_commit = commit
        producer.open.ends = now + self.marker_delay

    def _bump(self, producer: _Producer, ended_by_commit: bool | None) -> None:
        """Begin the next epoch. ``ended_by_commit``: how the producer ended the current one; None: it did not."""
        producer.before, producer.before_was_commit = producer.epoch, ended_by_commit
        producer.before_may_repeat = ended_by_commit is not None
        producer_id, number = producer.epoch
        producer.epoch = Epoch(producer_id, number + 1) if number < self.last_epoch else self._first_epoch()

    def _first_epoch(self) -> Epoch:
        return Epoch(self._broker.producers.new_id(), 0)
