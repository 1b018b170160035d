"""A member's share session with one node: one request after the other, with epochs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from aioparallel.clients.last_contacts import LastContacts
from aioparallel.clients.messages.share_records import AcknowledgeType, AcquiredRange
from aioparallel.group.share_client import Acknowledged, Acquired
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, NotAuthorized
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.connection import Connection
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.link import RETRY_BACKOFF
from aioparallel.testing.memory.log import Stored
from aioparallel.testing.memory.refused import RETRIABLE, Refused
from aioparallel.testing.memory.share_acks import Ack, Acks, Lock
from aioparallel.testing.memory.share_denials import RENEWALS_REFUSED
from aioparallel.testing.memory.share_reading import read_acquired
from aioparallel.testing.memory.share_requests import ShareRequests

__all__ = ["Member", "ShareSession"]

GAP, RENEW = AcknowledgeType.GAP, AcknowledgeType.RENEW

_LOST: Final = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH})
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)
"""The node does not have the partition, so it has no locks there either."""


class Member(Protocol):
    """What sessions need of their client."""

    group_id: str
    member_id: str
    may_renew: bool
    lock_seconds: float | None
    contacts: LastContacts

    def wanted(self) -> int:
        """The records that a session may acquire now; 0: none."""

    def arrived(self, session: ShareSession, acquired: Sequence[Acquired]) -> None:
        """Records were acquired."""

    def answer(self, acks: Collection[Ack], outcome: Acknowledged, until: float = 0.0) -> None:
        """Acknowledgements have ended."""

    def locks_lost(self, session: ShareSession) -> None:
        """What the session has acquired is not locked any more."""

    def failed(self, error: ClientError) -> None:
        """The next fetch raises this."""

    def leaders_changed(self) -> None:
        """Metadata is out of date."""


class ShareSession:
    """Run by one coroutine, :meth:`run`. ``partitions``: those to fetch from, which the node leads. ``is_fetching``:
    whether a request that may bring records is on its way."""

    def __init__(self, broker: InMemoryBroker, node: int, member: Member, timeout: float) -> None:
        self.node = node
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.acks = Acks()
        self.is_closing = False
        self.is_fetching = False
        self._broker = broker
        self._member = member
        self._timeout = timeout
        self._requests = ShareRequests(broker, member.group_id, member.member_id)
        self._connection: Connection | None = None
        self._under_way: dict[TopicPartition, list[Ack]] = {}
        self._has_records = False
        self._event = asyncio.Event()

    # -- called by the client

    def assign(self, partitions: frozenset[TopicPartition]) -> None:
        """Fetch from these from now on."""
        if partitions != self.partitions:
            self.partitions = partitions
            self._has_records = True
            self.wake()

    def wake(self) -> None:
        """There may be something to do."""
        self._event.set()

    def log_changed(self, partition: TopicPartition) -> None:
        """There may be something to acquire."""
        if partition in self.partitions and self._broker.share.has_records(self._member.group_id, partition):
            self._has_records = True
            self.wake()

    def abandon(self) -> None:
        """The coroutine has ended: no acknowledgement is answered any more."""
        taken, self._under_way = self._under_way, {}
        self._member.answer([ack for acks in taken.values() for ack in acks], Acknowledged.UNKNOWN)
        self._member.answer(self.acks.remove(self.acks.partitions()), Acknowledged.NOT_SENT)
        self.disconnect()

    # -- running

    async def run(self) -> None:
        """Send requests until the session is closed."""
        while True:
            self._event.clear()
            if self.is_closing and not self.acks:
                await self._close()
                return
            if not await self._step():
                await self._wait()

    async def _step(self) -> bool:
        """Send what is due. Returns False if there is nothing."""
        most = 0 if self.is_closing else self._member.wanted()
        is_fetching = bool(most and self._has_records and self.partitions)
        if not (is_fetching or self.acks):
            return False
        connection = self._connected()
        if connection is None:
            self._member.leaders_changed()
            self._member.answer(self.acks.remove_late(asyncio.get_running_loop().time()), Acknowledged.NOT_SENT)
            await self._pause(RETRY_BACKOFF)
        elif not self._requests.is_open:
            await self._fetch(connection, most if is_fetching else 0, {})
        else:
            acks = self.acks.take()
            renews = any(ack.kind is RENEW for some in acks.values() for ack in some)
            if is_fetching and not renews and acks.keys() <= self.partitions:
                await self._fetch(connection, most, acks)
            else:
                await self._acknowledge(connection, acks, renewing=renews)
        return True

    async def _wait(self) -> None:
        """Until there is something to do: what may be acquired when a lock of somebody ends is, too."""
        share, group_id, loop = self._broker.share, self._member.group_id, asyncio.get_running_loop()
        if not self._member.wanted():
            await self._event.wait()
        elif not self._broker.is_reachable:
            await self._pause(RETRY_BACKOFF)
        else:
            # A lock that begins from now on does not end before this one.
            latest = loop.time() + share.options(group_id).lock_duration
            deadline = share.next_deadline(group_id, self.partitions) or latest
            if not await self._pause(min(deadline, latest) - loop.time()):
                # Loops run timers early, by up to their clock's resolution: the time is the deadline.
                self._broker.advance(max(min(deadline, latest), loop.time()))
                for partition in self.partitions:
                    self.log_changed(partition)

    async def _pause(self, seconds: float) -> bool:
        """Wait for so long, or for :meth:`wake`; returns whether it was called."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                return await self._event.wait()
        return False

    def _connected(self) -> Connection | None:
        if not self._broker.is_reachable:
            return None
        if self._connection is None or not self._connection.is_open:
            self.disconnect()
            connection = Connection(self._broker, self.node)
            self._connection = connection if connection.is_open else None
        return self._connection

    def disconnect(self) -> None:
        """Close the connection, which ends the session. The broker releases its locks then, and others may have the
        records: nothing is acknowledged any more."""
        connection, self._connection = self._connection, None
        self._requests.forget_session()
        if connection is not None:
            connection.close()
            self._member.locks_lost(self)

    # -- requests

    async def _fetch(self, connection: Connection, most: int, acks: dict[TopicPartition, list[Ack]]) -> None:
        request = self._requests.fetch(self.partitions, most, acks)
        sent_at = asyncio.get_running_loop().time()
        self._has_records = False
        logs: dict[TopicPartition, list[Stored]] = {}

        def carry_out(now: float) -> Any:
            answer = self._broker.share.fetch(self.node, request, now, connection)
            for partition, ranges in self._requests.acquired(answer).items():
                if (log := self._broker.log(partition)) is not None:
                    logs[partition] = log.entries(ranges[0].first_offset, ranges[-1].last_offset)
            return answer

        self.is_fetching = most > 0
        try:
            answer = await self._send(connection, Request.SHARE_FETCH, carry_out, acks)
        finally:
            self.is_fetching = False
        if answer is None:
            self._has_records = True
            return
        self._note_lock(answer.acquisition_lock_timeout_ms)
        for topic in answer.responses:
            for one in topic.partitions:
                partition = self._requests.partition(topic.topic_id, one.partition_index)
                if partition in acks:
                    self._acknowledged(
                        partition,
                        acks.pop(partition),
                        one.acknowledge_error_code,
                        one.acknowledge_error_message,
                        sent_at,
                    )
                if one.error_code:
                    self._partition_failed(partition, ErrorCode(one.error_code))
        until = sent_at + answer.acquisition_lock_timeout_ms / 1000
        self._deliver(self._requests.acquired(answer), logs, until)

    async def _acknowledge(
        self, connection: Connection, acks: dict[TopicPartition, list[Ack]], *, renewing: bool
    ) -> None:
        request = self._requests.acknowledge(acks, renewing=renewing)
        sent_at = asyncio.get_running_loop().time()
        answer = await self._send(
            connection,
            Request.SHARE_ACKNOWLEDGE,
            lambda now: self._broker.share.acknowledge(self.node, request, now),
            acks,
        )
        if answer is None:
            return
        self._note_lock(answer.acquisition_lock_timeout_ms)
        for topic in answer.responses:
            for one in topic.partitions:
                partition = self._requests.partition(topic.topic_id, one.partition_index)
                self._acknowledged(partition, acks[partition], one.error_code, one.error_message, sent_at)

    async def _close(self) -> None:
        """Close the session, which releases what is still locked."""
        connection = self._connected()
        if connection is not None and self._requests.is_open:
            request = self._requests.close()
            await self._send(
                connection,
                Request.SHARE_ACKNOWLEDGE,
                lambda now: self._broker.share.acknowledge(self.node, request, now),
                {},
            )
        self.disconnect()

    async def _send(
        self,
        connection: Connection,
        request: Request,
        carry_out: Callable[[float], Any],
        acks: dict[TopicPartition, list[Ack]],
    ) -> Any:
        """The response, if it has no error for all of it; then the epoch goes up. Else what was acknowledged is put
        back, or ends."""
        self._under_way = acks
        kinds = ("fetch",) * (request is Request.SHARE_FETCH) + ("commit",) * bool(acks)
        try:
            with self._member.contacts.asking(self.node, *kinds):
                answer = await connection.call(request, carry_out, self._timeout)
            code = ErrorCode(answer.error_code)
        except TimeoutError:
            answer, code = None, ErrorCode.NETWORK_EXCEPTION
        except Refused as refused:
            answer, code = None, refused.code
            if code is not ErrorCode.NETWORK_EXCEPTION:
                self._member.contacts.answered(self.node)
            for ack in [ack for some in acks.values() for ack in some]:
                ack.in_doubt = True  # a broker may have done it nevertheless
        self._under_way = {}
        if code is ErrorCode.NONE:
            self._requests.accepted()
            return answer
        if code is ErrorCode.NETWORK_EXCEPTION:
            self.disconnect()
            self._member.answer([ack for some in acks.values() for ack in some], Acknowledged.UNKNOWN)
            self._member.leaders_changed()
            return None
        for some in acks.values():
            self._member.answer(self.acks.put_back(some), Acknowledged.NOT_SENT)
        if code in _LOST:
            self._requests.forget_session()
            self._has_records = True
            return None
        if code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._member.failed(NotAuthorized(f"group {self._member.group_id!r}"))
        elif code not in RETRIABLE:
            self._member.failed(ClientError(f"the in-memory broker answered {code.name} to a {request.value}"))
        self._member.answer(self.acks.remove_late(asyncio.get_running_loop().time()), Acknowledged.NOT_SENT)
        await asyncio.sleep(RETRY_BACKOFF)
        return None

    # -- answers

    def _note_lock(self, milliseconds: int) -> None:
        if milliseconds:
            self._member.lock_seconds = milliseconds / 1000

    def _acknowledged(
        self, partition: TopicPartition, acks: Sequence[Ack], code: int, message: str | None, sent_at: float
    ) -> None:
        member = self._member
        if code == ErrorCode.NONE:
            now, until = asyncio.get_running_loop().time(), sent_at + (member.lock_seconds or 0.0)
            member.answer([ack for ack in acks if ack.kind is not RENEW], Acknowledged.DONE)
            # Below the start offset brokers accept everything: also what others have, after this member's lock ended.
            renewals = [ack for ack in acks if ack.kind is RENEW]
            late = [ack for ack in renewals if now >= ack.lock.until]
            member.answer(late, Acknowledged.NOT_HELD)
            member.answer([ack for ack in renewals if ack not in late], Acknowledged.DONE, until)
        elif message == RENEWALS_REFUSED.message:
            member.may_renew = False
            refused = [ack for ack in acks if ack.kind is RENEW]
            member.answer(refused, Acknowledged.RENEW_REFUSED)
            others = [ack for ack in acks if ack.kind is not RENEW]
            member.answer(self.acks.put_back(others), Acknowledged.NOT_SENT)
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            member.failed(NotAuthorized(f"topic {partition.topic!r}"))
            member.answer(acks, Acknowledged.NOT_SENT)
        elif code in _MOVED or len(acks) == 1:
            member.answer([ack for ack in acks if not ack.in_doubt], Acknowledged.NOT_HELD)
            member.answer([ack for ack in acks if ack.in_doubt], Acknowledged.UNKNOWN)
            if code in _MOVED:
                member.leaders_changed()
        else:
            member.answer(self.acks.split(acks), Acknowledged.NOT_SENT)

    def _partition_failed(self, partition: TopicPartition, code: ErrorCode) -> None:
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._has_records = True  # the next fetch asks again
            self._member.failed(NotAuthorized(f"topic {partition.topic!r}"))
        else:
            self.partitions -= {partition}  # until the leaders are known again
            self._member.leaders_changed()

    def _deliver(
        self,
        acquired: Mapping[TopicPartition, Sequence[AcquiredRange]],
        logs: Mapping[TopicPartition, Sequence[Stored]],
        until: float,
    ) -> None:
        delivered: list[Acquired] = []
        for partition, ranges in acquired.items():
            damage = self._broker.unreadable_at(partition, ranges[0].first_offset)
            found, gaps = read_acquired(partition, ranges, logs.get(partition, ()), damage, until)
            for offset in gaps:
                self.acks.add(Ack(partition, offset, GAP, None, Lock(until)))
            if found.records or found.unreadable:
                delivered.append(found)
        for partition in self.partitions:
            self.log_changed(partition)  # there may be more
        self._member.arrived(self, delivered)
