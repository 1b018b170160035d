"""The topics of the in-memory broker: their logs, appending, and ways to damage them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol
from zlib import crc32

from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Headers, Record, TopicPartition
from aioparallel.testing.memory.log import PartitionLog, Transaction
from aioparallel.testing.memory.produced import ProducerLog

__all__ = ["Observer", "Topics"]


class Observer(Protocol):
    """A client, which is told of changes."""

    def log_changed(self, partition: TopicPartition) -> None:
        """The partition may have more to read, or less."""

    def group_changed(self, group_id: str) -> None:
        """The group's state has changed."""


class Topics:
    """Topics by name, with their partitions. Notifies clients of changes."""

    def __init__(self) -> None:
        self.producers = ProducerLog()
        """The state of producers; :meth:`~ProducerLog.forget` makes the broker lose it."""
        self._topics: dict[str, list[PartitionLog]] = {}
        self._clients: dict[Observer, None] = {}
        self._denied_topics: set[str] = set()
        self._compacted_topics: set[str] = set()
        self._unreadable: dict[TopicPartition, tuple[int, int | None]] = {}
        self._transaction_logs: dict[Transaction, list[TopicPartition]] = {}
        self._keyless = 0
        self._ids: dict[str, bytes] = {}
        self._made = 0

    # -- topics

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic with this many partitions. Raises ConfigurationError if it exists."""
        if name in self._topics:
            raise ConfigurationError("name", name, "a topic that does not exist yet")
        self._topics[name] = []
        self._made += 1
        self._ids[name] = self._made.to_bytes(16, "big")
        self.add_partitions(name, partitions)

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow the topic to ``total`` partitions. Members of groups notice it at their next heartbeat."""
        logs = self._logs(topic)
        if total < max(1, len(logs)):
            raise ConfigurationError("total", total, f"partitions, at least {max(1, len(logs))} for {topic!r}")
        logs.extend(PartitionLog() for _ in range(total - len(logs)))

    def delete_topic(self, name: str) -> None:
        """Delete the topic with its records, settings and producer state."""
        self._ids.pop(name, None)
        for number in range(len(self._topics.pop(name, ()))):
            self.producers.truncate(TopicPartition(name, number), 0)
        self._compacted_topics.discard(name)

    def topic_id(self, name: str) -> bytes:
        """The id, which distinguishes topics of the same name; empty if the topic does not exist."""
        return self._ids.get(name, b"")

    def topic_with_id(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""
        return next((name for name, one in self._ids.items() if one == topic_id), None)

    def partitions_of(self, topics: Collection[str] | re.Pattern[str]) -> frozenset[TopicPartition]:
        """All partitions of these topics, or of those whose whole name matches, without missing and denied topics."""
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
        """The log of a partition; None if there is none."""
        logs = self._topics.get(partition.topic, ())
        return logs[partition.partition] if 0 <= partition.partition < len(logs) else None

    def records(self, topic: str) -> list[Record]:
        """All records of a topic that a ``read_committed`` consumer would see, partition by partition."""
        logs = enumerate(self._logs(topic))
        return [record for number, log in logs for record in log.committed(TopicPartition(topic, number))]

    # -- appending

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
        """Append a record and return its position, ``(partition, offset)``.

        ``timestamp`` is in milliseconds since the epoch. Without ``partition`` the key selects it (by CRC-32, unlike
        Kafka's producers), and records without a key are distributed in turn. Raises ConfigurationError for a topic or
        partition that does not exist, and for a transaction that has ended.
        """
        logs = self._logs(topic)
        if partition is None:
            self._keyless += key is None
            partition = (self._keyless if key is None else crc32(key)) % len(logs)
        if not 0 <= partition < len(logs):
            raise ConfigurationError("partition", partition, f"0 to {len(logs) - 1} for topic {topic!r}")
        if transaction is not None and transaction.is_committed is not None:
            raise ConfigurationError("transaction", transaction, "an open transaction of this broker")
        where = TopicPartition(topic, partition)
        offset = logs[partition].append(key, value, headers, timestamp, transaction)
        if transaction is not None:
            self.joins(transaction, where)
        self.notify_log(where)
        return where, offset

    def append_batch(
        self, topic: str, values: Sequence[bytes | None], *, partition: int = 0, transaction: Transaction | None = None
    ) -> int:
        """Append records with these values as one batch, and return the offset of the first one. It matters to share
        groups, which acquire whole batches. Raises like :meth:`append`."""
        if not values:
            raise ConfigurationError("values", values, "at least one")
        first, *_ = [self.append(topic, value, partition=partition, transaction=transaction)[1] for value in values]
        self._logs(topic)[partition].join_batch(first)
        return first

    def begin_transaction(self) -> Transaction:
        """Begin a transaction for :meth:`append`."""
        transaction = Transaction()
        self._transaction_logs[transaction] = []
        return transaction

    def joins(self, transaction: Transaction, partition: TopicPartition) -> None:
        """The transaction writes to this partition, so its end is marked there."""
        if partition not in self._transaction_logs[transaction]:
            self._transaction_logs[transaction].append(partition)

    def end_transaction(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort: write a marker, which takes one offset, to each partition of the transaction."""
        transaction.is_committed = commit
        for partition in self._transaction_logs.pop(transaction):
            if log := self.log(partition):
                log.end_transaction(transaction)
                self.notify_log(partition)

    # -- damage

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Move the start of the log to ``offset``, as retention does."""
        self._log(partition).delete_before(offset)
        self.notify_log(partition)

    def truncate_tail(self, partition: TopicPartition, end: int) -> None:
        """Lose the records from ``end`` on, as an unclean leader election does. Their offsets are reused, and the state
        of their producers is lost as well."""
        self._log(partition).truncate_tail(end)
        self.producers.truncate(partition, end)
        self.notify_log(partition)

    def compact(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        """Remove these offsets, as compaction does."""
        self._log(partition).compact(offsets)

    def make_compacted(self, topic: str, *, compacted: bool = True) -> None:
        """Make the topic refuse records without a key from producers, as with ``cleanup.policy=compact``
        (INVALID_RECORD, for the whole batch). Nothing is removed until :meth:`compact`."""
        self._logs(topic)
        (self._compacted_topics.add if compacted else self._compacted_topics.discard)(topic)

    def is_compacted(self, topic: str) -> bool:
        """Whether :meth:`make_compacted` applies to the topic."""
        return topic in self._compacted_topics

    def corrupt(self, partition: TopicPartition, offset: int | None, end: int | None = None) -> None:
        """Make ``offset`` and all later offsets unreadable; with ``end``, only up to ``end``, as one batch. None
        repairs the partition."""
        if offset is None:
            self._unreadable.pop(partition, None)
        else:
            self._unreadable[partition] = offset, end
        self.notify_log(partition)

    def unreadable_at(self, partition: TopicPartition, position: int) -> tuple[int, int | None] | None:
        """The damage by :meth:`corrupt` at ``position`` or later: its first offset and its end."""
        damage = self._unreadable.get(partition)
        return None if damage is None or (damage[1] is not None and damage[1] <= position) else damage

    def deny_topic(self, topic: str, *, denied: bool = True) -> None:
        """Refuse access to the topic: fetches and commits are not authorised, and metadata leaves it out."""
        (self._denied_topics.add if denied else self._denied_topics.discard)(topic)
        for number in range(len(self._topics.get(topic, ()))):
            self.notify_log(TopicPartition(topic, number))

    def is_denied(self, topic: str) -> bool:
        """Whether :meth:`deny_topic` applies to the topic."""
        return topic in self._denied_topics

    # -- clients

    def observe(self, client: Observer) -> None:
        """Notify the client from now on."""
        self._clients[client] = None

    def forget(self, client: Observer) -> None:
        """Stop notifying the client."""
        self._clients.pop(client, None)

    def notify_log(self, partition: TopicPartition) -> None:
        """Tell all clients that this partition has changed."""
        for client in tuple(self._clients):
            client.log_changed(partition)

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
