"""The cluster for the transactional producer, through aiokafka's connections.

aiokafka implements the transactions of Kafka 0.11. Their offsets are not fenced by the group's generation, and a late
batch may become part of a later transaction. So this package has its own requests (``transaction_messages.py``). The
producer decides what follows from their error codes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.coordination import FindCoordinatorRequest

from aioparallel.clients.aiokafka.broker_watch import first_answer
from aioparallel.clients.aiokafka.connector import close_silent
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.clients.aiokafka.produce_requests import AiokafkaBrokers
from aioparallel.clients.aiokafka.producer_settings import ProducerSettings
from aioparallel.clients.aiokafka.transaction_messages import (
    ApiVersions,
    EndTxn,
    InitProducerId,
    OffsetFetch,
    Produce,
    TxnOffsetCommit,
    finalized_features,
)
from aioparallel.clients.producing.produce_answers import Answer, answer_in_transaction
from aioparallel.group.client import Committed, Generation
from aioparallel.persistence.transactions import NO_ANSWER, Epoch, Epochs, StableOffsets
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import TransactionsUnsupported
from aioparallel.records.record import TopicPartition

__all__ = ["TransactionalAiokafkaBrokers"]

logger = logging.getLogger(__name__)

_OF_GROUP: Final = 0
_OF_TRANSACTIONS: Final = 1
"""Kinds of coordinators in a FindCoordinator request."""
_ALL: Final = -1
_GONE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_SILENT: Final = 1.0
"""Shortest timeout in seconds whose expiry closes the connection. A shorter one says nothing about it."""
_FEATURE: Final = "transaction.version"
_LEVEL: Final = 2


class TransactionalAiokafkaBrokers(AiokafkaBrokers):
    """Implements :class:`~aioparallel.clients.producing.transactional.TransactionalBrokers`.

    ``group_id``: the group whose offsets are committed. ``instance``: the member's ``group.instance.id``, or None.
    """

    def __init__(
        self, settings: ProducerSettings, on_metadata: Callable[[], None], group_id: str, instance: str | None
    ) -> None:
        super().__init__(settings, on_metadata)
        self.transactional_id = ""
        self._group_id = group_id
        self._instance = instance
        self._coordinators: dict[tuple[int, str], int] = {}  # by kind and key

    # -- at the start

    async def check_transactions(self, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            while True:
                answer = await first_answer(self._watch().brokers(), self._ask_for_versions)
                if answer is not None:
                    break
                await asyncio.sleep(max(0.1, self._settings.retry_backoff))
        level = finalized_features(answer).get(_FEATURE, 0)
        if level < _LEVEL:
            found = f"have finalized the feature {_FEATURE} at level {level}" if level else "are older than Kafka 4.0"
            raise TransactionsUnsupported(self._settings.bootstrap_servers, found)

    async def _ask_for_versions(self, node: int) -> Mapping[int, bytes] | None:
        try:
            answer = await self._connected().send(node, ApiVersions())
        except kafka.IncompatibleBrokerVersion:
            return {}
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            _log(f"asking broker {node} for its versions", error)
            return None
        return cast("Mapping[int, bytes]", answer.tags) if answer.error_code == ErrorCode.NONE else None

    # -- batches

    def _request(self, topics: list[tuple[str, list[tuple[int, bytes]]]], timeout_ms: int) -> object:
        return Produce(
            self.transactional_id,
            _ALL,
            timeout_ms,
            [(topic, [(number, data, {}) for number, data in batches], {}) for topic, batches in topics],
        )

    def _answers(self, answer: Any) -> dict[tuple[str, int], Answer]:
        return {
            (topic, partition): answer_in_transaction(code, offset, timestamp)
            for topic, partitions, _ in answer.topics
            for partition, code, offset, timestamp, *_ in partitions
        }

    # -- transactions

    async def initialize(self, known: Epoch | None, transaction_timeout: float, timeout: float) -> Epochs:
        epoch = known or Epoch(-1, -1)
        request = InitProducerId(self.transactional_id, round(transaction_timeout * 1000), *epoch)
        return await self._epochs(request, timeout)

    async def end(self, epoch: Epoch, timeout: float, *, commit: bool) -> Epochs:
        return await self._epochs(EndTxn(self.transactional_id, *epoch, commit), timeout)

    async def _epochs(self, request: object, timeout: float) -> Epochs:
        answer = await self._ask(_OF_TRANSACTIONS, request, timeout)
        if isinstance(answer, int):
            return Epochs(answer)
        self._forget_if_gone(_OF_TRANSACTIONS, [answer.error_code])
        if answer.error_code != ErrorCode.NONE:
            return Epochs(answer.error_code)
        return Epochs(ErrorCode.NONE, Epoch(answer.producer_id, answer.producer_epoch))

    async def commit_offsets(
        self, epoch: Epoch, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, int]:
        topics: dict[str, list[tuple[Any, ...]]] = grouped(
            (topic, (number, one.offset, one.leader_epoch, one.metadata, {}))
            for (topic, number), one in positions.items()
        )
        request = TxnOffsetCommit(
            self.transactional_id,
            self._group_id,
            *epoch,
            generation.id,
            generation.member_id,
            self._instance,
            [(topic, partitions, {}) for topic, partitions in topics.items()],
        )
        answer = await self._ask(_OF_GROUP, request, timeout)
        if isinstance(answer, int):
            return dict.fromkeys(positions, answer)
        found = {
            TopicPartition(topic, partition): code
            for topic, partitions, _ in answer.topics
            for partition, code, _ in partitions
        }
        self._forget_if_gone(_OF_GROUP, found.values())
        return found

    async def stable_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> StableOffsets:
        topics: list[tuple[Any, ...]] = [(topic, numbers, {}) for topic, numbers in grouped(partitions).items()]
        request = OffsetFetch(self._group_id, topics, True)
        answer = await self._ask(_OF_GROUP, request, timeout)
        if isinstance(answer, int):
            return StableOffsets(answer, {})
        found: dict[TopicPartition, Committed | int | None] = {}
        for topic, several, _ in answer.topics:
            for partition, offset, leader_epoch, metadata, code, _ in several:
                position = Committed(offset, metadata or "", leader_epoch) if offset >= 0 else None
                found[TopicPartition(topic, partition)] = code if code != ErrorCode.NONE else position
        codes = [answer.error_code, *[code for code in found.values() if isinstance(code, int)]]
        self._forget_if_gone(_OF_GROUP, codes)
        return StableOffsets(answer.error_code, found)

    # -- coordinators

    async def _ask(self, kind: int, request: object, timeout: float) -> Any:
        """Return the coordinator's answer, or an error code."""
        key = (kind, self.transactional_id if kind == _OF_TRANSACTIONS else self._group_id)
        node: int | None = None
        try:
            async with asyncio.timeout(timeout):
                node = self._coordinators.get(key)
                if node is None:
                    node = self._coordinators[key] = await self._find(*key)
                return await self._connected().send(node, request, group=ConnectionGroup.COORDINATION)
        except _NotFound as error:
            return error.code
        except kafka.IncompatibleBrokerVersion as error:
            _log(str(request), error)
            return ErrorCode.UNSUPPORTED_VERSION
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            _log(str(request), error)
            self._forget(kind)
            if isinstance(error, TimeoutError) and timeout >= _SILENT and self._connections is not None:
                # Later requests in the same connection would not be answered either.
                close_silent(self._connections, node, ConnectionGroup.COORDINATION)
            return NO_ANSWER

    async def _find(self, kind: int, key: str) -> int:
        """Look up the coordinator's node. Raises _NotFound."""

        async def ask(node: int) -> Any | None:
            try:
                return await self._connected().send(node, FindCoordinatorRequest(key, kind))
            except (kafka.KafkaError, OSError, TimeoutError) as error:
                _log("FindCoordinator", error)
                return None

        answer = await first_answer(self._watch().brokers(), ask)
        if answer is None:
            self.doubt()
            raise _NotFound(NO_ANSWER)
        if answer.error_code != ErrorCode.NONE:
            raise _NotFound(answer.error_code)
        return int(answer.coordinator_id)

    def _forget_if_gone(self, kind: int, found: Collection[int]) -> None:
        if not _GONE.isdisjoint(found):
            self._forget(kind)

    def _forget(self, kind: int) -> None:
        """Look up the coordinator again at the next request."""
        for key in [key for key in self._coordinators if key[0] == kind]:
            del self._coordinators[key]


class _NotFound(Exception):
    """No coordinator was found, for the reason in ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _log(what: str, error: Exception) -> None:
    logger.debug("%s was not answered: %r", what, error, extra={"action": "transaction_unanswered"})
