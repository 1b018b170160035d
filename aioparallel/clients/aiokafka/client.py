"""AiokafkaClient: implements the client interface with one AIOKafkaConsumer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Final, NamedTuple

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.group import LeaveGroupRequest

from aioparallel.clients.aiokafka.aiokafka_errors import deadline, is_passing, translated
from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.connecting import close, find_broker
from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.internals import Consumer, Coordinator, Fetcher
from aioparallel.clients.aiokafka.log_ends_watch import LogEndsWatch
from aioparallel.clients.aiokafka.log_identity import LogIdentity
from aioparallel.clients.aiokafka.log_noise import calm
from aioparallel.clients.aiokafka.log_reading import read_spans
from aioparallel.clients.aiokafka.membership import Membership
from aioparallel.clients.aiokafka.metadata import (
    LogEnds,
    WholeName,
    cleanup_policy,
    keep_all_topics,
    topic_partitions,
)
from aioparallel.clients.aiokafka.offset_requests import GroupOffsets
from aioparallel.clients.aiokafka.read_replicas import ReadReplicas
from aioparallel.clients.aiokafka.settings import ConsumerSettings
from aioparallel.group.client import CommitFault, Committed, Fetched, Generation, RebalanceListener, Span
from aioparallel.observe.stats import Contact
from aioparallel.records.errors import BrokerUnreachable, ClientError, ConsumerStateError
from aioparallel.records.record import TopicPartition

__all__ = ["AiokafkaClient"]

logger = logging.getLogger(__name__)

_SHORTEST_HEARTBEAT_TIMEOUT: Final = 1.0
"""Shortest timeout of a heartbeat in seconds, whatever the session timeout: brokers and this process may be busy."""


class _Running(NamedTuple):
    """The state between start and stop."""

    consumer: Consumer
    broker_watch: BrokerWatch
    fetcher: Fetcher
    coordinator: Coordinator
    walk: FetchWalk
    offsets: GroupOffsets
    ends: LogEnds
    watch: LogEndsWatch
    identity: LogIdentity
    watching: tuple[asyncio.Task[None], ...]


class AiokafkaClient:
    """One member of one group, through aiokafka. See :class:`~aioparallel.group.client.Client` for each method.

    ``bootstrap_servers``: comma-separated ``host:port``.

    ``session_timeout``: seconds without heartbeats after which the coordinator removes the member.
    ``heartbeat_interval``: seconds between heartbeats. ``rebalance_timeout``: seconds that each member has to give up
    its partitions in a rebalance.

    ``client_options``: options of ``aiokafka.AIOKafkaConsumer`` by their names there: TLS, SASL, ``isolation_level``,
    ``group_instance_id``, fetch sizes ... Raises ConfigurationError for unknown options, and for those that have a
    counterpart in this package.

    ``offset_retention``: seconds that the group's offsets outlive a commit while it has no members. None leaves it to
    the broker, whose default is 7 days.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        group_id: str,
        *,
        session_timeout: float = 30.0,
        heartbeat_interval: float = 3.0,
        rebalance_timeout: float = 60.0,
        client_options: Mapping[str, object] | None = None,
        offset_retention: float | None = None,
    ) -> None:
        self._offset_retention = offset_retention
        self._settings = ConsumerSettings(
            bootstrap_servers,
            group_id,
            session_timeout=session_timeout,
            heartbeat_interval=heartbeat_interval,
            rebalance_timeout=rebalance_timeout,
            client_options=client_options or {},
        )
        self._running: _Running | None = None
        self._membership: Membership | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        # An exception from the listener, which fetch raises.
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        state = "running" if self._running else "not running"
        return f"<AiokafkaClient {self._settings.bootstrap_servers} group {self._settings.group_id!r} {state}>"

    async def start(self, timeout: float) -> None:
        """Connect. Raises BrokerUnreachable or NotAuthorized within ``timeout`` seconds."""
        if self._running is not None:
            raise ConsumerStateError("the client is started already; use a new one")
        calm()
        settings = self._settings
        consumer = settings.build()
        heartbeat_timeout = max(_SHORTEST_HEARTBEAT_TIMEOUT, settings.session_timeout / 3)
        broker_watch = BrokerWatch(
            consumer._client,
            settings.bootstrap_servers,
            heartbeat_timeout,
            settings.fetch_wait,
            rebootstrap_after=settings.rebootstrap_after,
            on_failure=self._fail,
        )
        loop = asyncio.get_running_loop()
        closing = min(1.0, timeout / 10)
        ends = loop.time() + timeout - closing
        try:
            server = await find_broker(
                settings.bootstrap_servers, settings.connection_options(), timeout - closing, settings.retry_backoff
            )
            # Start with the broker that answers; the cluster's metadata then names the others.
            consumer._client._bootstrap_servers = server
            async with deadline(max(0.0, ends - loop.time()), f"connecting to {server}"):
                await consumer.start()
        except TimeoutError as error:
            await close(consumer, closing)
            raise BrokerUnreachable(settings.bootstrap_servers, timeout, str(error)) from None
        except BaseException:
            await close(consumer, closing)
            raise
        self._running = self._set_up(consumer, broker_watch)

    def _set_up(self, consumer: Consumer, broker_watch: BrokerWatch) -> _Running:
        fetcher, coordinator, subscriptions = consumer._fetcher, consumer._coordinator, consumer._subscription
        if fetcher is None or coordinator is None:
            raise RuntimeError("aiokafka has started without a fetcher or a coordinator")
        if self._settings.prefetch_backoff is not None:
            fetcher._prefetch_backoff = self._settings.prefetch_backoff
        # Pretend that a fetch is always in progress. Otherwise aiokafka leaves the group when none of its own methods
        # was called for max_poll_interval_ms, whose maximum is 24.8 days.
        subscriptions._fetch_count += 1
        # Wake a waiting fetch when aiokafka's task ends; aiokafka does not.
        fetcher._fetch_task.add_done_callback(lambda _task: self.wake())
        read_committed = consumer._isolation_level == "read_committed"
        ReadReplicas(fetcher, self._settings.fetch_wait)
        walk = FetchWalk(fetcher, subscriptions, broker_watch.epochs, read_committed=read_committed)
        identity = walk.identity = LogIdentity(consumer._client, lambda: walk.assigned, self.wake)
        offsets = GroupOffsets(
            self._settings.group_id,
            coordinator,
            consumer._client,
            identity.topic_ids,
            retry_backoff=self._settings.retry_backoff,
            on_fenced=self.fenced,
            offset_retention=self._offset_retention,
        )
        watch = LogEndsWatch(consumer._client, walk, broker_watch.last_contacts, read_committed=read_committed)
        watching = (
            asyncio.create_task(watch.run(), name="aioparallel-log-ends"),
            asyncio.create_task(identity.run(), name="aioparallel-log-identity"),
        )
        ends = LogEnds(fetcher)
        return _Running(consumer, broker_watch, fetcher, coordinator, walk, offsets, ends, watch, identity, watching)

    async def stop(self, timeout: float) -> None:
        """Leave the group and close all connections, within ``timeout`` seconds. Raises only CancelledError."""
        running, self._running = self._running, None
        if self._membership is not None:
            self._membership.close()
        self.wake()
        if running is None:
            return
        for task in running.watching:
            task.cancel()
        running.identity.close()
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        try:
            await self._leave_while_joining(running, timeout / 5)
        finally:
            await close(running.consumer, max(0.0, ends - loop.time()))

    async def _leave_while_joining(self, running: _Running, timeout: float) -> None:
        """Leave the group while a JoinGroup request is unanswered.

        The coordinator answers it when every other member has given up its partitions, after the rebalance timeout at
        the latest. Until then it reads nothing more from that connection. If the member did not leave, the group would
        assign partitions to it and wait for its session to expire. So the LeaveGroup request, which also ends the join,
        uses another connection.
        """
        coordinator = running.coordinator
        node, member_id = coordinator.coordinator_id, coordinator.member_id
        if not running.consumer._subscription.reassignment_in_progress or node is None or not member_id:
            return
        if coordinator._group_instance_id is not None:
            return  # a static member returns with the same id
        request = LeaveGroupRequest(self._settings.group_id, member_id)
        with contextlib.suppress(kafka.KafkaError, TimeoutError):
            async with asyncio.timeout(timeout):
                await running.consumer._client.send(node, request, group=ConnectionGroup.DEFAULT)

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        """All partitions of these topics, queried now. Creates no topic."""
        return await topic_partitions(self._run().consumer, topics, timeout, self._settings.retry_backoff)

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        """Start to join the group for these topics and return at once. The listener gets the assignments.

        A pattern matches new topics at the next metadata update (``metadata_max_age_ms``, 5 minutes).
        """
        running = self._run()
        if self._membership is not None:
            raise ConsumerStateError("the client has subscribed already; use a new one")
        self._membership = membership = Membership(
            listener,
            running.coordinator,
            group_id=self._settings.group_id,
            park=running.walk.park,
            on_failure=self._fail,
        )
        subscriptions, connections = running.consumer._subscription, running.consumer._client
        if isinstance(topics, re.Pattern):
            subscriptions.subscribe_pattern(WholeName(topics), listener=membership)
            connections.set_topics(())
            keep_all_topics(connections)
        else:
            subscriptions.subscribe(set(topics), listener=membership)
            connections.set_topics(set(topics))
            running.watch.topics = frozenset(topics)

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """Take at most ``quotas[p]`` records of each partition ``p``, and ``most`` in total, in one walk.

        Waits for data or for :meth:`wake`. Yields to the loop first: while there is always data, nothing else would.
        Raises OffsetOutOfRange, NotAuthorized, FetchFailed, ClusterChanged, ClientError, and the listener's exception.
        """
        running = self._run()
        await asyncio.sleep(0)
        while self._running is running:
            self._raise_failures(running)
            # No await between here and the return, so that no taken record is lost.
            taken = running.walk.take(quotas, most)
            if taken or self._woken:
                self._woken = False
                return taken
            await self._data_or_wake(running.fetcher)
        return []

    async def _data_or_wake(self, fetcher: Fetcher) -> None:
        self._waiter = waiter = fetcher._create_fetch_waiter()
        # check_errors() raises the same error that aiokafka sets on the waiter.
        with contextlib.suppress(kafka.KafkaError):
            try:
                await waiter
            finally:
                self._waiter = None

    def _raise_failures(self, running: _Running) -> None:
        """Raise each failure of a background task once."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        fetching = running.fetcher._fetch_task
        try:
            running.coordinator.check_errors()
            if fetching.done():
                fetching.result()
        except kafka.KafkaError as error:
            if not is_passing(error):
                doing = f"taking part in group {self._settings.group_id!r}"
                raise translated(error, doing, running.broker_watch.join_code) from error
            logger.info(
                "A transient failure in group %s: %r", self._settings.group_id, error, extra={"action": "group_failure"}
            )
        if fetching.done():
            raise ClientError("aiokafka has stopped fetching by itself; start a new client")

    def wake(self) -> None:
        """Let the waiting :meth:`fetch` return now. If none is waiting, the next one does not wait."""
        self._woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Send one OffsetCommit request, once, fenced with ``generation``. Returns a result for each partition."""
        if self._running is None:
            return dict.fromkeys(offsets, CommitFault.RETRIABLE)
        return await self._running.offsets.commit(offsets, generation, timeout)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        """The group's committed offsets with their metadata. Partitions without one are left out."""
        return await self._run().offsets.committed(partitions, timeout)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Fetch this partition from ``offset`` on. Ignored if it is no longer assigned."""
        if self._running is not None:
            self._running.walk.seek(partition, offset)

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """The first offset of each log."""
        return await self._run().ends.beginning(partitions, timeout)

    async def end_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """The offset of the next record; under read_committed, the last stable offset."""
        return await self._run().ends.end(partitions, timeout)

    async def written_end_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """The offset of the next record, including undecided transactions."""
        return await self._run().ends.written(partitions, timeout)

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """Up to which offset each log agrees with the given leader epoch; see the interface."""
        return await self._run().identity.valid_ends(epochs, timeout)

    async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]:
        """The id of each topic, if the cluster provides it."""
        return await self._run().identity.topic_ids(topics, timeout)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, int | None]:
        """The first offset at or after each time (milliseconds since the epoch); None if there is none."""
        return await self._run().ends.at(times, timeout)

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """The end offset in the last fetch response, without a request; None before the first."""
        return None if self._running is None else self._running.walk.end_offset_seen(partition)

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        """The same, including undecided transactions."""
        return None if self._running is None else self._running.walk.written_end_seen(partition)

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        """Seconds since an end offset was received; None before the first."""
        return None if self._running is None else self._running.broker_watch.last_contacts.since_end_received(partition)

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id; None while the client is not running, or before a broker has sent it."""
        return None if self._running is None else self._running.broker_watch.cluster_id

    def contact(self) -> Contact:
        """When the brokers last answered."""
        if self._running is None:
            return Contact()
        last_contacts = self._running.broker_watch.last_contacts
        brokers = self._running.consumer._client.cluster.brokers()
        return Contact(
            fetch=last_contacts.since_answered("fetch"),
            heartbeat=last_contacts.since_answered("heartbeat"),
            commit=last_contacts.since_answered("commit"),
            brokers=last_contacts.brokers({broker.nodeId: f"{broker.host}:{broker.port}" for broker in brokers}),
            leaderless=self._running.watch.leaderless,
            missing=self._running.watch.missing,
        )

    def read(self, spans: Mapping[TopicPartition, Span | list[Span]]) -> AsyncGenerator[Fetched, None]:
        """Read these partitions from start to end of each span, over separate connections."""
        return read_spans(
            spans,
            self._settings.bootstrap_servers,
            self._settings.reading_options(),
            rebootstrap_after=self._settings.rebootstrap_after,
            cluster_id=self.cluster_id,
        )

    async def cleanup_policy(self, topic: str, timeout: float) -> str | None:
        """The topic's ``cleanup.policy``; None if the broker does not provide it."""
        return await cleanup_policy(self._run().consumer._client, topic, timeout)

    def _run(self) -> _Running:
        if self._running is None:
            raise ConsumerStateError("the client is not running; start() it first, and not after stop()")
        return self._running

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self.wake()

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """Another process has fenced this generation, as an answer of the group shows."""
        if self._membership is not None:
            self._membership.fenced(generation, instance_fenced=instance_fenced)
