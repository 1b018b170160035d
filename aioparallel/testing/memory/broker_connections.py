# ruff: noqa: D102 - documented in aioparallel.clients.producing.brokers.Brokers

"""The in-memory broker as a cluster for the queueing producer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import cycle
from typing import Final, NamedTuple, TypeVar

from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch
from aioparallel.clients.producing.produce_answers import Answer, Verdict, answer_of, unanswered
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import AuthenticationFailed, BrokerUnreachable, NotAuthorized
from aioparallel.records.record import Outgoing, TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.connection import Connection
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.link import RETRY_BACKOFF
from aioparallel.testing.memory.produced import Numbers
from aioparallel.testing.memory.refused import RETRIABLE, Refused

__all__ = ["NAME", "InMemoryBrokers", "Sent"]

NAME: Final = "the in-memory broker"
_NEXT: Final = 1.0
"""Seconds without an answer before the next node is asked, as with a real cluster."""

T = TypeVar("T")


class Sent(NamedTuple):
    """A snapshot of a batch at the time of sending, unaffected by later changes in the producer."""

    partition: TopicPartition
    records: Sequence[Outgoing]
    size: int
    numbers: Numbers


class InMemoryBrokers:
    """Implements :class:`~aioparallel.clients.producing.brokers.Brokers`.

    Leaders are those of the last metadata, which only :meth:`update` and :meth:`doubt` request. Requests that any node
    can answer go to the nodes in turn, including hung ones, because a client cannot know. A silent node costs a second,
    or the request timeout if that is shorter.

    ``timeout``: seconds before a request times out and its connection breaks.
    """

    def __init__(self, broker: InMemoryBroker, on_metadata: Callable[[], None], timeout: float) -> None:
        self.is_connected = False
        self._broker = broker
        self._on_metadata = on_metadata
        self._timeout = timeout
        self._turns = cycle(broker.numbers)
        self._connections: dict[int, Connection] = {}
        self._topics: frozenset[str] = frozenset()
        self._leaders: Mapping[TopicPartition, int | None] = {}
        self._refused: Collection[str] = ()
        self._updating: asyncio.Task[None] | None = None

    # -- asking

    async def connect(self, timeout: float) -> None:
        try:
            await self._ask(Request.CONNECT, self._broker.log_in, timeout)
        except TimeoutError:
            raise BrokerUnreachable(NAME, timeout, "it does not answer") from None
        self.is_connected = True

    async def identify(self) -> Identity:
        try:
            return await self._ask_each(Request.IDENTIFY, self._new_identity)
        except Refused as refused:
            if refused.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise NotAuthorized(
                    "producing: this user needs WRITE on some topic (before Kafka 2.8: IDEMPOTENT_WRITE on the cluster)"
                ) from None
            raise ConnectionError(f"asking for a producer id: {refused}") from refused

    def _new_identity(self, now: float) -> Identity:
        if self._broker.is_idempotence_refused:
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return Identity(self._broker.producers.new_id(), 0)

    async def _ask(self, request: Request, do: Callable[[float], T], timeout: float) -> T:
        """Retry until a node answers. Raises TimeoutError, NotAuthorized, Refused."""
        async with asyncio.timeout(timeout):
            while True:
                try:
                    return await self._ask_each(request, do)
                except ConnectionError:
                    await asyncio.sleep(RETRY_BACKOFF)
                except Refused as refused:
                    if refused.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                        raise AuthenticationFailed(NAME, "login refused", "check the password") from None
                    raise

    async def _ask_each(self, request: Request, do: Callable[[float], T]) -> T:
        """Ask one node after the other, each once, until one answers. Raises ConnectionError if none does, Refused for
        a permanent error."""
        trouble = ""
        for _ in self._broker.numbers:
            try:
                # Moving on to the next node does not close this connection: outputs may be in flight on it.
                async with asyncio.timeout(_NEXT if self._timeout > _NEXT else None):
                    return await self._call(next(self._turns), request, do)
            except TimeoutError:
                trouble = f"{NAME} does not answer"
            except Refused as refused:
                if refused.code not in RETRIABLE:
                    raise
                trouble = str(refused)
        raise ConnectionError(f"{request.value}: {trouble}")

    async def _call(self, node: int, request: Request, do: Callable[[float], T]) -> T:
        connection = self._connections.get(node)
        if connection is None or not connection.is_open:
            connection = self._connections[node] = Connection(self._broker, node)
        return await connection.call(request, do, self._timeout)

    # -- producing

    async def produce(self, node: int, batches: Sequence[RecordBatch]) -> list[Answer]:
        sent = [_sent(batch) for batch in batches]
        try:
            return await self._call(
                node, Request.PRODUCE, lambda now: [self._write(node, batch, now) for batch in sent]
            )
        except Refused as refused:
            return [self._answer(refused.code)] * len(batches)
        except TimeoutError:
            return [unanswered(TimeoutError(f"{NAME} does not answer"))] * len(batches)

    def _write(self, node: int, sent: Sent, now: float) -> Answer:
        try:
            offset = self._append(node, sent, now)
        except Refused as refused:
            return self._answer(refused.code)
        return Answer(Verdict.WRITTEN, "", offset)

    def _append(self, node: int, sent: Sent, now: float) -> int:
        return self._broker.produce(*sent, node=node)

    def _answer(self, code: ErrorCode) -> Answer:
        if code is ErrorCode.NETWORK_EXCEPTION:
            return unanswered(ConnectionError(f"the connection to {NAME} broke"))
        return self._meaning(code.value, -1, -1)

    _meaning = staticmethod(answer_of)

    # -- metadata

    def leader_of(self, queue: PartitionQueue) -> int | None:
        return self._leaders.get(TopicPartition(queue.topic, queue.partition))

    @property
    def failure(self) -> None:
        return

    def address_of(self, node: int) -> str:
        return NAME

    def partitions_of(self, topic: str) -> dict[int, bool]:
        return {p.partition: node is not None for p, node in sorted(self._leaders.items()) if p.topic == topic}

    def refused_topics(self) -> Collection[str]:
        return self._refused

    def doubt(self) -> None:
        if self._updating is None or self._updating.done():
            self._updating = asyncio.get_running_loop().create_task(self._update_once())

    async def _update_once(self) -> None:
        with contextlib.suppress(OSError):  # doubt() is called again if necessary
            await self.update(self._topics)

    async def update(self, topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        try:
            self._leaders, self._refused = await self._ask_each(Request.METADATA, self._describe)
        except Refused as refused:
            raise ConnectionError(str(refused)) from refused
        self._on_metadata()

    def _describe(self, now: float) -> tuple[dict[TopicPartition, int | None], list[str]]:
        found = self._broker.partitions_of(self._topics)
        refused = [topic for topic in sorted(self._topics) if self._broker.is_denied(topic)]
        return {p: self._broker.leader(p) for p in found}, refused

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        return set(await self._ask(Request.METADATA, lambda now: self._broker.partitions_of(topics), timeout))

    # -- ending

    def cut(self, node: int) -> None:
        if (connection := self._connections.get(node)) is not None:
            connection.close()

    async def close(self, timeout: float) -> None:
        self.is_connected = False
        if self._updating is not None:
            self._updating.cancel()
            await asyncio.wait([self._updating], timeout=timeout)
        for node in self._connections:
            self.cut(node)


def _sent(batch: RecordBatch) -> Sent:
    records = [_stamped(entry.output, entry.timestamp) for entry in batch.entries]
    where = TopicPartition(batch.queue.topic, batch.queue.partition)
    return Sent(where, records, len(batch.data), Numbers(*batch.identity, batch.sequence))


def _stamped(output: Outgoing, timestamp: int) -> Outgoing:
    if output.timestamp is not None:
        return output
    # dataclasses.replace() takes several times as long.
    return Outgoing(output.topic, output.value, output.key, output.headers, output.partition, timestamp)
