"""AiokafkaClient: implements the client interface with one AIOKafkaConsumer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
from collections.abc import AsyncGenerator, Collection, Mapping
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.aiokafka_errors import is_passing, translated
from aioparallel.clients.aiokafka.auto_group import AutoGroup
from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.classic_group import ClassicGroup
from aioparallel.clients.aiokafka.connecting import close, start_client
from aioparallel.clients.aiokafka.consumer_group import ConsumerGroup
from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.internals import Consumer, Fetcher
from aioparallel.clients.aiokafka.log_ends_watch import LogEndsWatch
from aioparallel.clients.aiokafka.log_identity import LogIdentity
from aioparallel.clients.aiokafka.log_reading import read_spans
from aioparallel.clients.aiokafka.metadata import (
    cleanup_policy,
    keep_all_topics,
    log_offsets,
    read_uncommitted,
    topic_partitions,
)
from aioparallel.clients.aiokafka.offset_requests import CoordinatorNode, GroupOffsets
from aioparallel.clients.aiokafka.read_replicas import ReadReplicas
from aioparallel.clients.aiokafka.settings import ConsumerSettings
from aioparallel.group.client import CommitFault, Committed, Fetched, Generation, RebalanceListener, Span
from aioparallel.observe.stats import Contact
from aioparallel.records.errors import ClientError, ConfigurationError, ConsumerStateError
from aioparallel.records.record import TopicPartition

__all__ = ["AiokafkaClient"]

logger = logging.getLogger(__name__)

_SHORTEST_HEARTBEAT_TIMEOUT: Final = 1.0
"""Shortest timeout of a heartbeat in seconds, whatever the session timeout: brokers and this process may be busy."""


class Group(Protocol):
    """A member of a group, in one of the two protocols."""

    @property
    def assigns_in_steps(self) -> bool:
        """See :class:`~aioparallel.group.client.Client`."""

    @property
    def coordinator(self) -> CoordinatorNode:
        """Where offsets are committed."""

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        """Join. Called once."""

    def check(self) -> None:
        """Raise the KafkaError that has ended the membership."""

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """See :meth:`AiokafkaClient.fenced`."""

    def removed(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """A commit says that the member is none any more."""

    def stale(self, generation: Generation) -> None:
        """A commit had an older epoch than the member's at the coordinator."""

    def close(self) -> None:
        """Call the listener no more."""

    async def leave(self, timeout: float) -> None:
        """Leave the group, before its connections are closed, within a part of ``timeout``: the rest is for closing.
        Raises only CancelledError."""


class _Running(NamedTuple):
    """The state between start and stop."""

    consumer: Consumer
    broker_watch: BrokerWatch
    fetcher: Fetcher
    group: Group
    walk: FetchWalk
    offsets: GroupOffsets
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
    the broker, whose default is 7 days. Only with ``group_protocol="classic"``.

    ``group_protocol``: ``consumer`` is the protocol of Kafka 4.0 (KIP-848), in which a rebalance stops only the
    partitions that move. The brokers set session timeout and heartbeat interval then, and assign the partitions:
    ``group_remote_assignor`` is the name of the assignor there, such as ``uniform`` or ``range``. ``auto`` is the
    classic protocol if the brokers do not have the new one, or refuse it for this group, and for patterns of topics.
    Unlike a consumer's, it does not follow from other options.
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
        group_protocol: Literal["classic", "consumer", "auto"] = "classic",
        group_remote_assignor: str | None = None,
    ) -> None:
        if offset_retention is not None and group_protocol != "classic":
            raise ConfigurationError(
                "offset_retention",
                offset_retention,
                'needs group_protocol="classic": commits of the new protocol have no retention of their own. Leave it '
                "out, and set offsets.retention.minutes of the brokers",
            )
        self._offset_retention = offset_retention
        self._settings = ConsumerSettings(
            bootstrap_servers,
            group_id,
            session_timeout=session_timeout,
            heartbeat_interval=heartbeat_interval,
            rebalance_timeout=rebalance_timeout,
            client_options=client_options or {},
            group_protocol=group_protocol,
            remote_assignor=group_remote_assignor,
        )
        self._running: _Running | None = None
        self._starting: tuple[asyncio.Timeout, asyncio.Event] | None = None  # what stops a start, and its end
        self._has_subscribed = False
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        # An exception from the listener, which fetch raises.
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        state = "running" if self._running else "not running"
        return f"<AiokafkaClient {self._settings.bootstrap_servers} group {self._settings.group_id!r} {state}>"

    @property
    def assigns_in_steps(self) -> bool:
        return self._running is not None and self._running.group.assigns_in_steps

    async def start(self, timeout: float) -> None:
        if self._running is not None or self._starting is not None:
            raise ConsumerStateError("the client is started already; use a new one")
        ended = asyncio.Event()
        try:
            async with asyncio.timeout(None) as scope:
                self._starting = scope, ended
                self._running = await self._connected(timeout)
        except TimeoutError:  # by stop(): connecting has its own deadline, and another error
            raise ConsumerStateError("the client was stopped while it started; use a new one") from None
        finally:
            self._starting = None
            ended.set()

    async def _connected(self, timeout: float) -> _Running:
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
        closing = min(1.0, timeout / 10)
        await start_client(
            consumer._client,
            consumer.start,
            partial(close, consumer, closing),
            timeout,
            settings.retry_backoff,
            closing=closing,
        )
        return self._set_up(consumer, broker_watch)

    def _set_up(self, consumer: Consumer, broker_watch: BrokerWatch) -> _Running:
        settings, subscriptions = self._settings, consumer._subscription
        fetcher, coordinator = consumer._fetcher, consumer._coordinator
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
        walk = FetchWalk(fetcher, subscriptions, read_committed=read_committed)
        identity = walk.identity = LogIdentity(consumer._client, broker_watch.brokers, lambda: walk.assigned, self.wake)
        make_new = partial(ConsumerGroup, settings, consumer, broker_watch, walk)
        make_classic = partial(
            ClassicGroup, consumer, group_id=settings.group_id, park=walk.park, on_failure=self._fail
        )
        group: Group
        if settings.group_protocol == "consumer":
            group = make_new(self._fail)
        elif settings.group_protocol == "classic":
            group = make_classic(coordinator)
        else:
            group = AutoGroup(settings, consumer, make_new, make_classic, self._fail)
        offsets = GroupOffsets(
            settings.group_id,
            group.coordinator,
            consumer._client,
            identity.topic_ids,
            retry_backoff=settings.retry_backoff,
            instance_id=settings.instance_id,
            on_fenced=group.removed,
            on_stale=group.stale,
            offset_retention=self._offset_retention,
        )
        watch = LogEndsWatch(consumer._client, walk, broker_watch.last_contacts, read_committed=read_committed)
        watching = (
            asyncio.create_task(watch.run(), name="aioparallel-log-ends"),
            asyncio.create_task(identity.run(), name="aioparallel-log-identity"),
        )
        return _Running(consumer, broker_watch, fetcher, group, walk, offsets, watch, identity, watching)

    async def stop(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        if self._starting is not None:
            scope, ended = self._starting
            if not scope.expired():  # by another stop()
                scope.reschedule(loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await ended.wait()
        running, self._running = self._running, None
        self.wake()
        if running is None:
            return
        running.group.close()
        for task in running.watching:
            task.cancel()
        running.identity.close()
        try:
            await running.group.leave(timeout)
        finally:
            await close(running.consumer, max(0.0, ends - loop.time()))

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        consumer = self._run().consumer
        return await topic_partitions(
            lambda: consumer._client, topics, timeout, self._settings.retry_backoff, consumer._exclude_internal_topics
        )

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        """A pattern matches new topics at the next metadata update (``metadata_max_age_ms``, 5 minutes)."""
        running = self._run()
        if self._has_subscribed:
            raise ConsumerStateError("the client has subscribed already; use a new one")
        self._has_subscribed = True
        running.group.subscribe(topics, listener)
        connections = running.consumer._client
        if isinstance(topics, re.Pattern):
            connections.set_topics(())
            keep_all_topics(connections)
        else:
            connections.set_topics(set(topics))
            running.watch.topics = frozenset(topics)

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """Yields to the loop first: while there is always data, nothing else would."""
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
            running.group.check()
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
        self._woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        if self._running is None:
            return dict.fromkeys(offsets, CommitFault.RETRIABLE)
        return await self._running.offsets.commit(offsets, generation, timeout)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        return await self._run().offsets.committed(partitions, timeout)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if self._running is not None:
            self._running.walk.seek(partition, offset)

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        fetcher = self._run().fetcher
        return await log_offsets(fetcher, fetcher.beginning_offsets, partitions, timeout, "the first offsets")

    async def end_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        fetcher = self._run().fetcher
        return await log_offsets(fetcher, fetcher.end_offsets, partitions, timeout, "the end offsets")

    async def written_end_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        fetcher = read_uncommitted(self._run().fetcher)
        return await log_offsets(fetcher, fetcher.end_offsets, partitions, timeout, "the end offsets")

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        return await self._run().identity.valid_ends(epochs, timeout)

    async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]:
        return await self._run().identity.topic_ids(topics, timeout)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, int | None]:
        fetcher = self._run().fetcher
        found = await log_offsets(fetcher, fetcher.get_offsets_by_times, times, timeout, "offsets by time")
        return {partition: None if at is None else at.offset for partition, at in found.items()}

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        return None if self._running is None else self._running.walk.end_offset_seen(partition)

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        return None if self._running is None else self._running.walk.written_end_seen(partition)

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        return None if self._running is None else self._running.broker_watch.last_contacts.since_end_received(partition)

    @property
    def cluster_id(self) -> str | None:
        return None if self._running is None else self._running.broker_watch.cluster_id

    def contact(self) -> Contact:
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

    def read(
        self, spans: Mapping[TopicPartition, Span | list[Span]], *, as_fetched: bool = False
    ) -> AsyncGenerator[Fetched, None]:
        return read_spans(
            spans,
            self._settings.bootstrap_servers,
            self._settings.options,
            rebootstrap_after=self._settings.rebootstrap_after,
            cluster_id=self.cluster_id,
            only_committed=not as_fetched,
        )

    async def cleanup_policy(self, topic: str, timeout: float) -> str | None:
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
        if self._running is not None:
            self._running.group.fenced(generation, instance_fenced=instance_fenced)
