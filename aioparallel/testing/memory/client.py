"""The in-memory client: a consumer of the in-memory broker, one member of one group."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Final, Literal, TypeVar, get_args

from aioparallel.group.client import CommitFault, Committed, Fetched, Generation, RebalanceListener, Span
from aioparallel.observe.stats import Contact
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import (
    BrokerUnreachable,
    ClientError,
    ConfigurationError,
    ConsumerStateError,
)
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.consumer_membership import ConsumerMembership
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.link import NODE, RETRY_BACKOFF, Link
from aioparallel.testing.memory.log import PartitionLog
from aioparallel.testing.memory.membership import MemberOptions, Membership
from aioparallel.testing.memory.reading import Reading
from aioparallel.testing.memory.refused import FENCING, RETRIABLE, Refused

__all__ = ["InMemoryClient"]

logger = logging.getLogger(__name__)

_PORTION: Final = 500
"""Records that a read returns at a time."""
_LOOK_AGAIN: Final = 0.1
"""Seconds before a read that found nothing looks again."""
_SILENT: Final = 30.0
"""Seconds without progress before a read fails."""

Isolation = Literal["read_uncommitted", "read_committed"]
GroupProtocol = Literal["classic", "consumer"]
T = TypeVar("T")


class InMemoryClient:
    """A :class:`~aioparallel.group.client.Client` of an :class:`InMemoryBroker`.

    Give it to the consumer to test handlers without a broker::

        consumer = ParallelConsumer("orders", group_id="billing", client=InMemoryClient(broker, "billing"))
        async with consumer:
            await consumer.run(handle)

    ``group_protocol``: ``"consumer"`` is the new protocol (KIP-848), in which each member gives up only the partitions
    that move, while it goes on with the others. All members of a group must use the same.
    ``cooperative``: in a rebalance of the classic protocol only partitions that move are revoked (KIP-429), instead of
    all.
    ``isolation_level``: ``"read_committed"`` hides undecided and aborted transactions.
    ``group_instance_id``: makes it a static member (KIP-345).
    ``session_timeout``, ``heartbeat_interval``, ``rebalance_timeout``: seconds, as in Kafka. With a short heartbeat
    interval, members notice rebalances, new topics and new partitions sooner. (With the new protocol the first two are
    options of real brokers.)

    A client serves one consumer, once. All times come from the running event loop. Raises ConfigurationError for
    options that cannot work.
    """

    def __init__(
        self,
        broker: InMemoryBroker,
        group_id: str,
        *,
        group_protocol: GroupProtocol = "classic",
        cooperative: bool = False,
        isolation_level: Isolation = "read_uncommitted",
        session_timeout: float = 30.0,
        heartbeat_interval: float = 0.1,
        rebalance_timeout: float = 60.0,
        group_instance_id: str | None = None,
    ) -> None:
        if isolation_level not in ("read_uncommitted", "read_committed"):
            raise ConfigurationError("isolation_level", isolation_level, "read_uncommitted or read_committed")
        if group_protocol not in get_args(GroupProtocol):
            raise ConfigurationError("group_protocol", group_protocol, "classic or consumer")
        if cooperative and group_protocol != "classic":
            raise ConfigurationError("cooperative", cooperative, "only with group_protocol='classic'")
        self._group_protocol = group_protocol
        self._instance_id = group_instance_id
        self._options = MemberOptions(
            cooperative, session_timeout, heartbeat_interval, rebalance_timeout, group_instance_id
        )
        self._options.check()
        self._broker = broker
        self._group_id = group_id
        self._read_committed = isolation_level == "read_committed"
        self._link = Link(broker, group_id)
        self._reading = Reading(broker, read_committed=self._read_committed)
        self._topics: frozenset[str] | re.Pattern[str] = frozenset()
        self._membership: Membership | ConsumerMembership | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None
        self._is_started = False
        self._is_closed = False

    # -- starting and stopping

    @property
    def assigns_in_steps(self) -> bool:
        """Whether it is a member of the new protocol."""
        return self._group_protocol == "consumer"

    async def start(self, timeout: float) -> None:
        """Connect within ``timeout`` seconds. Raises BrokerUnreachable or NotAuthorized."""
        if self._is_started or self._is_closed:
            raise ConsumerStateError("an in-memory client can be started once; make a new one")
        try:
            await self._link.ask(Request.CONNECT, self._broker.log_in, timeout)
        except TimeoutError:
            raise BrokerUnreachable("the in-memory broker", timeout, "it does not answer") from None
        self._is_started = True
        self._broker.observe(self)

    async def stop(self, timeout: float) -> None:
        """Leave the group, within ``timeout`` seconds."""
        membership = self._membership
        deadline = asyncio.get_running_loop().time() + timeout
        self.crash()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=timeout)
        if membership is not None:
            await membership.leave(deadline - asyncio.get_running_loop().time())

    def crash(self) -> None:
        """End at once without leaving the group, as a killed process does. Its session must expire."""
        self._is_closed = True
        self._membership = None
        if self._task is not None:
            self._task.cancel()
        self._broker.forget(self)
        self._fail(ClientError("the in-memory client has been stopped; make a new one"))

    # -- the group

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        """Start to join the group and return at once. The listener gets the assignments."""
        if not self._is_started or self._is_closed or self._task is not None:
            raise ConsumerStateError("subscribe once, between start() and stop()")
        self._topics = topics if isinstance(topics, re.Pattern) else frozenset(topics)
        kind = Membership if self._group_protocol == "classic" else ConsumerMembership
        self._membership = kind(
            self._broker,
            self._link,
            self._group_id,
            self._topics,
            options=self._options,
            listener=listener,
            dropped=self._reading.drop,
        )
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._membership.run(), name="in-memory membership")
        self._task.add_done_callback(self._membership_ended)

    def _membership_ended(self, task: asyncio.Task[None]) -> None:
        # Only closing cancels this task, so a CancelledError from the listener is a failure as well.
        cause = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._is_closed:
            return
        if isinstance(cause, ClientError):
            self._fail(cause)
            return
        failure = ClientError(f"the rebalance listener of group {self._group_id!r} raised {cause!r}")
        failure.__cause__ = cause
        self._fail(failure)

    def _fail(self, failure: ClientError) -> None:
        self._failure = self._failure or failure
        self._reading.look_again()

    # -- called by the broker

    def log_changed(self, partition: TopicPartition) -> None:
        """The partition may have more to read, or less: let the waiting fetch check it."""
        self._reading.look_at(partition)

    def group_changed(self, group_id: str) -> None:
        """The group's state has changed: let the waiting member check it."""
        if group_id == self._group_id and self._membership is not None:
            self._membership.group_changed()

    # -- reading

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        """Take at most ``quotas[p]`` records of each partition ``p``, and ``most`` in total. Waits for data or for
        :meth:`wake`."""
        while True:
            is_answered = await self._send_fetch()
            if self._failure is not None:
                raise self._failure
            fetched = self._take(quotas, most) if is_answered else []
            if self._reading.consume_wake() or fetched:
                return fetched
            # No await between checking and waiting, so no change is missed; nor between taking and returning, so a
            # cancelled fetch loses no record.
            await self._reading.wait(quotas, None if is_answered else RETRY_BACKOFF)

    def _take(self, quotas: Mapping[TopicPartition, int], most: int) -> list[Fetched]:
        if self._membership is None or not self._broker.is_reachable:
            return []
        return self._reading.take(quotas, most, self._membership.held)

    async def _send_fetch(self) -> bool:
        """Apply the faults of a fetch. Returns whether it was answered."""
        fault = self._broker.faults.decide(Request.FETCH)
        if fault.is_harmless:
            return True
        if fault.request_delay + fault.response_delay > 0:
            await self._reading.wait({}, fault.request_delay + fault.response_delay)
            if self._reading.is_woken:
                return False
        if fault.error is not None and fault.error not in RETRIABLE:
            raise self._link.explain(Refused(fault.error))
        return fault.error is None and not (fault.is_request_lost or fault.is_response_lost)

    def wake(self) -> None:
        """Let the waiting :meth:`fetch` return now. If none is waiting, the next one does not wait."""
        self._reading.wake()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read this partition from ``offset`` on. Ignored if it is not assigned."""
        if self._membership is not None and partition in self._membership.held:
            self._reading.seek(partition, offset)

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        """The last known end offset; None before the first."""
        self.since_end_seen(partition)
        return self._reading.ends_seen.get(partition)

    def written_end_seen(self, partition: TopicPartition) -> int | None:
        """The same, including undecided transactions."""
        log = self._broker.log(partition)
        return None if log is None or partition not in self._reading.ends_seen else log.end_offset

    def since_end_seen(self, partition: TopicPartition) -> float | None:
        """Seconds since an end offset was received; None before the first."""
        last_contacts = self._link.last_contacts
        if self._reading.look_at_end(partition):
            last_contacts.end_received([partition])
        return last_contacts.since_end_received(partition)

    def contact(self) -> Contact:
        """When the broker last answered. While it is reachable it announces records itself, so no fetch is needed."""
        last_contacts = self._link.last_contacts
        named = frozenset[str]() if isinstance(self._topics, re.Pattern) else self._topics
        return Contact(
            fetch=0.0 if self._is_started and self._broker.is_reachable else last_contacts.since_answered("fetch"),
            heartbeat=last_contacts.since_answered("heartbeat"),
            commit=last_contacts.since_answered("commit"),
            brokers=last_contacts.brokers({NODE: "the in-memory broker"}),
            missing=tuple(sorted(topic for topic in named if not self._broker.partitions_of([topic]))),
        )

    # -- committing

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Commit once, fenced with ``generation``. Returns a result for each partition."""
        if self._is_closed:
            return dict.fromkeys(offsets, CommitFault.RETRIABLE)
        sent = dict(offsets)
        try:
            codes = await self._link.call(
                Request.COMMIT,
                lambda now: self._broker.commit(self._group_id, sent, generation, now, self._instance_id),
                timeout,
            )
        except Refused as refused:
            codes = dict.fromkeys(sent, refused.code)
        except TimeoutError:
            return dict.fromkeys(sent, CommitFault.RETRIABLE)
        fencing = [code for code in codes.values() if code in FENCING or code is ErrorCode.STALE_MEMBER_EPOCH]
        if fencing and self._membership is not None:
            self._membership.fenced(generation, fencing[0])
        return {partition: None if code is None else fault_of(code) for partition, code in codes.items()}

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        """The group has fenced this generation, as an answer elsewhere shows."""
        if self._membership is not None:
            code = ErrorCode.FENCED_INSTANCE_ID if instance_fenced else ErrorCode.ILLEGAL_GENERATION
            self._membership.fenced(generation, code)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        """The group's committed offsets with their metadata. Partitions without one are left out."""
        wanted = tuple(partitions)
        return await self._link.ask(
            Request.OFFSET_FETCH,
            lambda now: self._broker.coordinate(self._group_id).committed(wanted),
            timeout,
        )

    # -- queries about logs

    async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
        """All partitions of these topics. Creates no topic."""
        return set(await self._link.ask(Request.METADATA, lambda now: self._broker.partitions_of(topics), timeout))

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """The first offset of each log."""
        return await self._ask_logs(partitions, lambda _, log: log.start_offset, timeout)

    async def end_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """The offset of the next record; under read_committed, the last stable offset."""
        committed = self._read_committed
        return await self._ask_logs(partitions, lambda _, log: log.readable_end(read_committed=committed), timeout)

    async def written_end_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """The offset of the next record, including undecided transactions."""
        return await self._ask_logs(partitions, lambda _, log: log.end_offset, timeout)

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """Up to which offset each log agrees with the given leader epoch."""
        return await self._ask_logs(
            epochs, lambda p, log: log.end_offset if epochs[p] < 0 else log.valid_end(epochs[p]), timeout
        )

    async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]:
        """The id of each topic that exists."""
        return await self._link.ask(
            Request.METADATA,
            lambda now: {topic: found for topic in topics if (found := self._broker.topic_id(topic))},
            timeout,
        )

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, int | None]:
        """The first offset at or after each time (milliseconds since the epoch); None if there is none."""
        committed = self._read_committed
        return await self._ask_logs(
            times, lambda p, log: log.offset_for_time(times[p], read_committed=committed), timeout
        )

    async def _ask_logs(
        self, partitions: Collection[TopicPartition], look: Callable[[TopicPartition, PartitionLog], T], timeout: float
    ) -> dict[TopicPartition, T]:
        return await self._link.ask(
            Request.LIST_OFFSETS,
            lambda now: {p: look(p, log) for p in partitions if (log := self._broker.log(p))},
            timeout,
        )

    async def cleanup_policy(self, topic: str, timeout: float) -> str | None:
        """The topic's ``cleanup.policy``; None if no answer comes."""
        try:
            compacted = await self._link.ask(Request.METADATA, lambda now: self._broker.is_compacted(topic), timeout)
        except (ClientError, Refused, TimeoutError):
            return None
        return "compact" if compacted else "delete"

    async def read(
        self, spans: Mapping[TopicPartition, Span | list[Span]], *, as_fetched: bool = False
    ) -> AsyncGenerator[Fetched, None]:
        """Read these partitions from start to end of each span."""
        reading = Reading(self._broker, read_committed=self._read_committed or not as_fetched)
        left = {partition: [given] if isinstance(given, Span) else list(given) for partition, given in spans.items()}

        def take(_: float) -> list[Fetched]:
            for partition, ((start, _end), *_rest) in left.items():
                log = self._broker.log(partition)
                reading.seek(partition, start if log is None else max(start, log.start_offset))
            return reading.take(dict.fromkeys(left, _PORTION), sys.maxsize, left.keys())

        time = asyncio.get_running_loop().time
        moved = time()
        while left:
            for partition, some in list(left.items()):
                end = 0
                while some and some[0].start >= some[0].end:
                    end = some.pop(0).end
                if not some:
                    del left[partition]
                    yield Fetched(partition, [], end)
            taken = await self._link.ask(Request.FETCH, take, _SILENT)
            if not taken:
                if time() - moved > _SILENT:
                    at = ", ".join(f"{partition} at offset {some[0].start}" for partition, some in sorted(left.items()))
                    raise ClientError(f"no record has come for {_SILENT:g} s ({at})")
                await asyncio.sleep(_LOOK_AGAIN)  # the next records may be undecided
            for partition, found, next_offset, epochs, *_ in taken:
                some = left[partition]
                end = some[0].end
                some[0] = Span(min(next_offset, end), end)
                records = [record for record in found if record.offset < end]
                if next_offset >= end:
                    some.pop(0)
                if not some:
                    del left[partition]
                yield Fetched(partition, records, min(next_offset, end), epochs)
                moved = time()


def fault_of(code: ErrorCode) -> CommitFault:
    """The meaning of an error code for a commit."""
    if code in FENCING:
        return CommitFault.FENCED
    if code in RETRIABLE:
        return CommitFault.RETRIABLE
    if code is ErrorCode.OFFSET_METADATA_TOO_LARGE:
        return CommitFault.METADATA_TOO_LARGE
    return CommitFault.REFUSED
