"""TransactionalQueueingProducer: the queueing producer within Kafka transactions, on any cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, cast

from aioparallel.clients.producing.brokers import Brokers
from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import PartitionQueue
from aioparallel.clients.producing.produce_answers import Answer
from aioparallel.clients.producing.producer import QueueingProducer
from aioparallel.clients.producing.queues import PartitionQueues
from aioparallel.delivery.producer import PendingOutput
from aioparallel.group.client import Committed, Generation
from aioparallel.persistence.transactions import NO_ANSWER, Epoch, Epochs, StableOffsets
from aioparallel.records.record import Outgoing, TopicPartition

__all__ = ["TransactionalBrokers", "TransactionalQueueingProducer"]


class TransactionalBrokers(Brokers, Protocol):
    """A cluster with transactions. Each call makes one attempt within ``timeout`` seconds and raises only
    CancelledError, except :meth:`check_transactions`. See
    :class:`~aioparallel.persistence.transactions.TransactionalProducer`.

    Batches are sent under the transactional id. The implementation looks up the coordinators, and again after each
    answer that requires it.
    """

    transactional_id: str

    async def check_transactions(self, timeout: float) -> None:
        """Raises TransactionsUnsupported or TimeoutError."""

    async def initialize(self, known: Epoch | None, transaction_timeout: float, timeout: float) -> Epochs:
        """Send InitProducerId."""

    async def commit_offsets(
        self, epoch: Epoch, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, int]:
        """Send TxnOffsetCommit."""

    async def end(self, epoch: Epoch, timeout: float, *, commit: bool) -> Epochs:
        """Send EndTxn."""

    async def stable_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> StableOffsets:
        """Send OffsetFetch for stable offsets."""


class TransactionalQueueingProducer(QueueingProducer):
    """Implements :class:`~aioparallel.persistence.transactions.TransactionalProducer`. Arguments: see
    :class:`QueueingProducer`."""

    # A retry of outputs for a missing topic would hold up the transactions of all partitions.
    _missing_is_transient = False

    on_broken: Callable[[int], None] | None = None

    def __init__(
        self,
        partition_queues: PartitionQueues,
        connect_to: Callable[[Callable[[], None]], TransactionalBrokers],
        **options: Any,
    ) -> None:
        super().__init__(partition_queues, connect_to, **options)
        partition_queues.on_broken = self._broken

    def _broken(self, answer: Answer) -> None:
        if self.on_broken is not None:
            self.on_broken(answer.code)

    async def _identify(self) -> None:
        """Does nothing: the coordinator assigns the next epoch, at the end of the current transaction."""

    def identify_as(self, transactional_id: str) -> str:
        self._transactional.transactional_id = transactional_id
        return transactional_id

    def begin(self, epoch: Epoch) -> None:
        self._partition_queues.begin(Identity(epoch.producer_id, epoch.number))

    def abandon(self) -> None:
        # A broker that does not answer would hold up the next transaction as well.
        self._sender.cut(self._sender.requests.silent(asyncio.get_running_loop().time()), "it has not answered in time")
        left = [(queue, self._explain_abandoned(queue), queue.drain()) for queue in self._partition_queues.queues]
        self._partition_queues.clear()
        for queue, reason, entries in left:
            self._outstanding.failed(
                entries, reason, passing=True, partition=None if queue.partition < 0 else queue.partition
            )

    def _explain_abandoned(self, queue: PartitionQueue) -> str:
        if queue.missing_since is not None:
            return self._explain_missing(queue)
        leader = self._brokers.leader_of(queue) if queue.partition >= 0 else None
        no_leader = "" if leader is not None and leader >= 0 else "the partition has no leader"
        return queue.trouble or no_leader or self._trouble or "its broker has not acknowledged it yet"

    def waits_for(self) -> str:
        waiting = [queue for queue in self._partition_queues.queues if not queue.is_empty]
        if not waiting:
            return ""
        queue = min(waiting, key=lambda one: (one.missing_since is None, not one.trouble))
        place = queue.topic if queue.partition < 0 else f"{queue.topic}-{queue.partition}"
        return f"{place}: {self._explain_abandoned(queue)}"

    @property
    def unchecked_bytes(self) -> int:
        return self._partition_queues.unchecked_bytes

    def send_all(self, deliveries: Sequence[PendingOutput]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        if self._is_closed:
            for delivery in deliveries:
                self.send_one(delivery)
            return
        deadline, now = loop.time() + self._delivery_timeout, int(time.time() * 1000)
        for delivery in deliveries:
            delivery.deadline = deadline
            given = delivery.output.timestamp
            delivery.timestamp = now if given is None else given
        for delivery, reason in self._partition_queues.add_all(deliveries):
            loop.call_soon(self._refuse, delivery, reason, False)
        if not self._is_awake or self._timer is None:
            self._schedule(loop, deadline)

    def refusal(self, output: Outgoing) -> str | None:
        return self._partition_queues.refusal(output)

    async def check_transactions(self, timeout: float) -> None:
        await self._transactional.check_transactions(timeout)

    async def initialize(self, known: Epoch | None, transaction_timeout: float, timeout: float) -> Epochs:
        # A missing topic must be reported within the transaction, because everything else waits for it.
        self._missing_timeout = min(self._missing_timeout, transaction_timeout / 2)
        if not self._brokers.is_connected:
            return Epochs(NO_ANSWER)
        return await self._transactional.initialize(known, transaction_timeout, timeout)

    async def commit_offsets(
        self, epoch: Epoch, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, int]:
        return await self._transactional.commit_offsets(epoch, positions, generation, timeout)

    async def end(self, epoch: Epoch, timeout: float, *, commit: bool) -> Epochs:
        return await self._transactional.end(epoch, timeout, commit=commit)

    async def stable_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> StableOffsets:
        return await self._transactional.stable_offsets(partitions, timeout)

    @property
    def _transactional(self) -> TransactionalBrokers:
        return cast("TransactionalBrokers", self._brokers)
