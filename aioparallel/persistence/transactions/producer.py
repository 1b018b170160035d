"""A producer that can write in Kafka's transactions, as their committer sees it. Clients implement it.

What it promises beside :mod:`aioparallel.delivery.producer`:

* One transaction at a time. What is sent after :meth:`TransactionalProducer.begin` is of the transaction with that
  epoch, until the next ``begin``; with it go the offsets of :meth:`TransactionalProducer.commit_offsets`.
* Each request about the transaction is one attempt, within ``timeout`` seconds, and its answer is the broker's code;
  what follows from it is decided by whoever asks. None of them raises anything but CancelledError, unless it says so.
* It is Kafka's protocol with ``transaction.version`` 2 (KIP-890): each transaction has an epoch of its own, which the
  end of the one before has told, and partitions need not be announced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.group.client import Committed, Generation
from aioparallel.records.record import Outgoing, TopicPartition

__all__ = ["NO_ANSWER", "Epoch", "Epochs", "StableOffsets", "TransactionalProducer"]

NO_ANSWER: Final = -1_000
"""In the place of a code: nothing was heard. It may have been carried out."""


class Epoch(NamedTuple):
    """Whose transaction it is: what each of its requests is fenced with."""

    producer_id: int
    number: int


class Epochs(NamedTuple):
    """An answer that may tell an epoch."""

    code: int
    epoch: Epoch | None = None


class StableOffsets(NamedTuple):
    """What is committed, where no transaction under way may change it."""

    code: int
    """Of the whole answer."""
    found: Mapping[TopicPartition, Committed | int | None]
    """Of each partition its position, None where there is none, or the code that tells why it is not known. What the
    answer leaves out is not in it."""


class TransactionalProducer(Producer, Protocol):
    """See the module."""

    on_broken: Callable[[int], None] | None
    """Hears the code with which a broker has refused a batch, where that means that the transaction which goes on now
    cannot be committed."""

    def plain(self) -> Producer:
        """A new producer of the same cluster that writes outside of transactions."""

    def identify_as(self, transactional_id: str) -> str:
        """From now on the cluster knows it by this; returns that. Nothing is open or outstanding."""

    async def check_transactions(self, timeout: float) -> None:
        """Raise TransactionsUnsupported where the brokers have no transactions of version 2, BrokerUnreachable where
        none answers within ``timeout`` seconds."""

    @property
    def unchecked_bytes(self) -> int:
        """Key and value together: up to here an output without headers, for a topic that exists, is never refused."""

    def send_all(self, deliveries: Sequence[PendingOutput]) -> None:
        """:meth:`send_one` for each of these, for which :meth:`refusal` has said None."""

    def refusal(self, output: Outgoing) -> str | None:
        """Why this output can never be sent, as far as that is known without a broker; or None."""

    async def initialize(self, known: Epoch | None, transaction_timeout: float, timeout: float) -> Epochs:
        """InitProducerId: an epoch to begin with. ``known``: our own so far; None: whoever had this id before is
        fenced. A transaction that is open is aborted by it. ``transaction_timeout``: seconds after which the brokers
        abort one by themselves."""

    def waits_for(self) -> str:
        """What keeps an output from being written, as far as that is known, for people; empty where nothing waits."""

    def begin(self, epoch: Epoch) -> None:
        """What is sent from now on is of this transaction. Nothing is outstanding."""

    def abandon(self) -> None:
        """What was sent and is not acknowledged is sent no more; each of these fails, as passing, within this call."""

    async def commit_offsets(
        self, epoch: Epoch, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, int]:
        """TxnOffsetCommit, fenced with the member's generation: a code for each partition."""

    async def end(self, epoch: Epoch, timeout: float, *, commit: bool) -> Epochs:
        """EndTxn. The epoch in its answer is the next transaction's."""

    async def stable_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> StableOffsets:
        """OffsetFetch with ``require_stable``, of the consumer's group."""
