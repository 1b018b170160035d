"""A Kafka broker in memory: topics, transactions, groups, and the ways to break them."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeVar
from zlib import crc32

from aioparallel.engine.client import Committed, Generation
from aioparallel.errors import ConfigurationError
from aioparallel.records import Headers, Outgoing, Record, TopicPartition
from aioparallel.testing.memory.codes import ErrorCode, Refused
from aioparallel.testing.memory.faults import Faults
from aioparallel.testing.memory.groups import METADATA_LIMIT, Group
from aioparallel.testing.memory.log import PartitionLog, Transaction, TransactionState
from aioparallel.testing.memory.produced import ProducerLog

__all__ = ["InMemoryBroker", "Observer"]

T = TypeVar("T")


class Observer(Protocol):
    """Somebody to tell when there is something new (a client, which then asks for it)."""

    def log_changed(self, partition: TopicPartition) -> None:
        """The partition may have more to read, or less."""

    def group_changed(self, group_id: str) -> None:
        """The group went from one state into another."""


class InMemoryBroker:
    """A broker for tests, that does what real ones do to a consumer. Nothing leaves the process.

    ::

        broker = InMemoryBroker()
        broker.create_topic("orders", partitions=2)
        broker.append("orders", b"42", key=b"customer-1")
        client = InMemoryClient(broker, "billing")

    It is plain data with plain methods: no threads, no waiting, no clock. Times are passed in by its clients,
    which take them from their event loop, and chance comes from ``rng`` alone; so a test under a virtual
    clock repeats exactly. Use it from one event loop.

    ``metadata_limit``: longest commit metadata, in UTF-16 characters (``offset.metadata.max.bytes``).

    Ways to break it: :attr:`faults` (what happens to requests on their way), :meth:`go_down`,
    :attr:`is_coordinator_available`, :meth:`deny_topic`, :meth:`corrupt`, :meth:`truncate_tail` and others.
    """

    def __init__(self, *, rng: random.Random | None = None, metadata_limit: int = METADATA_LIMIT) -> None:
        if metadata_limit < 0:
            raise ConfigurationError("metadata_limit", metadata_limit, "UTF-16 characters, not below 0")
        self.faults = Faults(rng)
        self.metadata_limit = metadata_limit
        self.is_reachable = True
        """Whether connections hold; see :meth:`go_down`."""
        self.is_coordinator_available = True
        """False: requests about groups are answered COORDINATOR_NOT_AVAILABLE; sessions do not expire
        meanwhile and begin anew afterwards, as with a coordinator that moves to another broker."""
        self.is_login_refused = False
        """True: clients that start now are refused (SASL authentication failed)."""
        self.is_idempotence_refused = False
        """True: producers that ask for an id now are refused (cluster authorization failed)."""
        self.max_message_bytes: int | None = None
        """Largest batch it takes, in bytes; None: any. Real brokers begin with about 1 MiB."""
        self.producers = ProducerLog()
        """What it remembers of its producers; :meth:`~ProducerLog.forget` makes it lose that."""
        self._topics: dict[str, list[PartitionLog]] = {}
        self._groups: dict[str, Group] = {}
        self._observers: dict[Observer, None] = {}
        self._denied_topics: set[str] = set()
        self._denied_groups: set[str] = set()
        self._unreadable: dict[TopicPartition, int] = {}
        self._transaction_logs: dict[Transaction, list[TopicPartition]] = {}
        self._keyless = 0
        self._sessions_stand_still = False

    # -- topics

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic with this many partitions. Raises ConfigurationError when it exists."""
        if name in self._topics:
            raise ConfigurationError("name", name, "a topic that does not exist yet")
        self._topics[name] = []
        self.add_partitions(name, partitions)

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow the topic to ``total`` partitions; members of groups notice at their next heartbeat."""
        logs = self._logs(topic)
        if total < max(1, len(logs)):
            raise ConfigurationError("total", total, f"partitions, at least {max(1, len(logs))} for {topic!r}")
        logs.extend(PartitionLog() for _ in range(total - len(logs)))

    def delete_topic(self, name: str) -> None:
        """Delete the topic with its records, and what groups have committed for it."""
        gone = len(self._topics.pop(name, ()))
        for group in self._groups.values():
            for number in range(gone):
                group.offsets.pop(TopicPartition(name, number), None)

    def partitions_of(self, topics: Collection[str] | re.Pattern[str]) -> frozenset[TopicPartition]:
        """All partitions of these topics, or of those whose whole name matches.

        What is not there is left out, and so are topics that are denied.
        """
        names = (
            [name for name in self._topics if topics.fullmatch(name)]
            if isinstance(topics, re.Pattern)
            else [name for name in topics if name in self._topics]
        )
        return frozenset(
            TopicPartition(name, number)
            for name in names
            if name not in self._denied_topics
            for number in range(len(self._topics[name]))
        )

    def log(self, partition: TopicPartition) -> PartitionLog | None:
        """The log of a partition; None where there is none."""
        logs = self._topics.get(partition.topic, ())
        return logs[partition.partition] if 0 <= partition.partition < len(logs) else None

    def records(self, topic: str) -> list[Record]:
        """All records of a topic that a ``read_committed`` consumer would see, partition by partition."""
        return [
            Record(topic, number, s.offset, s.key, s.value, s.headers, s.timestamp)
            for number, log in enumerate(self._logs(topic))
            for s in log.read(log.start_offset, log.end_offset, read_committed=True).records
        ]

    # -- producing

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int = 0,
        partition: int | None = None,
        transaction: Transaction | None = None,
    ) -> tuple[TopicPartition, int]:
        """Append a record and return its place, ``(partition, offset)``.

        ``timestamp`` is in milliseconds since the epoch. Without ``partition`` the key decides (by CRC-32,
        not by the hash of Kafka's producers), and records without a key go round. Raises ConfigurationError
        for a topic or partition that does not exist and a transaction that has ended.
        """
        logs = self._logs(topic)
        if partition is None:
            self._keyless += key is None
            partition = (self._keyless if key is None else crc32(key)) % len(logs)
        if not 0 <= partition < len(logs):
            raise ConfigurationError("partition", partition, f"0 to {len(logs) - 1} for topic {topic!r}")
        if transaction is not None and transaction.state is not TransactionState.OPEN:
            raise ConfigurationError("transaction", transaction, "an open transaction of this broker")
        where = TopicPartition(topic, partition)
        offset = logs[partition].append(key, value, headers, timestamp, transaction)
        if transaction is not None and where not in self._transaction_logs[transaction]:
            self._transaction_logs[transaction].append(where)
        self._tell_log(where)
        return where, offset

    def produce(
        self, partition: TopicPartition, records: Sequence[Outgoing], size: int, producer_id: int, sequence: int
    ) -> int:
        """Append a batch of ``size`` bytes once, however often it comes; the offset of its first record.

        Raises Refused.
        """
        log = self.log(partition)
        if partition.topic in self._denied_topics:
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if log is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self.max_message_bytes is not None and size > self.max_message_bytes:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE)
        offset = self.producers.find(producer_id, partition, sequence, len(records))
        if offset is None:
            offset = log.end_offset
            for record in records:
                log.append(record.key, record.value, record.headers, record.timestamp or 0)
            self.producers.add(producer_id, partition, sequence, len(records), offset)
            self._tell_log(partition)
        return offset

    def begin_transaction(self) -> Transaction:
        """Begin a transaction, to give to :meth:`append`."""
        transaction = Transaction()
        self._transaction_logs[transaction] = []
        return transaction

    def end_transaction(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort: a marker, one offset, goes into each partition that was written to."""
        transaction.state = TransactionState.COMMITTED if commit else TransactionState.ABORTED
        for partition in self._transaction_logs.pop(transaction):
            if log := self.log(partition):
                log.end_transaction(transaction)
                self._tell_log(partition)

    # -- damage

    def go_down(self) -> None:
        """Break all connections; requests do not arrive until :meth:`come_back`. Sessions stand still."""
        self.is_reachable = False
        self._sessions_stand_still = True

    def come_back(self) -> None:
        """Be reachable again; sessions begin anew."""
        self.is_reachable = True
        for partition in sorted(self.partitions_of(re.compile(".*"))):
            self._tell_log(partition)

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Move the start of the log to ``offset``, as retention does."""
        self._log(partition).delete_before(offset)
        self._tell_log(partition)

    def truncate_tail(self, partition: TopicPartition, end: int) -> None:
        """Lose the records from ``end`` on, as an unclean leader election does; their offsets come again."""
        self._log(partition).truncate_tail(end)
        self._tell_log(partition)

    def compact(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        """Remove these offsets, as compaction does."""
        self._log(partition).compact(offsets)

    def corrupt(self, partition: TopicPartition, offset: int | None) -> None:
        """Make ``offset`` unreadable, with all that follows it; None mends the partition."""
        if offset is None:
            self._unreadable.pop(partition, None)
        else:
            self._unreadable[partition] = offset
        self._tell_log(partition)

    def unreadable_from(self, partition: TopicPartition) -> int | None:
        """Where :meth:`corrupt` has damaged the partition."""
        return self._unreadable.get(partition)

    def deny_topic(self, topic: str, *, denied: bool = True) -> None:
        """Refuse the topic to everybody: fetches and commits are not authorised, and nobody is told of it."""
        (self._denied_topics.add if denied else self._denied_topics.discard)(topic)
        for number in range(len(self._topics.get(topic, ()))):
            self._tell_log(TopicPartition(topic, number))

    def is_denied(self, topic: str) -> bool:
        """Whether :meth:`deny_topic` has refused it."""
        return topic in self._denied_topics

    def deny_group(self, group_id: str, *, denied: bool = True) -> None:
        """Refuse the group to everybody."""
        (self._denied_groups.add if denied else self._denied_groups.discard)(group_id)

    # -- groups

    def group(self, group_id: str) -> Group:
        """The group, made on first use. For tests that look; clients come in by :meth:`coordinate`."""
        group = self._groups.get(group_id)
        if group is None:
            group = Group(group_id, self.metadata_limit, lambda: self._tell_group(group_id))
            self._groups[group_id] = group
        return group

    def coordinate(self, group_id: str) -> Group:
        """The group, for a request that has just arrived. Raises Refused."""
        if group_id in self._denied_groups:
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not self.is_coordinator_available:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.group(group_id)

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, Committed],
        generation: Generation,
        now: float,
    ) -> dict[TopicPartition, ErrorCode | None]:
        """OffsetCommit: None for each partition that was taken, else why not. Raises Refused for all."""
        group = self.coordinate(group_id)
        results: dict[TopicPartition, ErrorCode | None] = {
            p: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if p.topic in self._denied_topics
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for p in offsets
            if p.topic in self._denied_topics or self.log(p) is None
        }
        good = {p: committed for p, committed in offsets.items() if p not in results}
        return {**results, **group.commit(good, generation, now)}

    def expire_session(self, group_id: str, member_id: str, now: float) -> None:
        """Have the group throw the member out now, as it does when a session expires."""
        self.group(group_id).leave(member_id, now)

    # -- time, and who wants to know

    def advance(self, now: float) -> None:
        """Let time pass in all groups: sessions expire, rebalances go on without those who are late."""
        if not (self.is_reachable and self.is_coordinator_available):
            self._sessions_stand_still = True
            return
        if self._sessions_stand_still:
            self._sessions_stand_still = False
            for group in self._groups.values():
                group.restart_sessions(now)
        for group in self._groups.values():
            group.advance(now)

    def next_deadline(self, group_id: str) -> float | None:
        """When :meth:`advance` has something to do for the group, on the clients' clock."""
        return self.group(group_id).next_deadline()

    def observe(self, observer: Observer) -> None:
        """Tell the observer from now on."""
        self._observers[observer] = None

    def forget(self, observer: Observer) -> None:
        """Tell the observer nothing more."""
        self._observers.pop(observer, None)

    def _tell_log(self, partition: TopicPartition) -> None:
        for observer in tuple(self._observers):
            observer.log_changed(partition)

    def _tell_group(self, group_id: str) -> None:
        for observer in tuple(self._observers):
            observer.group_changed(group_id)

    def _logs(self, topic: str) -> list[PartitionLog]:
        try:
            return self._topics[topic]
        except KeyError:
            raise ConfigurationError("topic", topic, "one that create_topic() made") from None

    def _log(self, partition: TopicPartition) -> PartitionLog:
        log = self.log(partition)
        if log is None:
            raise ConfigurationError("partition", partition, "one that create_topic() made")
        return log
