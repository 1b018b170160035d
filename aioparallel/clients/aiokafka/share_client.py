"""AiokafkaShareClient: a member of a share group on aiokafka's connections.

::

    share_member.py      what runs between start and stop, and which leader gets which partitions
    share_acks.py        acknowledgements of one partition: which are due, in which groups      synchronous
    share_partitions.py  partitions, their leaders, what is acquired of them                    synchronous
    share_state.py       what the coroutines have in common                                     synchronous
    share_requests.py    a share session: its epoch and partitions                              synchronous
    share_answers.py     applies the answers of a leader                                        synchronous
    share_sessions.py    one coroutine for each leader: fetches and acknowledges
    share_membership.py  one coroutine: heartbeats and the assignment
    share_settings.py    options
    share_group_configs.py  what the group's configuration says about deliveries and dead letters
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import aiokafka.errors as kafka
from aiokafka.protocol.admin import ApiVersionRequest

from aioparallel.clients.aiokafka.connecting import close_or_cut_off, start_client
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.metadata import topic_partitions
from aioparallel.clients.aiokafka.share_group_configs import GroupConfigs, group_configs
from aioparallel.clients.aiokafka.share_member import RunningMember
from aioparallel.clients.aiokafka.share_membership import refusal
from aioparallel.clients.aiokafka.share_settings import ShareSettings
from aioparallel.clients.aiokafka.typed_requests import ask
from aioparallel.clients.messages.share_groups import SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest
from aioparallel.clients.messages.share_records import SHARE_FETCH
from aioparallel.group.share_client import Acknowledged, AcknowledgeEnded, AcknowledgeType, Acquired
from aioparallel.observe.stats import Contact
from aioparallel.records.error_codes import RETRIABLE, ErrorCode
from aioparallel.records.errors import BrokerUnreachable, ClientError, ConsumerStateError
from aioparallel.records.record import TopicPartition

__all__ = ["AiokafkaShareClient"]

logger = logging.getLogger(__name__)

_CONFIGS: Final = 5.0
"""Seconds between two looks at the group's configs."""
_OTHER_TYPE: Final = "is not a share group"
"""In the message of a coordinator. A group that does not exist has the same code."""


class AiokafkaShareClient:
    """One member of a share group, through aiokafka. See :class:`~aioparallel.group.share_client.ShareClient` for each
    method.

    ``bootstrap_servers``: comma-separated ``host:port``.

    ``client_options``: options of aiokafka's clients by their names there: TLS, SASL, ``client_id``, ``client_rack``,
    ``fetch_max_bytes`` (4 MiB) ... Raises ConfigurationError for unknown options, and for those that a share group
    does not have.

    ``max_wait``: seconds that a broker may delay the answer to a fetch while no acknowledgement can become due. While
    one can, it is shorter: see ``share_sessions.py``.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        group_id: str,
        *,
        client_options: Mapping[str, object] | None = None,
        max_wait: float = 0.5,
    ) -> None:
        self._settings = ShareSettings(
            bootstrap_servers, group_id, client_options=client_options or {}, max_wait=max_wait
        )
        self._running: RunningMember | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        self._configs = GroupConfigs()

    def __repr__(self) -> str:
        state = "running" if self._running else "not running"
        settings = self._settings
        return f"<AiokafkaShareClient {settings.bootstrap_servers} group {settings.group_id!r} {state}>"

    # -- start and stop

    async def start(self, timeout: float) -> None:
        if self._running is not None:
            raise ConsumerStateError("the client is started already; use a new one")
        settings = self._settings
        ends = asyncio.get_running_loop().time() + timeout
        connections = settings.build()
        running = RunningMember(settings, connections, self._let_return)
        closing = min(1.0, timeout / 10)
        close = partial(_close, connections, closing)
        await start_client(connections, connections.bootstrap, close, timeout, settings.retry_backoff, closing=closing)
        try:
            async with asyncio.timeout_at(ends - closing):
                await self._check_group(running)
        except TimeoutError:
            await close()
            reason = f"the coordinator of group {settings.group_id!r} does not answer"
            raise BrokerUnreachable(settings.bootstrap_servers, timeout, reason) from None
        except BaseException:
            await close()
            raise
        connections.cluster.add_listener(running.metadata_updated)
        self._running = running

    async def _check_group(self, running: RunningMember) -> None:
        """Raise an error unless the brokers have share groups and the group may be one. Retries what is temporary."""
        group_id = self._settings.group_id
        request = ShareGroupDescribeRequest(group_ids=(group_id,))
        while True:
            try:
                node = await running.coordinator.node()
                versions = await running.connections.send(node, ApiVersionRequest())
                newest = next((most for key, _, most in versions.api_versions if key == SHARE_FETCH.key), 0)
                if newest < SHARE_FETCH.most:
                    raise refusal(ErrorCode.UNSUPPORTED_VERSION, "ShareFetch is missing or too old", group_id, ())
                (group,) = (await ask(running.connections, node, SHARE_GROUP_DESCRIBE, request)).groups
            except kafka.IncompatibleBrokerVersion as error:
                raise refusal(ErrorCode.UNSUPPORTED_VERSION, str(error), group_id, ()) from error
            except (kafka.KafkaError, OSError) as error:
                logger.debug(
                    "The share group was not described: %r", error, extra={"action": "share_group_not_described"}
                )
            else:
                code, message = group.error_code, group.error_message or ""
                is_missing = code == ErrorCode.GROUP_ID_NOT_FOUND and _OTHER_TYPE not in message
                if code == ErrorCode.NONE or is_missing:
                    self._configs = await group_configs(running.connections, node, group_id)
                    return
                if code not in RETRIABLE:
                    raise refusal(code, message, group_id, ())
            running.coordinator.forget()
            await asyncio.sleep(self._settings.retry_backoff)

    async def stop(self, timeout: float) -> None:
        running, self._running = self._running, None
        self.wake()
        if running is None:
            return
        running.is_closing = True
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        try:
            await self._end_sessions(running, timeout / 2)
            await self._leave(running, timeout / 5)
        finally:
            # Also when the caller is cancelled.
            for task in list(running.tasks.values()):
                task.cancel()
            running.end()
            for one in running.state.partitions:
                one.acks.clear(Acknowledged.NOT_SENT)
            running.state.report()
            try:
                await _close(running.connections, max(0.0, ends - loop.time()))
            finally:
                running.state.report()  # what the cancelled tasks have ended

    async def _end_sessions(self, running: RunningMember, timeout: float) -> None:
        """Let each session send what is acknowledged and release the rest. What takes too long is cancelled: it is
        released when the connection is closed."""
        tasks = [running.tasks[node] for node in running.sessions if node in running.tasks]
        for session in running.sessions.values():
            session.close()
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=timeout * 0.8)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=timeout * 0.2)

    async def _leave(self, running: RunningMember, timeout: float) -> None:
        if running.membership is None:
            return
        heart = running.tasks.get("heartbeats")
        with contextlib.suppress(TimeoutError, kafka.KafkaError, OSError, ClientError):
            async with asyncio.timeout(timeout):
                if heart is not None:
                    heart.cancel()
                    await asyncio.wait([heart])
                await running.membership.leave()

    # -- the group

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        connections = self._run().connections
        return await topic_partitions(lambda: connections, topics, timeout, self._settings.retry_backoff, False)

    def subscribe(self, topics: Collection[str], on_assignment: Callable[[Collection[TopicPartition]], None]) -> None:
        running = self._run()
        if running.membership is not None:
            raise ConsumerStateError("the client has subscribed already; use a new one")
        running.subscribe(frozenset(topics), on_assignment)
        running.start_task("configs", partial(self._follow_configs, running), "aioparallel-share-configs")

    async def _follow_configs(self, running: RunningMember) -> None:
        """Read the group's configs again and again: another limit must be known before a record comes in its last
        delivery."""
        group_id = self._settings.group_id
        while True:
            await asyncio.sleep(_CONFIGS)
            try:
                node = await running.coordinator.node()
                self._configs = await group_configs(running.connections, node, group_id, self._configs)
            except (kafka.KafkaError, OSError) as error:
                logger.debug("The group's configs were not read: %r", error, extra={"action": "share_configs_unread"})

    # -- records

    async def fetch(self, most: int) -> Sequence[Acquired]:
        running = self._run()
        state = running.state
        while self._running is running:
            if state.failure is not None:
                raise state.failure
            # No await between here and the return, so that nothing acquired is lost.
            if state.acquired or self._woken:
                running.look_at_connections()
                found = state.take(asyncio.get_running_loop().time())
                if found or self._woken:
                    self._woken = False
                    return found
            state.wanted = max(1, most)
            for session in running.sessions.values():
                session.look()
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._waiter = None
                state.wanted = 0
        return []

    def exclude(self, partitions: Collection[TopicPartition]) -> None:
        running = self._run()
        running.state.partitions.exclude(partitions)
        for session in running.sessions.values():
            session.look()

    def wake(self) -> None:
        self._woken = True
        self._let_return()

    def _let_return(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def acknowledge(
        self, partition: TopicPartition, offset: int, kind: AcknowledgeType, ended: AcknowledgeEnded
    ) -> None:
        running = self._running
        found = None if running is None else running.state.partitions.get(partition)
        if running is None or found is None:
            result = Acknowledged.NOT_SENT if running is None else Acknowledged.NOT_HELD
            asyncio.get_running_loop().call_soon(ended, result, 0.0)
            return
        if kind is AcknowledgeType.RENEW and not running.state.may_renew:
            asyncio.get_running_loop().call_soon(ended, Acknowledged.RENEW_REFUSED, 0.0)
            return
        found.acks.acknowledge(offset, kind, ended)
        if running.state.partitions.ended:
            asyncio.get_running_loop().call_soon(running.state.report)
        if found.leader is not None and (session := running.sessions.get(found.leader)) is not None:
            session.look()

    @property
    def is_fetching(self) -> bool:
        running = self._running
        return running is not None and any(one.is_fetching for one in running.sessions.values())

    @property
    def lock_seconds(self) -> float | None:
        return None if self._running is None else self._running.state.lock_seconds

    @property
    def delivery_limit(self) -> int | None:
        return self._configs.delivery_limit

    @property
    def dead_letter_topic(self) -> str | None:
        return self._configs.dead_letter_topic

    @property
    def may_renew(self) -> bool:
        return self._running is None or self._running.state.may_renew

    def contact(self) -> Contact:
        return Contact() if self._running is None else self._running.contact()

    def _run(self) -> RunningMember:
        if self._running is None:
            raise ConsumerStateError("the client is not running; start() it first, and not after stop()")
        return self._running


async def _close(connections: Connections, timeout: float) -> None:
    await close_or_cut_off(connections, connections.close(), timeout)
