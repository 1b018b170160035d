# ruff: noqa: D102 - documented in aioparallel.clients.producing.transactional.TransactionalBrokers

"""The in-memory broker as a cluster for the transactional producer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from aioparallel.clients.producing.produce_answers import answer_in_transaction
from aioparallel.group.client import Committed, Generation
from aioparallel.persistence.transactions import NO_ANSWER, Epoch, Epochs, StableOffsets
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import TransactionsUnsupported
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.broker_connections import NAME, InMemoryBrokers, Sent
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.refused import Refused

__all__ = ["InMemoryTransactionalBrokers"]

T = TypeVar("T")


class InMemoryTransactionalBrokers(InMemoryBrokers):
    """Implements :class:`~aioparallel.clients.producing.transactional.TransactionalBrokers`.

    Any node is a coordinator. After a node has not answered, another one is asked.
    """

    def __init__(
        self,
        broker: InMemoryBroker,
        on_metadata: Callable[[], None],
        timeout: float,
        group_id: str,
        instance_id: str | None,
    ) -> None:
        super().__init__(broker, on_metadata, timeout)
        self._instance_id = instance_id
        self.transactional_id = ""
        self._group_id = group_id
        self._coordinator = next(self._turns)

    async def check_transactions(self, timeout: float) -> None:
        if self._broker.transaction_version < 2:
            raise TransactionsUnsupported(NAME, "are older than Kafka 4.0")

    def _append(self, node: int, sent: Sent, now: float) -> int:
        return self._broker.produce(*sent, node=node, transactional_id=self.transactional_id, now=now)

    _meaning = staticmethod(answer_in_transaction)

    async def initialize(self, known: Epoch | None, transaction_timeout: float, timeout: float) -> Epochs:
        name, transactions = self.transactional_id, self._broker.transactions
        return await self._epochs(
            Request.IDENTIFY, lambda now: transactions.initialize(name, known, transaction_timeout, now)
        )

    async def end(self, epoch: Epoch, timeout: float, *, commit: bool) -> Epochs:
        name, transactions = self.transactional_id, self._broker.transactions
        return await self._epochs(Request.END_TXN, lambda now: transactions.end(name, epoch, now, commit=commit))

    async def _epochs(self, request: Request, do: Callable[[float], Epoch]) -> Epochs:
        answer = await self._ask_coordinator(request, do)
        return Epochs(answer) if isinstance(answer, int) else Epochs(ErrorCode.NONE, answer)

    async def commit_offsets(
        self, epoch: Epoch, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, int]:
        name, group, sent, instance = self.transactional_id, self._group_id, dict(positions), self._instance_id
        answer = await self._ask_coordinator(
            Request.TXN_OFFSETS,
            lambda now: self._broker.commit_in_transaction(name, epoch, group, sent, generation, now, instance),
        )
        if isinstance(answer, int):
            return dict.fromkeys(positions, answer)
        return {partition: ErrorCode.NONE if code is None else code for partition, code in answer.items()}

    async def stable_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> StableOffsets:
        wanted = tuple(partitions)
        answer = await self._ask_coordinator(
            Request.OFFSET_FETCH, lambda now: self._broker.stable_offsets(self._group_id, wanted)
        )
        return StableOffsets(answer, {}) if isinstance(answer, int) else StableOffsets(ErrorCode.NONE, answer)

    async def _ask_coordinator(self, request: Request, do: Callable[[float], T]) -> T | int:
        """Return the answer, or an error code."""
        if request is not Request.OFFSET_FETCH and not self._broker.is_coordinator_available:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            return await self._call(self._coordinator, request, do)
        except Refused as refused:
            if refused.code is ErrorCode.NETWORK_EXCEPTION:
                self._coordinator = next(self._turns)
            return NO_ANSWER if refused.code is ErrorCode.NETWORK_EXCEPTION else refused.code
        except TimeoutError:
            self._coordinator = next(self._turns)
            return NO_ANSWER
