"""A member of a share group between start and stop: its connections, its coroutines, and which leader gets which
partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from aiokafka import TopicPartition as AiokafkaTopicPartition  # required by aiokafka

from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.log_identity import LogIdentity
from aioparallel.clients.aiokafka.share_membership import MemberState, ShareCoordinator, ShareMembership
from aioparallel.clients.aiokafka.share_sessions import LeaderSession
from aioparallel.clients.aiokafka.share_settings import ShareSettings
from aioparallel.clients.aiokafka.share_state import ShareState
from aioparallel.clients.aiokafka.typed_requests import ask
from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.assignments import new_member_id
from aioparallel.group.share_client import Acknowledged
from aioparallel.observe.stats import Contact
from aioparallel.records.errors import ClientError
from aioparallel.records.record import TopicPartition

__all__ = ["RunningMember"]

logger = logging.getLogger(__name__)

_SESSIONS: Final = 2
"""The connection group of share sessions, beside aiokafka's 0 and 1. A fetch that waits holds up what follows it on the
connection; and a session ends with its connection."""
_HEARTBEAT_TIMEOUT: Final = 5.0
"""Seconds for a heartbeat; a session of the group lasts 45 by default."""
_AGAIN: Final = 0.25
"""Seconds until the leaders of partitions without one are requested again."""
_MISSING_AFTER: Final = 5.0


class RunningMember:
    """See the module. ``wake()``: lets a waiting fetch return."""

    def __init__(self, settings: ShareSettings, connections: Connections, wake: Callable[[], None]) -> None:
        self._settings = settings
        self.connections = connections
        self.state = ShareState(settings.group_id, new_member_id(), wake)
        self.broker_watch = BrokerWatch(
            connections,
            settings.bootstrap_servers,
            _HEARTBEAT_TIMEOUT,
            settings.max_wait,
            rebootstrap_after=settings.rebootstrap_after,
            on_failure=self.state.fail,
            lasting=(_SESSIONS,),
        )
        self.identity = LogIdentity(connections, self.broker_watch.brokers, tuple, wake)
        self.coordinator = ShareCoordinator(connections, settings.group_id, self.broker_watch.brokers)
        self.membership: ShareMembership | None = None
        self.topics: frozenset[str] = frozenset()
        self.on_assignment: Callable[[Collection[TopicPartition]], None] = lambda _partitions: None
        self.sessions: dict[int, LeaderSession] = {}
        self.tasks: dict[object, asyncio.Task[None]] = {}  # by node, or by name
        self.is_closing = False
        self._loop = asyncio.get_running_loop()
        self._routing: asyncio.TimerHandle | None = None
        self._missing_since: dict[str, float] = {}

    def subscribe(self, topics: frozenset[str], on_assignment: Callable[[Collection[TopicPartition]], None]) -> None:
        """Join the group."""
        settings = self._settings
        self.topics = topics
        self.on_assignment = on_assignment
        self.connections.set_topics(set(topics))
        self.membership = ShareMembership(
            MemberState(settings.group_id, self.state.member_id, topics, settings.rack),
            self.coordinator,
            self.identity,
            topics,
            retry_backoff=settings.retry_backoff,
            on_assigned=self.assigned,
            on_failure=self.state.fail,
        )
        self.start_task("heartbeats", self.membership.run, "aioparallel-share-heartbeats")

    # -- tasks

    def start_task(self, key: object, run: Callable[[], Any], name: str) -> None:
        task = self.tasks[key] = asyncio.create_task(run(), name=name)
        task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: object, task: asyncio.Task[None]) -> None:
        if self.tasks.get(key) is task:
            del self.tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, ClientError):
                logger.error(
                    "A task of a share client failed: %r",
                    error,
                    exc_info=error,
                    extra={"action": "share_client_failed", "group_id": self._settings.group_id},
                )
                error = ClientError(f"the client of share group {self._settings.group_id!r} has failed: {error!r}")
            self.state.fail(error)

    # -- partitions and their leaders

    def assigned(self, topic_ids: Mapping[tuple[str, int], bytes], existing: Collection[bytes]) -> None:
        """The membership has another assignment, or topics have other ids."""
        partitions = self.state.partitions
        before = partitions.assigned
        partitions.assign({TopicPartition(*name): topic_id for name, topic_id in topic_ids.items()})
        for one in partitions:
            if one.topic_id not in existing:
                one.acks.clear(Acknowledged.NOT_HELD)
        self.state.report()
        self.route()
        if (now := partitions.assigned) != before:
            logger.info(
                "Share group %s assigns %d partitions",
                self._settings.group_id,
                len(now),
                extra={"action": "share_assignment", "group_id": self._settings.group_id, "partitions": len(now)},
            )
            self.on_assignment(now)

    def route(self) -> None:
        """Give each partition to the session of its leader. Called when anything of it has changed."""
        if self._routing is not None:
            self._routing.cancel()
            self._routing = None
        state, cluster = self.state, self.connections.cluster
        state.partitions.route(
            lambda partition: cluster.leader_for_partition(AiokafkaTopicPartition(*partition)), self._loop.time()
        )
        for leader in state.partitions.leaders():
            if leader not in self.tasks and not self.is_closing and state.failure is None:
                session = self.sessions[leader] = self._session(leader)
                self.start_task(leader, session.run, f"aioparallel-share-session-{leader}")
        for session in self.sessions.values():
            session.look()
        if state.partitions.leaderless and not self.is_closing:
            self._routing = self._loop.call_later(_AGAIN, self._look_for_leaders)

    def end(self) -> None:
        self.identity.close()
        if self._routing is not None:
            self._routing.cancel()

    def _look_for_leaders(self) -> None:
        self.connections.force_metadata_update()
        self.route()
        for one in self.state.partitions:
            if one.leader is None:
                one.acks.expire(self._loop.time())
        self.state.report()

    def metadata_updated(self, _cluster: object) -> None:
        try:
            self._look_for_missing()
            self.route()
        except Exception:
            # An exception would end aiokafka's metadata task.
            logger.exception("New metadata could not be applied", extra={"action": "metadata_failed"})

    def _look_for_missing(self) -> None:
        known = self.connections.cluster.topics(exclude_internal_topics=False)
        now = self._loop.time()
        self._missing_since = {
            topic: self._missing_since.get(topic, now) for topic in self.topics if topic not in known
        }

    def _missing(self) -> tuple[str, ...]:
        now = self._loop.time()
        return tuple(sorted(one for one, since in self._missing_since.items() if now - since >= _MISSING_AFTER))

    def refresh_topics(self) -> None:
        if self.membership is not None:
            self.membership.refresh_topics()

    def _session(self, leader: int) -> LeaderSession:
        settings = self._settings
        return LeaderSession(
            leader,
            self.state,
            self._send,
            max_wait=settings.max_wait,
            max_bytes=settings.max_bytes,
            retry_backoff=settings.retry_backoff,
            refresh_leaders=self.connections.force_metadata_update,
            refresh_topics=self.refresh_topics,
            reroute=self.route,
        )

    def look_at_connections(self) -> None:
        """Whether sessions have ended with their connections, which their next requests would find out."""
        for node, session in self.sessions.items():
            connection = self.connections._conns.get((node, _SESSIONS))
            if connection is None or not connection.connected():
                session.released()

    async def _send(self, node: int, api: Api[Any, Any], request: object) -> Any:
        return await ask(self.connections, node, api, request, group=_SESSIONS)

    def contact(self) -> Contact:
        """Which brokers and partitions can be reached."""
        last_contacts = self.broker_watch.last_contacts
        brokers = self.connections.cluster.brokers()
        return Contact(
            fetch=last_contacts.since_answered("fetch"),
            heartbeat=last_contacts.since_answered("heartbeat"),
            commit=last_contacts.since_answered("commit"),
            brokers=last_contacts.brokers({broker.nodeId: f"{broker.host}:{broker.port}" for broker in brokers}),
            leaderless=tuple(self.state.partitions.leaderless),
            missing=self._missing(),
            failing=tuple(self.state.partitions.failing),
        )
