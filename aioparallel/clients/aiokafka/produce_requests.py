"""The cluster for the producer, through aiokafka's connections.

aiokafka's own producer is not used. It retries without end, and assigns sequence numbers to batches that then fail,
after which it cannot continue. So batches, numbers and requests are implemented in this package. Only the batch
builder, the request classes and the connections are aiokafka's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from aioparallel.clients.aiokafka.broker_watch import BrokerWatch, first_answer
from aioparallel.clients.aiokafka.connecting import close_or_cut_off, start_client
from aioparallel.clients.aiokafka.connector import cut_all
from aioparallel.clients.aiokafka.internals import ClusterView, Connections
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.clients.aiokafka.metadata import topic_partitions
from aioparallel.clients.aiokafka.producer_settings import ProducerSettings
from aioparallel.clients.aiokafka.transaction_messages import ApiVersions
from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch
from aioparallel.clients.producing.produce_answers import Answer, answer_of, unanswered
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClusterChanged, NotAuthorized
from aioparallel.records.record import TopicPartition

__all__ = ["AiokafkaBrokers"]

logger = logging.getLogger(__name__)

_ALL: Final = -1
"""``acks``: the leader answers when all in-sync replicas have the batch."""
_TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Required in the request, but unused without a transaction."""
_IDLE: Final = 20.0
"""Seconds without an answer before a connection is probed. A load balancer or firewall may have dropped it silently,
and outputs would wait for the whole request timeout."""
_PROBE_TIMEOUT: Final = 2.0
"""Seconds for the answer to a probe."""


class AiokafkaBrokers:
    """Implements :class:`~aioparallel.clients.producing.brokers.Brokers`.

    ``on_metadata`` is called after each metadata update, and when :attr:`failure` is set.
    """

    def __init__(self, settings: ProducerSettings, on_metadata: Callable[[], None]) -> None:
        self._settings = settings
        self._on_metadata = on_metadata
        self._connections: Connections | None = None
        self._broker_watch: BrokerWatch | None = None
        self._topics: set[str] = set()
        self._addresses: dict[int, str] = {}  # including brokers that are no longer in the metadata
        self._scopes: defaultdict[int, set[asyncio.Timeout]] = defaultdict(set)  # requests to each node
        self._connected_at = 0.0  # on the loop's clock
        self._answered_at: dict[int, float] = {}  # by node

    @property
    def is_connected(self) -> bool:
        return self._connections is not None

    @property
    def failure(self) -> ClusterChanged | None:
        return None if self._broker_watch is None else self._broker_watch.failure

    async def connect(self, timeout: float) -> None:
        settings = self._settings
        connections = settings.build()
        broker_watch = BrokerWatch(
            connections,
            settings.bootstrap_servers,
            settings.request_timeout,
            rebootstrap_after=settings.rebootstrap_after,
            on_failure=lambda _failure: self._notify(),
        )
        close = partial(_close, connections, 0.1)
        await start_client(connections, connections.bootstrap, close, timeout, settings.retry_backoff)
        self._remember_addresses(connections.cluster)
        connections.cluster.add_listener(lambda _cluster: self._updated(connections.cluster))
        self._connections, self._broker_watch = connections, broker_watch
        self._connected_at = asyncio.get_running_loop().time()

    async def identify(self) -> Identity:
        if self.failure is not None:
            raise self.failure
        answer = await first_answer(self._watch().brokers(), self._ask_for_id)
        if answer is None:
            raise ConnectionError("asking for a producer id: no broker answers")
        if answer.error_code == ErrorCode.NONE:
            return Identity(answer.producer_id, answer.producer_epoch)
        if answer.error_code in {
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }:
            raise NotAuthorized(
                "producing: this user needs WRITE on some topic (before Kafka 2.8: IDEMPOTENT_WRITE on the cluster)"
            )
        raise ConnectionError(f"asking for a producer id: {kafka.for_code(answer.error_code).__name__}")

    async def _ask_for_id(self, node: int) -> Any:
        request = InitProducerIdRequest(None, _TRANSACTION_TIMEOUT_MS)
        try:
            await self._probe_idle_connection(node)
            return await self._connected().send(node, request)
        except (kafka.KafkaError, OSError) as error:
            logger.debug("No producer id from broker %d: %r", node, error, extra={"action": "no_id", "node": node})
            return None

    async def produce(self, node: int, batches: Sequence[RecordBatch]) -> list[Answer]:
        topics = grouped((batch.queue.topic, (batch.queue.partition, batch.data)) for batch in batches)
        timeout_ms = round(self._settings.request_timeout * 1000)
        request = self._request(list(topics.items()), timeout_ms)
        scopes = self._scopes[node]
        try:
            async with asyncio.timeout(None) as scope:
                scopes.add(scope)
                await self._probe_idle_connection(node)
                answer = await self._connected().send(node, request)
        except (kafka.KafkaError, OSError, TimeoutError) as error:
            return [unanswered(error)] * len(batches)
        except Exception as error:
            # The batches are retried until their deadline, whatever the error is.
            logger.exception("A produce request failed in aiokafka", extra={"action": "produce_failed", "node": node})
            return [unanswered(error)] * len(batches)
        finally:
            scopes.discard(scope)
        self._answered_at[node] = asyncio.get_running_loop().time()
        found = self._answers(answer)
        silent = unanswered(kafka.KafkaError("the broker's answer does not contain this partition"))
        return [found.get((batch.queue.topic, batch.queue.partition), silent) for batch in batches]

    async def _probe_idle_connection(self, node: int) -> None:
        """Close an idle connection over which the broker does not answer. The next request then opens another one."""
        now = asyncio.get_running_loop().time()
        if now - self._answered_at.get(node, self._connected_at) < _IDLE or not self._has_connection(node):
            return
        self._answered_at[node] = now  # so that concurrent requests do not probe it again
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT):
                await self._connected().send(node, ApiVersions())
        except kafka.IncompatibleBrokerVersion:
            """A broker before Kafka 2.4, over a working connection."""
        except TimeoutError:
            logger.info(
                "The connection to broker %d was idle and does not answer: it is replaced",
                node,
                extra={"action": "idle_connection_lost", "node": node},
            )
            cut_all(self._connected(), node)

    def _request(self, topics: list[tuple[str, list[tuple[int, bytes]]]], timeout_ms: int) -> object:
        return ProduceRequest(None, _ALL, timeout_ms, topics)

    def _answers(self, answer: Any) -> dict[tuple[str, int], Answer]:
        has_timestamp = answer.API_VERSION >= 2
        return {
            (topic, number): answer_of(code, offset, timestamp[0] if has_timestamp else -1)
            for topic, partitions in answer.topics
            for number, code, offset, *timestamp in partitions
        }

    # -- metadata

    def _updated(self, cluster: ClusterView) -> None:
        self._remember_addresses(cluster)
        self._notify()

    def _notify(self) -> None:
        try:
            self._on_metadata()
        except Exception:
            # An exception would end aiokafka's metadata task.
            logger.exception("New metadata could not be applied", extra={"action": "metadata_failed"})

    def _remember_addresses(self, cluster: ClusterView) -> None:
        for broker in cluster.brokers():
            self._addresses[broker.nodeId] = f"{broker.host}:{broker.port}"

    def leader_of(self, queue: PartitionQueue) -> int | None:
        if self._connections is None:
            return None
        return self._connections.cluster.leader_for_partition(TopicPartition(queue.topic, queue.partition))

    def partitions_of(self, topic: str) -> dict[int, bool]:
        if self._connections is None:
            return {}
        cluster = self._connections.cluster
        available = cluster.available_partitions_for_topic(topic) or set()
        return {number: number in available for number in cluster.partitions_for_topic(topic) or ()}

    def address_of(self, node: int) -> str:
        return self._addresses.get(node, "")

    def refused_topics(self) -> Collection[str]:
        return () if self._connections is None else self._connections.cluster.unauthorized_topics

    def doubt(self) -> None:
        if self._connections is not None:
            self._connections.force_metadata_update()

    async def update(self, topics: Collection[str]) -> None:
        connections = self._connected()
        if self._topics != set(topics):
            self._topics = set(topics)
            connections.set_topics(self._topics)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.request_timeout):
                await connections.force_metadata_update()

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        def connections() -> Connections:
            if self.failure is not None:
                raise self.failure
            return self._connected()

        return await topic_partitions(connections, topics, timeout, max(0.1, self._settings.retry_backoff))

    # -- ending

    def cut(self, node: int) -> None:
        if self._connections is None:
            return
        # Includes requests that are still connecting.
        for scope in self._scopes[node]:
            if not scope.expired():
                scope.reschedule(0.0)
        cut_all(self._connections, node)

    def _has_connection(self, node: int) -> bool:
        return (node, ConnectionGroup.DEFAULT) in self._connected()._conns

    async def close(self, timeout: float) -> None:
        connections, self._connections = self._connections, None
        await _close(connections, timeout)

    def _watch(self) -> BrokerWatch:
        if self._broker_watch is None:
            raise ConnectionError("not connected")
        return self._broker_watch

    def _connected(self) -> Connections:
        if self._connections is None:
            raise ConnectionError("not connected")
        return self._connections


async def _close(connections: Connections | None, timeout: float) -> None:
    if connections is not None:
        await close_or_cut_off(connections, connections.close(), timeout)
