"""Brokers that hang: their connections stay open, and nothing is answered.

aiokafka then waits ``request_timeout_ms``, 40 s by default, wherever the silent broker is asked: for metadata it asks
one broker after the other in random order, the coordinator is looked up at a random one, and while it connects to one
broker it connects to no other. So one broker of three stops what has nothing to do with it. Here

* metadata is asked of one broker after the other without waiting for the one before: the next one after a second;
* whoever may ask any broker asks those first that have answered;
* heartbeats, and what else is answered at once by a broker that is well, are not waited for as long;
* who connects, or waits for an answer to a join, leaves a broker that the metadata does not know any more;
* a fetch that takes too long has the metadata looked at: its partitions may have another leader by now;
* connecting to one broker holds up nobody who wants another one; how that is done, ``dialing.py`` has.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, TypeVar, cast

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from aiokafka.protocol.metadata import MetadataRequest

from aioparallel.clients.aiokafka.dialing import Dialing
from aioparallel.clients.aiokafka.internals import ClusterView, Connection, Connections, FetchAnswer, MetadataAnswer
from aioparallel.clients.contacts import Contacts
from aioparallel.codes import ErrorCode
from aioparallel.records import TopicPartition

__all__ = ["Silence", "first_answer"]

logger = logging.getLogger(__name__)

N = TypeVar("N")
T = TypeVar("T")

_NEXT: Final = 1.0
"""Seconds without an answer after which the next broker is asked the same."""
_LOOK_UP: Final = 3.0
"""Seconds for finding a coordinator at one broker."""
_LOOK: Final = 3.0
"""Seconds without an answer to a fetch after which the metadata is looked at, and again each as many."""
_METADATA_PAUSE: Final = 0.1
"""Seconds between two metadata updates. aiokafka repeats them without a pause while a partition has no leader."""
_TELL_AGAIN: Final = 10.0
"""Seconds until it is worth telling anew that there is no metadata."""
_BOOTSTRAP: Final = "bootstrap"
_TAKE_THEIR_TIME: Final = (JoinGroupRequest, SyncGroupRequest)
"""Answered when all members have come: that says nothing about the broker."""
_HEARTBEAT: Final = "heartbeat"
_KINDS: Final = {
    FetchRequest: ("fetch",),
    HeartbeatRequest: (_HEARTBEAT,),
    OffsetCommitRequest: ("commit", _HEARTBEAT),
}


class Silence:
    """Knows which brokers of one client owe an answer, and keeps them from holding up the rest.

    Puts itself before four of aiokafka's methods, once: ``send``, ``_get_conn``, ``get_random_node`` and
    ``_metadata_update``. ``patience``: seconds for a heartbeat. ``fetch_wait``: seconds that a broker which is well may
    keep a fetch waiting.
    """

    def __init__(self, connections: Connections, patience: float, fetch_wait: float = 0.0) -> None:
        self._fetch_wait = fetch_wait
        self._connections = connections
        self._limits = {HeartbeatRequest: patience, OffsetFetchRequest: patience, FindCoordinatorRequest: _LOOK_UP}
        self._silent: set[object] = set()
        self._locks: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._send = connections.send
        self._dialing = Dialing(connections)
        self._loop = asyncio.get_running_loop()
        self.contacts = Contacts(self._loop.time, _explain)
        """What was heard of which broker."""
        self._last_update = self._loop.time() - _METADATA_PAUSE
        self._without_metadata_since: float | None = None
        self._told_at = -_TELL_AGAIN
        connections.send = self.send  # type: ignore[method-assign]
        connections._get_conn = self.get_connection
        connections.get_random_node = self.any_broker  # type: ignore[method-assign]
        connections._metadata_update = self.update
        connections._get_conn_lock_value = nullcontext()  # one for each broker here

    def brokers(self) -> list[int]:
        """All brokers, in random order, those that owe an answer last."""
        found = [broker.nodeId for broker in self._connections.cluster.brokers()]
        random.shuffle(found)
        return sorted(found, key=self._silent.__contains__)

    def any_broker(self) -> int | None:
        """Whom to ask what any broker can answer; None while none is known."""
        return next(iter(self.brokers()), None)

    # -- requests

    async def send(self, node_id: int, request: object, *, group: int = ConnectionGroup.DEFAULT) -> object:
        """``AIOKafkaClient.send``, with a limit of its own for some requests."""
        if isinstance(request, _TAKE_THEIR_TIME):
            try:
                answer = await self._unless_gone(node_id, self._send(node_id, request, group=group))
            except TimeoutError:
                raise self._left(node_id, group) from None
            self.contacts.answered(node_id, _HEARTBEAT)
            return answer
        with self.contacts.asking(node_id, *_KINDS.get(type(request), ())):
            answer = await self._send_in_time(node_id, request, group)
        if isinstance(request, FetchRequest):
            self.contacts.heard(
                [
                    TopicPartition(topic, entry[0])
                    for topic, entries in cast("FetchAnswer", answer).topics
                    for entry in entries
                    if entry[1] == ErrorCode.NONE
                ]
            )
        return answer

    async def _send_in_time(self, node_id: int, request: object, group: int) -> object:
        is_fetch = isinstance(request, FetchRequest)
        with self._watching(node_id, _LOOK + self._fetch_wait * is_fetch, is_fetch=is_fetch):
            try:
                async with asyncio.timeout(self._limits.get(type(request))):
                    answer = await self._send(node_id, request, group=group)
            except TimeoutError:
                raise self._left(node_id, group) from None
            except kafka.NodeNotReadyError:
                raise kafka.NodeNotReadyError(self._dialing.reason(node_id)) from None
        self._silent.discard(node_id)
        return answer

    def _left(self, node_id: int, group: int) -> kafka.KafkaError:
        connection = self._connections._conns.get((node_id, group))
        if connection is not None:
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
        return kafka.RequestTimedOutError(f"broker {node_id} does not answer")

    async def _unless_gone(self, node: object, answering: Awaitable[T]) -> T:
        """What may take long though the broker is well. Raises TimeoutError once the metadata does not know the broker
        any more: its cluster has counted it out, and others have its partitions."""
        task = asyncio.ensure_future(answering)
        try:
            while True:
                await asyncio.wait({task}, timeout=_LOOK)
                if not task.done():
                    either: set[asyncio.Future[T] | asyncio.Future[bool]] = {
                        task,
                        self._connections.force_metadata_update(),
                    }
                    await asyncio.wait(either, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
                if all(broker.nodeId != node for broker in self._connections.cluster.brokers()):
                    raise TimeoutError
        finally:
            task.cancel()

    @contextmanager
    def _watching(self, node: object, seconds: float, *, is_fetch: bool = False) -> Iterator[None]:
        timer: asyncio.TimerHandle

        def owes() -> None:
            nonlocal timer
            if node not in self._silent:
                self._silent.add(node)
                logger.info("Broker %s does not answer", node, extra={"action": "broker_silent", "node": node})
            if is_fetch:
                self._connections.force_metadata_update()
                timer = self._loop.call_later(seconds, owes)

        timer = self._loop.call_later(seconds, owes)
        try:
            yield
        finally:
            timer.cancel()

    # -- connections

    async def get_connection(
        self, node_id: object, *, group: int = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> Connection | None:
        """``AIOKafkaClient._get_conn``, with a lock for each broker instead of one for all."""
        if (connection := self._dialing.ready(node_id, group)) is not None:
            return connection
        if (old := self._dialing.old(node_id, group)) is not None:
            self._dialing.renew(node_id, group, self._connect)
            return old
        return await self._connect(node_id, group)

    async def _connect(self, node_id: object, group: int) -> Connection | None:
        async with self._locks[node_id, group]:
            connecting = self._dialing.connect(node_id, group)
            if node_id == _BOOTSTRAP:
                return await connecting
            try:
                return await self._unless_gone(node_id, connecting)
            except TimeoutError:
                logger.info("Broker %s is gone", node_id, extra={"action": "broker_gone", "node": node_id})
                return None

    # -- metadata

    async def update(self, cluster: ClusterView, topics: Collection[str] | None) -> bool:
        """``AIOKafkaClient._metadata_update``: of these topics, or all. Creates none: aiokafka lets a broker create
        the topics it is asked for, so a subscribed topic that is deleted would come back, empty."""
        pause = self._last_update + _METADATA_PAUSE - self._loop.time()
        self._last_update = max(self._loop.time(), self._last_update + _METADATA_PAUSE)
        if pause > 0:
            await asyncio.sleep(pause)
        request = MetadataRequest(list(topics) if topics else None, allow_auto_topic_creation=False)
        connections = self._connections._conns
        bootstrap = (_BOOTSTRAP, ConnectionGroup.DEFAULT)
        nodes: list[object] = [*self.brokers(), *([_BOOTSTRAP] if bootstrap in connections else [])]
        answer = await first_answer(nodes, lambda node: self._ask(node, request))
        if answer is None:
            self._tell_without_metadata(nodes)
            cluster.failed_update(None)
            return False
        self._without_metadata_since = None
        if not answer.brokers:
            return False
        cluster.update_metadata(answer)
        # The first connection is only good for learning who the brokers are.
        if bootstrap in connections and self._connections.cluster.brokers():
            connections.pop(bootstrap).close()
        return True

    def _tell_without_metadata(self, nodes: Collection[object]) -> None:
        """Now and then: it is asked for ten times a second, as long as no broker is there."""
        now = self._loop.time()
        since = self._without_metadata_since = self._without_metadata_since or now
        if now - self._told_at < _TELL_AGAIN:
            return
        self._told_at = now
        known = [f"{broker.host}:{broker.port}" for broker in self._connections.cluster.brokers()]
        logger.warning(
            "No metadata for %.0f s: no broker answers (%s)",
            now - since,
            ", ".join(known or map(str, nodes)),
            extra={"action": "no_metadata"},
        )

    async def _connected(self, node: object) -> Connection:
        if (connection := await self.get_connection(node)) is None:
            raise ConnectionError(self._dialing.reason(node))
        return connection

    async def _ask(self, node: object, request: object) -> MetadataAnswer | None:
        try:
            with self._watching(node, _NEXT), self.contacts.asking(node):
                answer = cast("MetadataAnswer", await (await self._connected(node)).send(request))
        except Exception as error:  # whatever it is, another broker may answer, and aiokafka's task must go on
            logger.debug("No metadata from %s: %r", node, error, extra={"action": "no_metadata", "node": node})
            return None
        self._silent.discard(node)
        return answer


def _explain(error: Exception) -> str:
    if isinstance(error, kafka.NodeNotReadyError):
        return str(error.args[0]) if error.args else type(error).__name__
    return "it does not answer" if isinstance(error, kafka.RequestTimedOutError) else str(error)


async def first_answer(nodes: Collection[N], ask: Callable[[N], Coroutine[None, None, T | None]]) -> T | None:
    """Ask all of them the same, one after the other: the next one as soon as one before has failed (None), or has not
    answered for a second. The first answer counts; None when all have failed."""
    left = iter(nodes)
    pending: set[asyncio.Task[T | None]] = set()
    more = True
    try:
        while True:
            if more:
                if (node := next(left, None)) is None:
                    more = False
                else:
                    pending.add(asyncio.create_task(ask(node)))
            if not pending:
                return None
            done, pending = await asyncio.wait(
                pending, timeout=_NEXT if more else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (answer := task.result()) is not None:
                    return answer
    finally:
        for task in pending:
            task.cancel()
