"""The in-memory producer: the queues and retries of the real one, on the in-memory broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, cast

from aioparallel.clients.aiokafka.produce_codes import answer_of, unanswered
from aioparallel.clients.outbox import QueueingProducer
from aioparallel.clients.outbox.deliveries import Entry
from aioparallel.clients.outbox.outbox import Outbox
from aioparallel.clients.outbox.partition_queue import Batch, Identity, PartitionQueue
from aioparallel.clients.outbox.verdicts import Answer, Verdict
from aioparallel.errors import BrokerUnreachable, ConfigurationError, NotAuthorized
from aioparallel.records import Outgoing, TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.codes import ErrorCode, Refused
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.link import RETRY_BACKOFF, Link

__all__ = ["InMemoryProducer"]

_NODE: Final = 1
_NAME: Final = "the in-memory broker"
_BATCH_BYTES: Final = 16 * 1024
_OVERHEAD: Final = 10
_LONGEST_REQUEST: Final = 1.0
"""Seconds until a request without an answer is sent again; a quarter of the delivery timeout if that is less."""


class InMemoryProducer(QueueingProducer):
    """A :class:`~aioparallel.engine.producer.Producer` of an :class:`InMemoryBroker`.

    What is queued, batched, sent again, split or given up is decided by the same code as with a real cluster; only
    the requests are answered in memory. Faults of ``Request.PRODUCE`` meet them, one for all batches of a request,
    those of ``Request.METADATA`` and ``Request.CONNECT`` the rest. All times come from the running event loop.

    ``delivery_timeout``: seconds from ``send`` until an output fails that was not acknowledged.
    """

    def __init__(self, broker: InMemoryBroker, *, delivery_timeout: float = 120.0) -> None:
        if not delivery_timeout > 0:
            raise ConfigurationError("delivery_timeout", delivery_timeout, "seconds, more than 0")
        timeout = min(_LONGEST_REQUEST, delivery_timeout / 4)
        super().__init__(
            Outbox(_encode, _accept, batch_bytes=_BATCH_BYTES, unchecked_bytes=2**31),
            lambda on_metadata: InMemoryBrokers(broker, on_metadata, timeout),
            servers=_NAME,
            delivery_timeout=delivery_timeout,
            retry_backoff=RETRY_BACKOFF,
        )


class InMemoryBrokers:
    """The cluster of one broker. See :class:`~aioparallel.clients.outbox.brokers.Brokers` for each call."""

    def __init__(self, broker: InMemoryBroker, on_metadata: Callable[[], None], timeout: float) -> None:
        self.is_connected = False
        self._broker = broker
        self._link = Link(broker, "")
        self._on_metadata = on_metadata
        self._timeout = timeout
        self._topics: frozenset[str] = frozenset()
        self._known: frozenset[TopicPartition] = frozenset()
        # Requests that were sent over a connection that was cut do not arrive.
        self._connection: asyncio.Future[None] | None = None

    async def connect(self, timeout: float) -> None:
        try:
            await self._link.ask(Request.CONNECT, self._log_in, timeout)
        except TimeoutError:
            raise BrokerUnreachable(_NAME, timeout, "it does not answer") from None
        self.is_connected = True

    def _log_in(self, now: float) -> None:
        if self._broker.is_login_refused:
            raise Refused(ErrorCode.SASL_AUTHENTICATION_FAILED)

    async def identify(self) -> Identity:
        if self._broker.is_idempotence_refused:
            raise NotAuthorized("an idempotent producer (permission IDEMPOTENT_WRITE on the cluster)")
        if not self._broker.is_reachable:
            raise ConnectionError(f"{_NAME} is not reachable")
        return Identity(self._broker.producers.new_id(), 0)

    async def produce(self, node: int, batches: Sequence[Batch]) -> list[Answer]:
        self._look_again()
        if self._connection is None or self._connection.done():
            self._connection = asyncio.get_running_loop().create_future()
        connection = self._connection

        def arrive(now: float) -> list[Answer]:
            return unreached if connection.done() else [self._write(batch) for batch in batches]

        unreached = [Answer(Verdict.AGAIN, "the connection was cut")] * len(batches)
        request = asyncio.ensure_future(self._link.call(Request.PRODUCE, arrive, self._timeout))
        try:
            waits: list[asyncio.Future[object]] = [cast("asyncio.Future[object]", f) for f in (request, connection)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                return unreached
            return request.result()
        except Refused as refused:
            return [answer_of(refused.code, -1, -1)] * len(batches)
        except TimeoutError:
            return [unanswered(TimeoutError("the in-memory broker does not answer"))] * len(batches)
        finally:
            request.cancel()

    def _write(self, batch: Batch) -> Answer:
        outputs = [delivery.outputs[index] for delivery, index in batch.entries]
        stamps = [delivery.timestamp for delivery, _ in batch.entries]
        records = [o if o.timestamp is not None else _stamped(o, at) for o, at in zip(outputs, stamps, strict=True)]
        where = TopicPartition(batch.queue.topic, batch.queue.partition)
        try:
            offset = self._broker.produce(where, records, len(batch.data), batch.identity.producer_id, batch.sequence)
        except Refused as refused:
            return answer_of(refused.code, -1, -1)
        return Answer(Verdict.WRITTEN, "", offset)

    # -- metadata

    def leader_of(self, queue: PartitionQueue) -> int | None:
        return _NODE if TopicPartition(queue.topic, queue.partition) in self._known else None

    def partitions_of(self, topic: str) -> dict[int, bool]:
        return {p.partition: True for p in sorted(self._known) if p.topic == topic}

    def refused_topics(self) -> Collection[str]:
        return [topic for topic in self._topics if self._broker.is_denied(topic)]

    def doubt(self) -> None:
        self._look_again()

    async def update(self, topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        try:
            found = await self._link.call(
                Request.METADATA, lambda now: self._broker.partitions_of(self._topics), self._timeout
            )
        except (Refused, TimeoutError) as error:
            raise ConnectionError(str(error)) from error
        self._learn(found)

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        return set(await self._link.ask(Request.METADATA, lambda now: self._broker.partitions_of(topics), timeout))

    def _look_again(self) -> None:
        if self._broker.is_reachable and (found := self._broker.partitions_of(self._topics)) != self._known:
            self._learn(found)

    def _learn(self, found: Iterable[TopicPartition]) -> None:
        self._known = frozenset(found)
        self._on_metadata()

    # -- ending

    def cut(self, node: int) -> None:
        if self._connection is not None and not self._connection.done():
            self._connection.set_result(None)

    async def close(self, timeout: float) -> None:
        self.cut(_NODE)
        self.is_connected = False


def _encode(entries: Iterable[Entry], identity: Identity, sequence: int, limit: int) -> tuple[bytes, int]:
    """Nothing is written; the size is what counts."""
    size = count = 0
    for delivery, index in entries:
        more = _size(delivery.outputs[index])
        if count and size + more > limit:
            break
        size += more
        count += 1
    return bytes(size), count


def _size(output: Outgoing) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in output.headers)
    return _OVERHEAD + len(output.key or b"") + len(output.value or b"") + headers


def _accept(entry: Entry) -> str | None:
    return None


def _stamped(output: Outgoing, timestamp: int) -> Outgoing:
    return Outgoing(output.topic, output.value, output.key, output.headers, output.partition, timestamp)
