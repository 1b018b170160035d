# ruff: noqa: D102 - documented in aioparallel.clients.producing.brokers.Brokers

"""The cluster for the producer, through aiokafka's connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Final, cast

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from aioparallel.clients.aiokafka.aiokafka_errors import AUTHENTICATION, deadline, translated
from aioparallel.clients.aiokafka.broker_watch import BrokerWatch, first_answer
from aioparallel.clients.aiokafka.connecting import close_or_cut_off, find_broker
from aioparallel.clients.aiokafka.internals import ClusterView
from aioparallel.clients.aiokafka.log_noise import calm
from aioparallel.clients.aiokafka.producer_internals import ProduceAnswer, ProducerConnections, ProducerIdAnswer
from aioparallel.clients.aiokafka.producer_settings import ProducerSettings
from aioparallel.clients.aiokafka.transaction_messages import ApiVersions
from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch
from aioparallel.clients.producing.produce_answers import Answer, answer_of, unanswered
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import BrokerUnreachable, ClusterChanged, NotAuthorized
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
        self._connections: ProducerConnections | None = None
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
        calm()
        settings = self._settings
        ends = asyncio.get_running_loop().time() + timeout
        connections: ProducerConnections | None = None
        try:
            server = await find_broker(
                settings.bootstrap_servers, settings.connection_options(), timeout, settings.retry_backoff
            )
            connections = cast("ProducerConnections", settings.build(server))
            broker_watch = BrokerWatch(
                connections,
                settings.bootstrap_servers,
                settings.request_timeout,
                rebootstrap_after=settings.rebootstrap_after,
                on_failure=lambda _failure: self._notify(),
            )
            left = max(0.0, ends - asyncio.get_running_loop().time())
            async with asyncio.timeout(left):
                await self._bootstrap(connections)
        except TimeoutError as error:
            await _close(connections, 0.1)
            raise BrokerUnreachable(settings.bootstrap_servers, timeout, str(error) or "no answer") from None
        except BaseException:
            await _close(connections, 0.1)
            raise
        self._remember_addresses(connections.cluster)
        connections.cluster.add_listener(lambda _cluster: self._updated(connections.cluster))
        self._connections, self._broker_watch = connections, broker_watch
        self._connected_at = asyncio.get_running_loop().time()

    async def _bootstrap(self, connections: ProducerConnections) -> None:
        while True:
            try:
                return await connections.bootstrap()
            except AUTHENTICATION as error:
                raise translated(error, "connecting") from error
            except kafka.KafkaError:
                await asyncio.sleep(max(0.1, self._settings.retry_backoff))

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

    async def _ask_for_id(self, node: int) -> ProducerIdAnswer | None:
        request = InitProducerIdRequest(cast("str", None), _TRANSACTION_TIMEOUT_MS)
        try:
            await self._probe_idle_connection(node)
            return cast("ProducerIdAnswer", await self._connected().send(node, request))
        except (kafka.KafkaError, OSError) as error:
            logger.debug("No producer id from broker %d: %r", node, error, extra={"action": "no_id", "node": node})
            return None

    async def produce(self, node: int, batches: Sequence[RecordBatch]) -> list[Answer]:
        topics: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for batch in batches:
            topics[batch.queue.topic].append((batch.queue.partition, batch.data))
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
                await self._connected().send(node, ApiVersions("aioparallel", "1"))
        except kafka.IncompatibleBrokerVersion:
            """A broker before Kafka 2.4, over a working connection."""
        except TimeoutError:
            logger.info(
                "The connection to broker %d was idle and does not answer: it is replaced",
                node,
                extra={"action": "idle_connection_lost", "node": node},
            )
            self._close_connections(node)

    def _request(self, topics: list[tuple[str, list[tuple[int, bytes]]]], timeout_ms: int) -> object:
        return ProduceRequest(cast("str", None), _ALL, timeout_ms, topics)

    def _answers(self, answer: object) -> dict[tuple[str, int], Answer]:
        answered = cast("ProduceAnswer", answer)
        return {
            (topic, fields[0]): answer_of(fields[1], fields[2], fields[3] if answered.API_VERSION >= 2 else -1)
            for topic, partitions in answered.topics
            for fields in partitions
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
        # Requests all topics, so none is created.
        async with deadline(timeout, f"asking for the partitions of {', '.join(sorted(topics))}"):
            while True:
                if self.failure is not None:
                    raise self.failure
                try:
                    cluster = await self._connected().fetch_all_metadata()
                    break
                except kafka.KafkaError:
                    await asyncio.sleep(max(0.1, self._settings.retry_backoff))
        return {TopicPartition(name, number) for name in topics for number in cluster.partitions_for_topic(name) or ()}

    # -- ending

    def cut(self, node: int) -> None:
        if self._connections is None:
            return
        # Includes requests that are still connecting.
        for scope in self._scopes[node]:
            if not scope.expired():
                scope.reschedule(0.0)
        self._close_connections(node)

    def _has_connection(self, node: int) -> bool:
        return (node, ConnectionGroup.DEFAULT) in self._connected()._conns

    def _close_connections(self, node: int) -> None:
        """Includes connections that were replaced for a new login and still wait for answers."""
        for (of, _), connection in list(self._connected()._conns.items()):
            if of == node and (writer := connection._writer) is not None:
                connection.close()
                writer.transport.abort()

    async def close(self, timeout: float) -> None:
        connections, self._connections = self._connections, None
        await _close(connections, timeout)

    def _watch(self) -> BrokerWatch:
        if self._broker_watch is None:
            raise ConnectionError("not connected")
        return self._broker_watch

    def _connected(self) -> ProducerConnections:
        if self._connections is None:
            raise ConnectionError("not connected")
        return self._connections


async def _close(connections: ProducerConnections | None, timeout: float) -> None:
    if connections is not None:
        await close_or_cut_off(connections, connections.close(), timeout)
