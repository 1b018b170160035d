"""The protocol of a producer that writes in Kafka transactions. Clients implement it.

It adds these rules to :mod:`aioparallel.delivery.producer`:

* There is one transaction at a time. All outputs sent after :meth:`TransactionalProducer.begin` belong to the
  transaction with that epoch, until the next ``begin``. So do the offsets of
  :meth:`TransactionalProducer.commit_offsets`.
* Each request about the transaction is one attempt, within ``timeout`` seconds, and returns the broker's error code.
  The caller decides what to do. The requests raise only CancelledError, unless they say otherwise.
* It is Kafka's protocol with ``transaction.version`` 2 (KIP-890). Each transaction has its own epoch, which the end of
  the previous one returns. Partitions are not added with a request of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.group.client import Committed, Generation
from aioparallel.records.record import Outgoing, TopicPartition

__all__ = ["NO_ANSWER", "Epoch", "Epochs", "StableOffsets", "TransactionalProducer"]

NO_ANSWER: Final = -1_000
"""Used instead of an error code: no answer came. The request may have succeeded."""


class Epoch(NamedTuple):
    """The producer id and epoch that each request of a transaction is fenced with."""

    producer_id: int
    number: int


class Epochs(NamedTuple):
    """An answer that may contain an epoch."""

    code: int
    epoch: Epoch | None = None


class StableOffsets(NamedTuple):
    """Committed offsets that no open transaction can change."""

    code: int
    """The error code of the whole answer."""
    found: Mapping[TopicPartition, Committed | int | None]
    """For each partition: its position, None if it has none, or an error code. Partitions missing from the answer are
    missing here."""


class TransactionalProducer(Producer, Protocol):
    """A producer that writes in transactions. The module describes the rules."""

    on_broken: Callable[[int], None] | None
    """Called with the error code of a refused batch if the current transaction cannot be committed then."""

    def plain(self) -> Producer:
        """Return a new producer for the same cluster that writes without transactions."""

    def identify_as(self, transactional_id: str) -> str:
        """Use this transactional id from now on, and return it. Nothing may be open or unacknowledged."""

    async def check_transactions(self, timeout: float) -> None:
        """Raise TransactionsUnsupported if the brokers have no transactions of version 2, or BrokerUnreachable if none
        answers within ``timeout`` seconds."""

    @property
    def unchecked_bytes(self) -> int:
        """Bytes of key and value up to which an output without headers for an existing topic is never refused."""

    def send_all(self, deliveries: Sequence[PendingOutput]) -> None:
        """:meth:`send_one` for each of these, for which :meth:`refusal` has said None."""

    def refusal(self, output: Outgoing) -> str | None:
        """Return why this output can never be sent, or None. It does not ask a broker."""

    async def initialize(self, known: Epoch | None, transaction_timeout: float, timeout: float) -> Epochs:
        """Send InitProducerId, which returns the first epoch and aborts an open transaction. ``known``: current epoch;
        None: fence the previous user of this id. ``transaction_timeout``: seconds after which the brokers abort a
        transaction."""

    def waits_for(self) -> str:
        """Describe, in a message, what delays outputs; empty if nothing is known to."""

    def begin(self, epoch: Epoch) -> None:
        """Begin a transaction: it gets all outputs sent from now on. Call it only when nothing is unacknowledged."""

    def abandon(self) -> None:
        """Stop sending unacknowledged outputs. Within this call, each of them fails with ``passing`` set."""

    async def commit_offsets(
        self, epoch: Epoch, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, int]:
        """Send TxnOffsetCommit, fenced with the member's generation. Returns an error code for each partition."""

    async def end(self, epoch: Epoch, timeout: float, *, commit: bool) -> Epochs:
        """Send EndTxn. The epoch in its answer is for the next transaction."""

    async def stable_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> StableOffsets:
        """Send OffsetFetch with ``require_stable`` for the consumer's group."""
