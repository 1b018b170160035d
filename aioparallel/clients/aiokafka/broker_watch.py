"""Keeps brokers that hang from holding up the others. A hung broker keeps its connections open and answers nothing.

aiokafka waits ``request_timeout_ms``, 40 s by default, wherever it uses a hung broker. It asks for metadata at one
broker after the other in random order, looks up the coordinator at a random one, and opens only one connection at a
time. So one hung broker of three stops work that does not need it. Therefore:

* metadata requests go to one broker after the other, to the next one after a second without an answer;
* requests that any broker can answer go first to brokers that have answered;
* heartbeats, and other requests that a healthy broker answers at once, have a shorter timeout;
* a connection attempt, a wait for a join, or for a share session, ends when the broker is no longer in the metadata;
* a slow fetch triggers a metadata update, because its partitions may have a new leader;
* if no known broker answers a metadata request, the configured addresses are queried (``metadata_updates.py``);
* connecting to one broker does not hold up requests to others (``connector.py``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeVar

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from aioparallel.clients.aiokafka.bootstrapping import Bootstrap
from aioparallel.clients.aiokafka.connector import Connector, close_silent, options_of
from aioparallel.clients.aiokafka.first_answer import NEXT, first_answer
from aioparallel.clients.aiokafka.group_messages import CommitRequest, Heartbeat, OffsetFetch
from aioparallel.clients.aiokafka.internals import Connection, Connections, MetadataAnswer
from aioparallel.clients.aiokafka.metadata_updates import REBOOTSTRAP_AFTER, MetadataUpdates
from aioparallel.clients.aiokafka.typed_requests import TypedRequest
from aioparallel.clients.last_contacts import LastContacts
from aioparallel.clients.messages.consumer_groups import CONSUMER_GROUP_HEARTBEAT
from aioparallel.clients.messages.share_groups import SHARE_GROUP_DESCRIBE, SHARE_GROUP_HEARTBEAT
from aioparallel.clients.messages.share_records import SHARE_ACKNOWLEDGE, SHARE_FETCH
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClusterChanged
from aioparallel.records.record import TopicPartition

__all__ = ["BrokerWatch", "first_answer"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_UP: Final = 3.0
"""Seconds to look up a coordinator at one broker."""
_LOOK: Final = 3.0
"""Seconds between metadata updates while a fetch is unanswered, beyond its maximum wait."""
_SLOW_BY_DESIGN: Final = (JoinGroupRequest, SyncGroupRequest)
"""Answered when all members have joined, so a missing answer says nothing about the broker."""
_STORED: Final = 10.0
"""Seconds until a broker that has not answered a request of a share session counts as silent. It answers
acknowledgements when another broker has stored them; if that one hangs, it tries again after 30 s, and answers then."""
_HEARTBEAT: Final = "heartbeat"
_OF_SHARES: Final[frozenset[object]] = frozenset({SHARE_FETCH, SHARE_ACKNOWLEDGE})
_WAITING: Final[frozenset[object]] = frozenset({FetchRequest, SHARE_FETCH})
_KINDS: Final[dict[object, tuple[str, ...]]] = {
    FetchRequest: ("fetch",),
    HeartbeatRequest: (_HEARTBEAT,),
    Heartbeat: (_HEARTBEAT,),
    CommitRequest: ("commit", _HEARTBEAT),
    SHARE_FETCH: ("fetch",),
    SHARE_ACKNOWLEDGE: ("commit",),
    CONSUMER_GROUP_HEARTBEAT: (_HEARTBEAT,),
    SHARE_GROUP_HEARTBEAT: (_HEARTBEAT,),
}


class BrokerWatch:
    """Tracks which brokers of one client do not answer, and keeps them from holding up the others.

    Wraps five methods of aiokafka: ``bootstrap``, ``send``, ``_get_conn``, ``get_random_node`` and
    ``_metadata_update``.

    ``servers``: as configured. ``heartbeat_timeout``: seconds. ``fetch_wait``: seconds that a healthy broker may delay
    the answer to a fetch. ``rebootstrap_after``: seconds without metadata before the client rebootstraps.
    ``cluster_id``: the expected cluster; None accepts the first one found. ``on_failure(error)`` is called once if
    another cluster is found; no connection is opened after that. ``lasting``: as in ``Connector``.
    """

    def __init__(
        self,
        connections: Connections,
        servers: str,
        heartbeat_timeout: float,
        fetch_wait: float = 0.0,
        *,
        rebootstrap_after: float = REBOOTSTRAP_AFTER,
        cluster_id: str | None = None,
        on_failure: Callable[[ClusterChanged], object] = lambda _error: None,
        lasting: Collection[int] = (),
    ) -> None:
        self._fetch_wait = fetch_wait
        self._connections = connections
        self._limits: dict[object, float] = {
            **dict.fromkeys(
                (
                    HeartbeatRequest,
                    Heartbeat,
                    OffsetFetch,
                    CONSUMER_GROUP_HEARTBEAT,
                    SHARE_GROUP_HEARTBEAT,
                    SHARE_GROUP_DESCRIBE,
                ),
                heartbeat_timeout,
            ),
            FindCoordinatorRequest: _LOOK_UP,
        }
        self._silent: set[object] = set()
        self._locks: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._send = connections.send
        self._bootstrap = Bootstrap(servers, lambda: options_of(connections), cluster_id)
        self._connector = Connector(connections, self._bootstrap.is_ours, lasting)
        self._loop = asyncio.get_running_loop()
        self.last_contacts = LastContacts(self._loop.time, _explain)
        """When each broker last answered."""
        self.join_code: int = ErrorCode.NONE
        """Error code of the last answer to a join or sync."""
        self._metadata = MetadataUpdates(
            connections, self._bootstrap, self._connector, self.brokers, self._ask, rebootstrap_after, on_failure
        )
        connections.send = self.send  # type: ignore[method-assign]
        connections._get_conn = self.get_connection
        connections.get_random_node = self.any_broker  # type: ignore[method-assign]
        connections._get_conn_lock_value = nullcontext()  # replaced by one lock per broker

    @property
    def failure(self) -> ClusterChanged | None:
        """Set when another cluster has replaced this client's: the client cannot continue."""
        return self._metadata.failure

    @property
    def cluster_id(self) -> str | None:
        return self._bootstrap.cluster_id

    def brokers(self) -> list[int]:
        """All brokers in random order, silent ones last."""
        found = [broker.nodeId for broker in self._connections.cluster.brokers()]
        random.shuffle(found)
        return sorted(found, key=self._silent.__contains__)

    def any_broker(self) -> int | None:
        return next(iter(self.brokers()), None)

    # -- requests

    async def send(self, node_id: int, request: object, *, group: int = ConnectionGroup.DEFAULT) -> Any:
        """``AIOKafkaClient.send``, with a shorter timeout for some requests."""
        if isinstance(request, _SLOW_BY_DESIGN):
            try:
                answer = await self._unless_gone(node_id, self._send(node_id, request, group=group))
            except TimeoutError:
                raise close_silent(self._connections, node_id, group) from None
            self.last_contacts.answered(node_id, _HEARTBEAT)
            self.join_code = answer.error_code
            return answer
        with self.last_contacts.asking(node_id, *_KINDS.get(_kind_of(request), ())):
            answer = await self._send_in_time(node_id, request, group)
        if isinstance(request, FetchRequest):
            self.last_contacts.end_received(
                [
                    TopicPartition(topic, number)
                    for topic, entries in answer.topics
                    for number, code, *_ in entries
                    if code == ErrorCode.NONE
                ]
            )
        return answer

    async def _send_in_time(self, node_id: int, request: object, group: int) -> Any:
        kind = _kind_of(request)
        is_fetch, is_of_share = kind is FetchRequest, kind in _OF_SHARES
        seconds = (_STORED if is_of_share else _LOOK) + (self._fetch_wait if kind in _WAITING else 0.0)
        with self._watching(node_id, seconds, is_fetch=is_fetch):
            try:
                async with asyncio.timeout(self._limits.get(kind)):
                    sending = self._send(node_id, request, group=group)
                    answer = await (self._unless_gone(node_id, sending) if is_of_share else sending)
            except TimeoutError:
                raise close_silent(self._connections, node_id, group) from None
            except kafka.NodeNotReadyError:
                raise kafka.NodeNotReadyError(self._connector.reason(node_id)) from None
        self._silent.discard(node_id)
        return answer

    async def _unless_gone(self, node: object, answering: Awaitable[T]) -> T:
        """Wait for something that may take long although the broker is healthy.

        Raises TimeoutError once the broker is no longer in the metadata at the same address: either the cluster has
        removed it and other brokers lead its partitions, or it has moved."""
        task = asyncio.ensure_future(answering)
        address = self._address(node)
        try:
            while True:
                await asyncio.wait({task}, timeout=_LOOK)
                if not task.done() and self._address(node) == address:
                    either: set[asyncio.Future[T] | asyncio.Future[bool]] = {
                        task,
                        self._connections.force_metadata_update(),
                    }
                    await asyncio.wait(either, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if self._address(node) is None or self._address(node) != address:
                    raise TimeoutError
        finally:
            task.cancel()

    def _address(self, node: object) -> tuple[str, int] | None:
        broker = self._connections.cluster.broker_metadata(node)
        return None if broker is None else (broker.host, broker.port)

    @contextmanager
    def _watching(self, node: object, seconds: float, *, is_fetch: bool = False) -> Iterator[None]:
        timer: asyncio.TimerHandle

        def report_silence() -> None:
            nonlocal timer
            if node not in self._silent:
                self._silent.add(node)
                logger.info("Broker %s does not answer", node, extra={"action": "broker_silent", "node": node})
            if is_fetch:
                self._connections.force_metadata_update()
                timer = self._loop.call_later(seconds, report_silence)

        timer = self._loop.call_later(seconds, report_silence)
        try:
            yield
        finally:
            timer.cancel()

    # -- connections

    async def get_connection(
        self, node_id: object, *, group: int = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> Connection | None:
        """``AIOKafkaClient._get_conn``, with one lock per broker instead of one for all."""
        if (connection := self._connector.ready(node_id, group)) is not None:
            return connection
        is_lasting = self._connector.lasting(node_id, group) is not None
        if not is_lasting and (old := self._connector.old(node_id, group)) is not None:
            self._connector.renew(node_id, group, self._connect)
            return old
        return await self._connect(node_id, group)

    async def _connect(self, node_id: object, group: int) -> Connection | None:
        async with self._locks[node_id, group]:
            try:
                return await self._unless_gone(node_id, self._connector.connect(node_id, group))
            except TimeoutError:
                logger.info("Broker %s is gone", node_id, extra={"action": "broker_gone", "node": node_id})
                return None

    # -- metadata

    async def _connected(self, node: object) -> Connection:
        if (connection := await self.get_connection(node)) is None:
            raise ConnectionError(self._connector.reason(node))
        return connection

    async def _ask(self, node: object, request: object) -> MetadataAnswer | None:
        try:
            with self._watching(node, NEXT), self.last_contacts.asking(node):
                answer: MetadataAnswer = await (await self._connected(node)).send(request)
        except Exception as error:  # of any kind: another broker may answer, and aiokafka's task must continue
            logger.debug("No metadata from %s: %r", node, error, extra={"action": "no_metadata", "node": node})
            return None
        self._silent.discard(node)
        return answer


def _kind_of(request: object) -> object:
    """aiokafka's class of the request, or its API."""
    return request.api if isinstance(request, TypedRequest) else type(request)


def _explain(error: Exception) -> str:
    if isinstance(error, kafka.NodeNotReadyError):
        return str(error.args[0]) if error.args else type(error).__name__
    return "it does not answer" if isinstance(error, kafka.RequestTimedOutError) else str(error)
