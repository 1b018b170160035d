"""The in-memory client of share groups: one member of one group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Final

from aioparallel.clients.messages.share_records import AcknowledgeType as WireType
from aioparallel.group.share_client import Acknowledged, AcknowledgeEnded, AcknowledgeType, Acquired
from aioparallel.observe.stats import Contact
from aioparallel.records.errors import BrokerUnreachable, ClientError, ConfigurationError, ConsumerStateError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.faults import Request
from aioparallel.testing.memory.link import NODE, RETRY_BACKOFF, Link
from aioparallel.testing.memory.refused import Refused
from aioparallel.testing.memory.share_acks import Ack, Lock
from aioparallel.testing.memory.share_membership import ShareMembership, wrong_type
from aioparallel.testing.memory.share_session import ShareSession

__all__ = ["InMemoryShareClient"]

_METADATA_TIMEOUT: Final = 5.0


class InMemoryShareClient:
    """A :class:`~aioparallel.group.share_client.ShareClient` of an :class:`InMemoryBroker`.

    The settings of the group are the broker's: :meth:`InMemoryBroker.configure_share_group`. ``request_timeout``:
    seconds before a request to a leader is given up, and its connection closed. A client serves one consumer, once. All
    times come from the running event loop.
    """

    def __init__(self, broker: InMemoryBroker, group_id: str, *, request_timeout: float = 30.0) -> None:
        if not request_timeout > 0:
            raise ConfigurationError("request_timeout", request_timeout, "seconds, above 0")
        self.group_id = group_id
        self.member_id = broker.share_groups.new_member_id()
        self.may_renew = True
        """Whether the broker has not refused ``RENEW`` yet."""
        self.lock_seconds: float | None = None
        """The group's lock duration, from the last response; None before the first one."""
        self._broker = broker
        self._link = Link(broker, group_id)
        self.contacts = self._link.last_contacts
        self._request_timeout = request_timeout
        self._sessions: dict[int, ShareSession] = {}
        self._led: dict[int, frozenset[TopicPartition]] = {}
        """The assigned partitions by the node that leads them."""
        self._excluded: frozenset[TopicPartition] = frozenset()
        self._tasks: dict[ShareSession | None, asyncio.Task[None]] = {}  # None: the membership
        self._membership: ShareMembership | None = None
        self._topics: frozenset[str] = frozenset()
        self._on_assignment: Callable[[Collection[TopicPartition]], None] = lambda _: None
        # The locked records, and by which session.
        self._held: dict[TopicPartition, dict[int, tuple[ShareSession, Lock]]] = {}
        self._arrived: list[Acquired] = []
        self._answers: list[tuple[AcknowledgeEnded, Acknowledged]] = []  # those that need no request
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_woken = False
        self._error: ClientError | None = None  # for the next fetch
        self._failure: ClientError | None = None  # for all
        self._refreshing: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_closed = False

    @property
    def is_fetching(self) -> bool:
        """Whether a request to acquire records is on its way."""
        return any(session.is_fetching for session in self._sessions.values())

    @property
    def delivery_limit(self) -> int:
        """The group's limit of deliveries."""
        return self._broker.share.options(self.group_id).delivery_count_limit

    @property
    def dead_letter_topic(self) -> None:
        """None: the in-memory brokers write no dead letters."""

    # -- starting and stopping

    async def start(self, timeout: float) -> None:
        """Connect within ``timeout`` seconds. Raises BrokerUnreachable, NotAuthorized, or ClientError."""
        if self._is_started or self._is_closed:
            raise ConsumerStateError("an in-memory client can be started once; make a new one")
        try:
            async with asyncio.timeout(timeout):
                await self._link.ask(Request.CONNECT, self._broker.log_in, timeout)
                await self._link.ask(Request.METADATA, self._check_group, timeout)
        except TimeoutError:
            raise BrokerUnreachable("the in-memory broker", timeout, "it does not answer") from None
        self._is_started = True
        self._broker.observe(self)

    def _check_group(self, _: float) -> None:
        groups = self._broker.coordinate_share(self.group_id)
        if self._broker.share_version < 1:
            raise ClientError("the in-memory broker has no share groups (share.version=0)")
        if self.group_id not in groups and self._broker.has_consumer_group(self.group_id):
            raise wrong_type(self.group_id)

    async def stop(self, timeout: float) -> None:
        """Send what is acknowledged, release the rest and leave the group, within ``timeout`` seconds."""
        if self._is_closed:
            return
        self._is_closed = True
        self._fail(ClientError("the in-memory client has been stopped; make a new one"))
        self._broker.forget(self)
        ending = {task for session, task in self._tasks.items() if session is not None}
        for session in self._sessions.values():
            session.is_closing = True
            session.wake()
        if (member := self._tasks.get(None)) is not None:
            member.cancel()
        if self._membership is not None:
            ending.add(asyncio.ensure_future(self._membership.leave(timeout)))
        if ending:
            await asyncio.wait(ending, timeout=timeout)
        await self._end()

    async def _end(self) -> None:
        tasks = {*self._tasks.values(), *([self._refreshing] if self._refreshing else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for session in self._sessions.values():
            session.abandon()
        self._held.clear()
        self._answer_all()

    def crash(self) -> None:
        """End at once, as a killed process does: its connections break, and its session in the group must expire. No
        acknowledgement is answered any more."""
        self._is_closed = True
        self._broker.forget(self)
        for task in (*self._tasks.values(), *([self._refreshing] if self._refreshing else [])):
            task.cancel()
        for session in self._sessions.values():
            session.disconnect()
        self._fail(ClientError("the in-memory client has crashed"))

    # -- the group

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        """All partitions of these topics. Creates no topic."""
        return set(await self._link.ask(Request.METADATA, lambda now: self._broker.partitions_of(topics), timeout))

    def subscribe(self, topics: Collection[str], on_assignment: Callable[[Collection[TopicPartition]], None]) -> None:
        """Start to join the group and return at once."""
        if not self._is_started or self._is_closed or self._membership is not None:
            raise ConsumerStateError("subscribe once, between start() and stop()")
        self._topics, self._on_assignment = frozenset(topics), on_assignment
        self._membership = ShareMembership(
            self._broker, self._link, self.group_id, self.member_id, self._topics, self._assigned
        )
        self._run(None, self._membership.run())

    def _assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._on_assignment(partitions)
        self.leaders_changed()

    def _run(self, session: ShareSession | None, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name="in-memory share client")
        self._tasks[session] = task
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if self._is_closed or task.cancelled() or (cause := task.exception()) is None:
            return
        if isinstance(cause, ClientError):
            self._fail(cause)
        else:
            failure = ClientError(f"a callback of the share client raised {cause!r}")
            failure.__cause__ = cause
            self._fail(failure)

    # -- leaders

    def leaders_changed(self) -> None:
        """Find out which nodes lead the assigned partitions."""
        if (self._refreshing is None or self._refreshing.done()) and not self._is_closed:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh(), name="in-memory metadata")

    async def _refresh(self) -> None:
        """Until every assigned partition has a leader."""
        while self._membership is not None:
            wanted = self._membership.partitions
            watched = wanted | self._held.keys()
            try:
                leaders = await self._link.call(
                    Request.METADATA,
                    lambda now, watched=watched: {  # type: ignore[misc]
                        one: self._broker.leader(one) for one in watched if self._broker.log(one) is not None
                    },
                    _METADATA_TIMEOUT,
                )
            except (Refused, TimeoutError):
                await asyncio.sleep(RETRY_BACKOFF)
                continue
            self._adopt(wanted, leaders)
            if wanted == self._membership.partitions and None not in leaders.values():
                return
            await asyncio.sleep(RETRY_BACKOFF)

    def _adopt(self, wanted: frozenset[TopicPartition], leaders: dict[TopicPartition, int | None]) -> None:
        by_node: dict[int, set[TopicPartition]] = {}
        for partition in wanted & leaders.keys():
            if (node := leaders[partition]) is not None:
                by_node.setdefault(node, set()).add(partition)
        for node in by_node.keys() - self._sessions.keys():
            session = self._sessions[node] = ShareSession(self._broker, node, self, self._request_timeout)
            self._run(session, session.run())
        for node, session in self._sessions.items():
            self._led[node] = frozenset(by_node.get(node, ()))
            session.assign(self._led[node] - self._excluded)
            # Another leader has no locks of this one.
            moved = [one for one in session.acks.partitions() if leaders.get(one) not in (None, node)]
            self.answer(session.acks.remove(moved), Acknowledged.NOT_HELD)

    # -- called by the broker

    def log_changed(self, partition: TopicPartition) -> None:
        """There may be something to acquire."""
        for session in self._sessions.values():
            session.log_changed(partition)
        wanted = self._membership.partitions if self._membership is not None else frozenset[TopicPartition]()
        fetched = self._excluded.union(*(session.partitions for session in self._sessions.values()))
        if partition in wanted and partition not in fetched:
            self.leaders_changed()

    def group_changed(self, group_id: str) -> None:
        """The group's members or assignment have changed."""
        if group_id == self.group_id and self._membership is not None:
            self._membership.group_changed()

    # -- records

    async def fetch(self, most: int) -> Sequence[Acquired]:
        """Acquire about ``most`` records. Waits for some, or for :meth:`wake`."""
        if most < 1:
            raise ConfigurationError("most", most, "records, at least 1")
        if self._waiter is not None:
            raise ConsumerStateError("one fetch at a time")
        while True:
            if self._failure is not None:
                raise self._failure
            error, self._error = self._error, None
            if error is not None:
                raise error
            if self._arrived or self._is_woken:
                # No await between taking and returning, so a cancelled fetch loses no record.
                arrived, self._arrived, self._is_woken = self._arrived, [], False
                return arrived
            self._wanted = most
            self._waiter = asyncio.get_running_loop().create_future()
            for session in self._sessions.values():
                session.wake()
            try:
                await self._waiter
            finally:
                self._waiter, self._wanted = None, 0

    def exclude(self, partitions: Collection[TopicPartition]) -> None:
        """From now on acquire nothing of these partitions, and again of others."""
        self._excluded = frozenset(partitions)
        for node, session in self._sessions.items():
            session.assign(self._led.get(node, frozenset()) - self._excluded)

    def wake(self) -> None:
        """Let the waiting :meth:`fetch` return now, or the next one if none is waiting."""
        self._is_woken = True
        self._resolve()

    def _resolve(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wanted(self) -> int:
        """How many records a session may acquire now. Several divide what the fetch asks for."""
        if self._arrived or self._error is not None or self._wanted == 0:
            return 0
        return max(1, self._wanted // max(1, sum(1 for one in self._sessions.values() if one.partitions)))

    def arrived(self, session: ShareSession, acquired: Sequence[Acquired]) -> None:
        """Records were acquired."""
        for some in acquired:
            offsets = [record.offset for record in some.records]
            offsets += [offset for one in some.unreadable for offset in range(one.first, one.last + 1)]
            for other in self._sessions.values():  # of earlier deliveries
                self.answer(other.acks.withdraw(some.partition, offsets), Acknowledged.NOT_HELD)
            held = self._held.setdefault(some.partition, {})
            held.update({offset: (session, Lock(some.locked_until)) for offset in offsets})
        if acquired:
            self._arrived += acquired
            self._resolve()

    # -- acknowledgements

    def acknowledge(
        self, partition: TopicPartition, offset: int, kind: AcknowledgeType, ended: AcknowledgeEnded
    ) -> None:
        """Send an acknowledgement as soon as the session of the partition's leader allows it."""
        held = self._held.get(partition, {}).get(offset)
        if self._is_closed:
            self._answer_soon(ended, Acknowledged.NOT_SENT)
        elif held is None:
            self._answer_soon(ended, Acknowledged.NOT_HELD)
        elif kind is AcknowledgeType.RENEW and not self.may_renew:
            self._answer_soon(ended, Acknowledged.RENEW_REFUSED)
        else:
            session, lock = held
            if kind is not AcknowledgeType.RENEW:
                self._let_go(partition, offset)
            replaced = session.acks.add(Ack(partition, offset, WireType(kind), ended, lock))
            if replaced is not None and replaced.ended is not None:
                self._answer_soon(replaced.ended, Acknowledged.NOT_SENT)
            session.wake()

    def locks_lost(self, session: ShareSession) -> None:
        """What the session has acquired is not locked any more."""
        for partition, held in list(self._held.items()):
            kept = {offset: lock for offset, lock in held.items() if lock[0] is not session}
            if kept:
                self._held[partition] = kept
            else:
                del self._held[partition]
        outcome = Acknowledged.NOT_SENT if self._is_closed else Acknowledged.NOT_HELD
        self.answer(session.acks.remove(session.acks.partitions()), outcome)

    def _let_go(self, partition: TopicPartition, offset: int) -> None:
        held = self._held[partition]
        del held[offset]
        if not held:
            del self._held[partition]

    def answer(self, acks: Collection[Ack], outcome: Acknowledged, until: float = 0.0) -> None:
        """Acknowledgements have ended. After a renewal, their locks end at ``until``."""
        for ack in acks:
            if ack.kind is WireType.RENEW:
                held = self._held.get(ack.partition, {}).get(ack.offset)
                if outcome is Acknowledged.DONE:
                    ack.lock.until = until
                elif outcome is Acknowledged.NOT_HELD and held is not None and held[1] is ack.lock:
                    self._let_go(ack.partition, ack.offset)
            if ack.ended is not None:
                ack.ended(outcome, until)

    def _answer_soon(self, ended: AcknowledgeEnded, outcome: Acknowledged) -> None:
        self._answers.append((ended, outcome))
        if len(self._answers) == 1:
            asyncio.get_running_loop().call_soon(self._answer_all)

    def _answer_all(self) -> None:
        answers, self._answers = self._answers, []
        for ended, outcome in answers:
            ended(outcome, 0.0)

    # -- failures

    def failed(self, error: ClientError) -> None:
        """The next fetch raises this."""
        self._error = error
        self._resolve()

    def _fail(self, failure: ClientError) -> None:
        self._failure = self._failure or failure
        self._resolve()

    def contact(self) -> Contact:
        """When the broker last answered. While it is reachable it announces records itself, so no fetch is needed."""
        contacts = self.contacts
        nodes: dict[object, str] = {NODE: "the in-memory broker"}
        nodes |= {node: f"node {node} of the in-memory broker" for node in self._sessions}
        wanted = self._membership.partitions if self._membership is not None else frozenset[TopicPartition]()
        existing = [one for one in wanted if self._broker.log(one) is not None]
        return Contact(
            fetch=0.0 if self._is_started and self._broker.is_reachable else contacts.since_answered("fetch"),
            heartbeat=contacts.since_answered("heartbeat"),
            commit=contacts.since_answered("commit"),
            brokers=contacts.brokers(nodes),
            leaderless=tuple(sorted(one for one in existing if self._broker.leader(one) is None)),
            missing=tuple(sorted(topic for topic in self._topics if not self._broker.partitions_of([topic]))),
        )
