"""QueueingProducer: the engine's producer interface, on whatever cluster."""

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
from aioparallel.clients.producing.trouble import Trouble
from aioparallel.delivery.producer import OnDelivered, PendingOutput
from aioparallel.errors import AuthenticationFailed, BrokerUnreachable, NotAuthorized
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import BrokerOutputs
from aioparallel.records import Outgoing, TopicPartition

__all__ = ["QueueingProducer"]

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT: Final = 30.0
"""Seconds of one attempt to connect in the background; after it comes the next one."""
_WORTH: Final = 1_000
"""Outputs that must wait before another request joins one that is on its way. A broker answers the requests of a
connection one after the other, so sending few outputs sooner only makes more requests: with 1,000 keys, each waiting
for its acknowledgement, three small requests at once made 60 % of the rate of one larger."""
_TURNS: Final = 8
"""Of the event loop, at most, that a request waits while more and more outputs come: whoever makes them is at it, and
fuller requests cost less. Measured, 1,000 keys: 60 % of a bare producer's rate without, 66 to 69 % with."""
_REQUEST_BYTES: Final = 256 * 1024
"""About the size of a request: what is encoded in one go, and so holds the loop, about 3 ms with small outputs."""
_MISSING_TIMEOUT: Final = 10.0
"""Seconds that a topic may be unknown to the cluster before its outputs fail: a new one takes a moment to be known."""
_CLOSING: Final = 0.8
"""Seconds for closing the connections, after the time for what is outstanding."""


class QueueingProducer:
    """The engine's producer on any cluster. See :class:`~aioparallel.delivery.producer.Producer` for what it promises.

    Outputs wait in one queue for each partition, and one batch of each is under way; meanwhile the next one fills.
    Nothing is sent for a partition before the batch ahead is acknowledged, so the order holds whatever is sent again.

    ``connect_to``: makes the cluster, given the function to call when the metadata is new. ``servers``: how messages
    name it. ``delivery_timeout``, ``linger``, ``retry_backoff``: seconds.
    """

    _missing_may_come = True
    """Whether outputs for topics and partitions that are not there fail as what passes."""

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
        self._outstanding.on_none = self._nothing_left
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._trouble = ""
        """Why nothing can be sent at all, while nothing can."""
        self._unsent = Trouble(servers)
        self._sending: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._identifying: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._work = asyncio.Event()
        self._sender = RequestSender(partition_queues, self._brokers, retry_backoff, self._work.set)
        self._is_awake = False
        """Whether the work is set and not yet begun."""
        self._idle = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self._outstanding.count} outstanding"
        return f"<{type(self).__name__} {self._servers} {state}>"

    # -- the interface

    async def start(self, timeout: float) -> None:
        """Connect within ``timeout`` seconds. Raises BrokerUnreachable or NotAuthorized."""
        await self._connect(timeout)
        self._wake()

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        """All partitions of these topics. Creates nothing. Raises TimeoutError."""
        ends = asyncio.get_running_loop().time() + timeout
        try:
            await self._connect(timeout)
        except BrokerUnreachable as error:
            raise TimeoutError(str(error)) from error
        return await self._brokers.partitions(topics, max(0.0, ends - asyncio.get_running_loop().time()))

    def send(self, outputs: Sequence[Outgoing], delivered: OnDelivered) -> None:
        """Take these outputs; returns at once. See :meth:`Producer.send`."""
        for entry in outputs_of(outputs, delivered):
            self.send_one(entry)

    def send_one(self, delivery: PendingOutput) -> None:
        """Take one output; returns at once. See :meth:`Producer.send_one`."""
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
            self._set_out(loop, deadline)

    def _refuse(self, delivery: PendingOutput, reason: str, passing: bool) -> None:
        self._outstanding.failed([delivery], reason, passing=passing)

    def _set_out(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Something is to be sent, and to be given up at its deadline."""
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._out_of_time)
        if not self._linger_time:
            if not self._is_awake:
                self._wake()
        elif self._linger is None:
            self._linger = loop.call_later(self._linger_time, self._lingered)

    def outputs(self) -> Sequence[BrokerOutputs]:
        """What is not acknowledged yet, by broker. Walks the partitions that are produced to."""
        if self._loop is None:
            return ()
        now, brokers = self._loop.time(), self._brokers
        silent = self._sender.silent(now)
        queues = self._partition_queues.queues
        return by_broker(queues, brokers.leader_of, brokers.address_of, silent, now, self._delivery_timeout)

    def problems(self) -> Sequence[Problem]:
        """That nothing can be sent at all, and why; brokers that do not answer."""
        if self._loop is None:
            return ()
        return (*self._unsent.problems(self._loop.time()), *silence_of(self.outputs()))

    async def stop(self, timeout: float) -> None:
        """Give what is outstanding ``timeout`` seconds, fail the rest, close all connections. Never raises."""
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
            beside = (self._sending, self._refreshing, self._identifying)
            tasks = self._sender.close()
            for task in beside:
                if task is not None:
                    task.cancel()
                    tasks.add(task)
            self._closing = asyncio.get_running_loop().create_task(self._close(tasks))
        await asyncio.shield(self._closing)  # it goes on when whoever waits for it is cancelled

    async def _close(self, tasks: Collection[asyncio.Task[None]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING / 4)
        await self._brokers.close(_CLOSING)

    # -- one coroutine that sends

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
            await self._while_more_comes()
            self._work.clear()
            self._is_awake = False
            try:
                if await self._connect_in_background():
                    if self._brokers.failure is not None:
                        self._give_up(self._brokers.failure)
                        continue
                    await self._send_ready()
                    if not self._partition_queues.needs_identity:
                        self._unsent.passed()
            except NotAuthorized as error:
                self._unsent.failed(error, asyncio.get_running_loop().time())
                self._outstanding.failed(self._partition_queues.clear(), str(error), passing=False)
            except Exception as error:
                await self._rest_after(error)
            if self._partition_queues.needs_metadata and (self._refreshing is None or self._refreshing.done()):
                self._refreshing = asyncio.create_task(self._refresh())

    def _give_up(self, failure: Exception) -> None:
        """Nothing can be sent any more. What was to be is not to blame: it passes, with another client."""
        self._trouble = str(failure)
        self._unsent.failed(failure, asyncio.get_running_loop().time())
        self._outstanding.failed(self._partition_queues.clear(), self._trouble, passing=True)

    async def _while_more_comes(self) -> None:
        for _ in range(_TURNS):
            before = self._outstanding.count
            await asyncio.sleep(0)
            if self._outstanding.count <= before:
                return

    async def _rest_after(self, error: Exception) -> None:
        self._trouble = str(error) or type(error).__name__
        self._unsent.failed(error, asyncio.get_running_loop().time())
        await asyncio.sleep(max(0.1, self._retry_backoff))
        self._brokers.doubt()
        if self._outstanding.count:
            self._work.set()

    async def _send_ready(self) -> None:
        """Send all that may be sent now. What is ready later, with an answer or new metadata, wakes us again."""
        partition_queues, sender = self._partition_queues, self._sender
        while partition_queues.has_ready:
            sent = False
            for node, queues in partition_queues.by_node(self._brokers.leader_of, sender.busy).items():
                if sender.count(node) and sum(len(queue.waiting) for queue in queues) < _WORTH:
                    continue  # its answer wakes us again
                if batches := partition_queues.fill(queues, node, _REQUEST_BYTES):
                    sent = True
                    sender.send(node, batches)
                # Encoding holds the loop; others have their turn in between.
                await asyncio.sleep(0)
            if partition_queues.needs_identity and (self._identifying is None or self._identifying.done()):
                self._identifying = asyncio.create_task(self._identify())
            if not sent:
                return

    async def _identify(self) -> None:
        """Get a producer id for the partitions that need one. Beside the sending: the others go on meanwhile."""
        loop = asyncio.get_running_loop()
        while self._partition_queues.needs_identity and self._outstanding.count:
            try:
                self._unsent.trying(loop.time())
                self._partition_queues.identified(await self._brokers.identify())
                self._trouble = ""
                self._unsent.passed()
            except NotAuthorized as error:
                self._unsent.failed(error, loop.time())
                self._outstanding.failed(self._partition_queues.clear(), str(error), passing=False)
                return
            except Exception as error:  # whatever it is, somebody waits for it
                self._trouble = str(error) or type(error).__name__
                self._unsent.failed(error, loop.time())
                await asyncio.sleep(max(0.1, self._retry_backoff))
                self._brokers.doubt()
        self._work.set()

    # -- connecting

    async def _connect(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if not self._brokers.is_connected:
                    # A little less than the block around it: then the error is the one with the reason.
                    await self._brokers.connect(timeout * 0.95)
        except TimeoutError as error:
            reason = self._trouble or "no answer"
            raise BrokerUnreachable(self._servers, timeout, reason) from error

    async def _connect_in_background(self) -> bool:
        """Try until it works, or nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        while not self._brokers.is_connected and self._outstanding.count:
            self._unsent.trying(loop.time())
            try:
                await self._connect(_CONNECT_TIMEOUT)
                self._trouble = ""
            except BrokerUnreachable as error:
                self._trouble = str(error)
                self._unsent.failed(error, loop.time())
            except AuthenticationFailed as error:
                # The consumer has logged in with the same: its password may be changing just now.
                self._trouble = str(error)
                self._unsent.failed(error, loop.time())
                await asyncio.sleep(LONGEST_PAUSE)
        return self._brokers.is_connected

    # -- metadata

    def _metadata_changed(self) -> None:
        self._partition_queues.update(self._brokers.partitions_of, asyncio.get_running_loop().time())
        self._sender.metadata_changed()
        self._work.set()

    async def _refresh(self) -> None:
        """Ask for metadata until nothing waits for it: a topic, a partition or a leader that is not known."""
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
                since, since + self._delivery_timeout, self._explain_missing, passing=self._missing_may_come
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

    # -- giving up

    def _out_of_time(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        # Timers run up to the clock's resolution early.
        outdated = self._partition_queues.expire(loop.time() + 0.001, self._explain_timeout)
        self._sender.cut({batch.node for batch in outdated.cut}, "it has not answered in time")
        self._set_timer(outdated.next_deadline)
        self._work.set()

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:  # whoever heard of a failure has sent something, and set it
            self._timer.cancel()
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._out_of_time)

    def _explain_timeout(self, queue: PartitionQueue) -> str:
        if queue.missing_since is not None:
            return self._explain_missing(queue)
        trouble = queue.trouble or self._trouble or ("" if self._brokers.is_connected else "no broker was reached")
        if not trouble and queue.partition < 0:
            trouble = "the topic is not known"
        why = f" (last: {trouble})" if trouble else ""
        return f"not acknowledged within delivery_timeout={self._delivery_timeout:g} s{why}"

    def _nothing_left(self) -> None:
        self._idle.set()
