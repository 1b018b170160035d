"""QueueingProducer: implements the producer interface on any cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from aioparallel.clients.producing.brokers import Brokers
from aioparallel.clients.producing.overview import by_broker, silence_of
from aioparallel.clients.producing.partition_queue import PartitionQueue
from aioparallel.clients.producing.pending import outputs_of
from aioparallel.clients.producing.queues import PartitionQueues
from aioparallel.clients.producing.request_sender import LONGEST_PAUSE, RequestSender
from aioparallel.clients.producing.send_errors import Trouble
from aioparallel.delivery.producer import OnDelivered, PendingOutput
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import BrokerOutputs
from aioparallel.records.errors import AuthenticationFailed, BrokerUnreachable, NotAuthorized
from aioparallel.records.record import Outgoing, TopicPartition

__all__ = ["QueueingProducer"]

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT: Final = 30.0
"""Seconds for one attempt to connect in the background."""
_MIN_SECOND_REQUEST: Final = 1_000
"""Outputs that must wait before a second request goes to a node. A broker answers the requests of a connection in
order, so early requests with few outputs only add requests. With 1,000 keys, each waiting for its acknowledgement,
three small requests at once reached 60 % of the rate of one larger request."""
_MAX_TURNS: Final = 8
"""Event loop turns to wait, at most, while more outputs arrive: fuller requests cost less. Measured with 1,000 keys: 60
% of a bare producer's rate without the wait, 66 to 69 % with it."""
_REQUEST_BYTES: Final = 256 * 1024
"""Approximate size of a request. Encoding one holds the loop for about 3 ms with small outputs."""
_MISSING_TIMEOUT: Final = 10.0
"""Seconds that a topic may be unknown before its outputs fail. A new topic takes a moment to appear in metadata."""
_CLOSE_TIMEOUT: Final = 0.8
"""Seconds to close the connections, in addition to the timeout of ``stop``."""


class QueueingProducer:
    """Implements :class:`~aioparallel.delivery.producer.Producer` on any cluster.

    Each partition has a queue. One batch of each partition is sent at a time, and the next one fills meanwhile. A batch
    is sent only after the previous one is acknowledged, so retries cannot change the order.

    ``connect_to`` makes the cluster from a function to call after metadata updates. ``servers``: the cluster's name in
    messages. ``delivery_timeout``, ``linger``, ``retry_backoff``: seconds.
    """

    _missing_is_transient = True
    """Whether outputs to missing topics and partitions fail as transient."""

    def __init__(
        self,
        partition_queues: PartitionQueues,
        connect_to: Callable[[Callable[[], None]], Brokers],
        *,
        servers: str,
        delivery_timeout: float,
        linger: float = 0.0,
        retry_backoff: float = 0.1,
    ) -> None:
        self._partition_queues = partition_queues
        self._brokers = connect_to(self._metadata_changed)
        self._servers = servers
        self._delivery_timeout = delivery_timeout
        self._linger_time = linger
        self._retry_backoff = retry_backoff
        self._missing_timeout = min(_MISSING_TIMEOUT, delivery_timeout)
        self._outstanding = partition_queues.outstanding
        self._idle = asyncio.Event()
        self._outstanding.on_none = self._idle.set
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._trouble = ""
        """Why nothing can be sent at all; empty while sending works."""
        self._unsent = Trouble(servers)
        self._sending: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._identifying: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._work = asyncio.Event()
        self._sender = RequestSender(partition_queues, self._brokers, retry_backoff, self._work.set)
        self._is_awake = False
        """Whether ``_work`` is set and the sending task has not begun with it."""
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self._outstanding.count} outstanding"
        return f"<{type(self).__name__} {self._servers} {state}>"

    # -- the interface

    async def start(self, timeout: float) -> None:
        await self._connect(timeout)
        self._wake()

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        ends = asyncio.get_running_loop().time() + timeout
        try:
            await self._connect(timeout)
        except BrokerUnreachable as error:
            raise TimeoutError(str(error)) from error
        return await self._brokers.partitions(topics, max(0.0, ends - asyncio.get_running_loop().time()))

    def send(self, outputs: Sequence[Outgoing], delivered: OnDelivered) -> None:
        for entry in outputs_of(outputs, delivered):
            self.send_one(entry)

    def send_one(self, delivery: PendingOutput) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        if self._is_closed:
            self._outstanding.count += 1
            loop.call_soon(self._refuse, delivery, "the producer is closed", True)
            return
        delivery.deadline = deadline = loop.time() + self._delivery_timeout
        given = delivery.output.timestamp
        delivery.timestamp = int(time.time() * 1000) if given is None else given
        if (reason := self._partition_queues.add(delivery)) is not None:
            loop.call_soon(self._refuse, delivery, reason, False)
        if not self._is_awake or self._timer is None:
            self._schedule(loop, deadline)

    def _refuse(self, delivery: PendingOutput, reason: str, passing: bool) -> None:
        self._outstanding.failed([delivery], reason, passing=passing)

    def _schedule(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Schedule the sending of new outputs, and their timeout at ``deadline``."""
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._on_timeout)
        if not self._linger_time:
            if not self._is_awake:
                self._wake()
        elif self._linger is None:
            self._linger = loop.call_later(self._linger_time, self._lingered)

    def outputs(self) -> Sequence[BrokerOutputs]:
        """Unacknowledged outputs by broker. Walks all partitions that are produced to."""
        if self._loop is None:
            return ()
        now, brokers = self._loop.time(), self._brokers
        silent = self._sender.requests.silent(now)
        queues = self._partition_queues.queues
        return by_broker(queues, brokers.leader_of, brokers.address_of, silent, now, self._delivery_timeout)

    def problems(self) -> Sequence[Problem]:
        if self._loop is None:
            return ()
        return (*self._unsent.problems(self._loop.time()), *silence_of(self.outputs()))

    async def stop(self, timeout: float) -> None:
        """Wait ``timeout`` seconds for outstanding outputs, fail the rest, and close all connections. Never raises."""
        self._is_closed = True
        try:
            if self._outstanding.count:
                self._wake()
                self._idle.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._idle.wait()
        finally:
            reason = "the producer was closed before this was acknowledged"
            self._outstanding.failed(
                self._partition_queues.clear(), f"{reason} ({self._trouble})" if self._trouble else reason, passing=True
            )
            for timer in (self._timer, self._linger):
                if timer is not None:
                    timer.cancel()
            tasks = self._sender.close()
            for task in (self._sending, self._refreshing, self._identifying):
                if task is not None:
                    task.cancel()
                    tasks.add(task)
            self._closing = asyncio.get_running_loop().create_task(self._close(tasks))
        await asyncio.shield(self._closing)  # closing continues if the caller is cancelled

    async def _close(self, tasks: Collection[asyncio.Task[None]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT / 4)
        await self._brokers.close(_CLOSE_TIMEOUT)

    # -- the sending task

    def _wake(self) -> None:
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all(), name="aioparallel producer")
        self._is_awake = True
        self._work.set()

    def _lingered(self) -> None:
        self._linger = None
        self._wake()

    async def _send_all(self) -> None:
        while True:
            await self._work.wait()
            await self._wait_for_more()
            self._work.clear()
            self._is_awake = False
            try:
                if await self._connect_in_background():
                    if (failure := self._brokers.failure) is not None:
                        # The outputs may succeed with another client.
                        self._trouble = str(failure)
                        self._fail_all(failure, passing=True)
                        continue
                    await self._send_ready()
                    if not self._partition_queues.needs_identity:
                        self._unsent.passed()
            except NotAuthorized as error:
                self._fail_all(error, passing=False)
            except Exception as error:
                await self._back_off(error)
                if self._outstanding.count:
                    self._work.set()
            if self._partition_queues.needs_metadata and (self._refreshing is None or self._refreshing.done()):
                self._refreshing = asyncio.create_task(self._refresh())

    def _fail_all(self, error: Exception, *, passing: bool) -> None:
        self._unsent.failed(error, asyncio.get_running_loop().time())
        self._outstanding.failed(self._partition_queues.clear(), str(error), passing=passing)

    async def _wait_for_more(self) -> None:
        for _ in range(_MAX_TURNS):
            before = self._outstanding.count
            await asyncio.sleep(0)
            if self._outstanding.count <= before:
                return

    def _note(self, error: Exception) -> None:
        self._trouble = str(error) or type(error).__name__
        self._unsent.failed(error, asyncio.get_running_loop().time())

    async def _back_off(self, error: Exception) -> None:
        self._note(error)
        await asyncio.sleep(max(0.1, self._retry_backoff))
        self._brokers.doubt()

    async def _send_ready(self) -> None:
        """Send all batches that are ready. Answers and new metadata wake the task for later ones."""
        partition_queues, sender = self._partition_queues, self._sender
        while partition_queues.has_ready:
            sent = False
            for node, queues in partition_queues.by_node(self._brokers.leader_of, sender.requests.busy).items():
                if sender.requests.count(node) and sum(len(queue.waiting) for queue in queues) < _MIN_SECOND_REQUEST:
                    continue  # the node's answer wakes the task again
                if batches := partition_queues.fill(queues, node, _REQUEST_BYTES):
                    sent = True
                    sender.send(node, batches)
                # Encoding holds the loop: let other tasks run in between.
                await asyncio.sleep(0)
            if partition_queues.needs_identity and (self._identifying is None or self._identifying.done()):
                self._identifying = asyncio.create_task(self._identify())
            if not sent:
                return

    async def _identify(self) -> None:
        """Get a producer id for partitions that need one, while others are sent."""
        loop = asyncio.get_running_loop()
        while self._partition_queues.needs_identity and self._outstanding.count:
            try:
                self._unsent.trying(loop.time())
                self._partition_queues.identified(await self._brokers.identify())
                self._trouble = ""
                self._unsent.passed()
            except NotAuthorized as error:
                self._fail_all(error, passing=False)
                return
            except Exception as error:  # retry on anything: outputs wait for the id
                await self._back_off(error)
        self._work.set()

    # -- connecting

    async def _connect(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if not self._brokers.is_connected:
                    # A little less than the outer timeout, so that the error with the reason is raised.
                    await self._brokers.connect(timeout * 0.95)
        except TimeoutError:
            reason = self._trouble or "no answer"
            raise BrokerUnreachable(self._servers, timeout, reason) from None

    async def _connect_in_background(self) -> bool:
        """Retry until connected or nothing is outstanding."""
        loop = asyncio.get_running_loop()
        while not self._brokers.is_connected and self._outstanding.count:
            self._unsent.trying(loop.time())
            try:
                await self._connect(_CONNECT_TIMEOUT)
                self._trouble = ""
            except BrokerUnreachable as error:
                self._note(error)
            except AuthenticationFailed as error:
                # The consumer logged in with the same credentials, so a password change may be in progress.
                self._note(error)
                await asyncio.sleep(LONGEST_PAUSE)
        return self._brokers.is_connected

    # -- metadata

    def _metadata_changed(self) -> None:
        self._partition_queues.update(self._brokers.partitions_of, asyncio.get_running_loop().time())
        self._sender.metadata_changed()
        self._work.set()

    async def _refresh(self) -> None:
        """Update the metadata until no output waits for an unknown topic, partition or leader."""
        loop = asyncio.get_running_loop()
        pause = self._retry_backoff
        while self._partition_queues.needs_metadata:
            try:
                await self._brokers.update(self._partition_queues.topics)
            except OSError as error:
                self._trouble = str(error)
            for topic in self._brokers.refused_topics():
                reason = "not authorised; this user needs the permissions WRITE and DESCRIBE on the topic"
                self._outstanding.failed(self._partition_queues.clear_topic(topic), reason, passing=False)
            since = loop.time() - self._missing_timeout
            given_up = self._partition_queues.give_up_missing(
                since, since + self._delivery_timeout, self._explain_missing, passing=self._missing_is_transient
            )
            self._sender.cut({batch.node for batch in given_up}, "it has not answered in time")
            self._work.set()
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, max(0.05, pause) * 1.5)

    def _explain_missing(self, queue: PartitionQueue) -> str:
        known = self._brokers.partitions_of(queue.topic)
        if known:
            return f"the topic has no partition {queue.partition}, it has {len(known)} (0 to {max(known)})"
        return "topic not found: create it, or check the name (nothing was created)"

    # -- timeouts

    def _on_timeout(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        # Timers may run early, by up to the clock's resolution.
        given_up = self._partition_queues.expire(loop.time() + 0.001, self._explain_timeout)
        self._sender.cut({batch.node for batch in given_up}, "it has not answered in time")
        self._set_timer(self._partition_queues.next_deadline)
        self._work.set()

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:  # a failure callback sent an output, which set the timer
            self._timer.cancel()
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._on_timeout)

    def _explain_timeout(self, queue: PartitionQueue) -> str:
        if queue.missing_since is not None:
            return self._explain_missing(queue)
        trouble = queue.trouble or self._trouble or ("" if self._brokers.is_connected else "no broker was reached")
        if not trouble and queue.partition < 0:
            trouble = "the topic is not known"
        why = f" (last: {trouble})" if trouble else ""
        return f"not acknowledged within delivery_timeout={self._delivery_timeout:g} s{why}"
