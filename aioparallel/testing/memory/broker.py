"""A Kafka broker in memory: topics, producing, groups, and the ways to break them."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence

from aioparallel.codes import ErrorCode
from aioparallel.errors import ConfigurationError
from aioparallel.group.client import Committed, Generation
from aioparallel.records import Outgoing, TopicPartition
from aioparallel.testing.memory.faults import Faults
from aioparallel.testing.memory.groups import METADATA_LIMIT, Group
from aioparallel.testing.memory.nodes import Nodes
from aioparallel.testing.memory.produced import Numbers
from aioparallel.testing.memory.refused import Refused
from aioparallel.testing.memory.topics import Topics
from aioparallel.testing.memory.transactions import TransactionCoordinator
from aioparallel.transactions import Epoch

__all__ = ["InMemoryBroker"]


class InMemoryBroker(Topics):
    """A broker for tests, that does what real ones do to a consumer. Nothing leaves the process.

    ::

        broker = InMemoryBroker()
        broker.create_topic("orders", partitions=2)
        broker.append("orders", b"42", key=b"customer-1")
        client = InMemoryClient(broker, "billing")

    It is plain data with plain methods: no threads, no waiting, no clock. Times are passed in by its clients,
    which take them from their event loop, and chance comes from ``rng`` alone; so a test under a virtual
    clock repeats exactly. Use it from one event loop.

    ``nodes``: how many brokers the cluster has, 1 or more, numbered from 1. They matter to producers: see
    :meth:`hang`, :meth:`stop_node`, :meth:`move_leader`. Consumers see one broker that always answers.
    ``metadata_limit``: longest commit metadata, in UTF-16 characters (``offset.metadata.max.bytes``).

    Ways to break it: :attr:`faults` (what happens to requests on their way), :meth:`go_down`, :meth:`hang`,
    :attr:`is_coordinator_available`, :meth:`deny_topic`, :meth:`corrupt`, :meth:`truncate_tail` and others.
    """

    def __init__(
        self, *, nodes: int = 1, rng: random.Random | None = None, metadata_limit: int = METADATA_LIMIT
    ) -> None:
        if metadata_limit < 0:
            raise ConfigurationError("metadata_limit", metadata_limit, "UTF-16 characters, not below 0")
        super().__init__()
        self.nodes = Nodes(nodes)
        """Who leads what, and who answers; for clients to ask."""
        self.faults = Faults(rng, nodes=nodes)
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
        self.transaction_version = 2
        """What it has finalized of ``transaction.version``; less: no transactions for our producer."""
        self.transactions = TransactionCoordinator(
            self.producers.new_id,
            self.begin_transaction,
            lambda transaction, commit: self.end_transaction(transaction, commit=commit),
            lambda group_id, offsets: self.group(group_id).offsets.update(offsets),
        )
        """Who keeps the transactions of :class:`InMemoryTransactionalProducer`."""
        self._groups: dict[str, Group] = {}
        self._denied_groups: set[str] = set()
        self._sessions_stand_still = False

    def delete_topic(self, name: str) -> None:
        """Delete the topic with its records, and what groups have committed for it."""
        super().delete_topic(name)
        self.nodes.forget(name)
        for group in self._groups.values():
            for partition in [p for p in group.offsets if p.topic == name]:
                del group.offsets[partition]

    # -- producing

    def produce(
        self,
        partition: TopicPartition,
        records: Sequence[Outgoing],
        *,
        size: int,
        numbers: Numbers,
        node: int | None = None,
        transactional_id: str | None = None,
        now: float = 0.0,
    ) -> int:
        """Append a batch of ``size`` bytes once, however often it comes; the offset of its first record.

        ``node``: which one was asked to; None: whoever leads the partition. ``transactional_id``: in whose transaction.

        Raises Refused. What is wrong with the batch itself is found before it is recognised, as with Kafka: one that
        was written may be refused when it comes again.
        """
        log = self.log(partition)
        if self.is_denied(partition.topic):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if log is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if node is not None and node != self.nodes.leader(partition):
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.max_message_bytes is not None and size > self.max_message_bytes:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE)
        if self.is_compacted(partition.topic) and any(record.key is None for record in records):
            raise Refused(ErrorCode.INVALID_RECORD)
        transaction = None
        if transactional_id is not None:
            transaction = self.transactions.write(transactional_id, Epoch(numbers.producer_id, numbers.epoch), now)
        offset = self.producers.find(partition, numbers, len(records))
        if offset is None:
            offset = log.end_offset
            if transaction is not None:
                self.joins(transaction, partition)
            for record in records:
                log.append(record.key, record.value, tuple(record.headers), record.timestamp or 0, transaction)
            self.producers.add(partition, numbers, len(records), offset)
            self._tell_log(partition)
        return offset

    # -- nodes

    def leader(self, partition: TopicPartition) -> int | None:
        """The node that leads the partition; None while that node is stopped. Raises ConfigurationError."""
        self._log(partition)
        return self.nodes.leader(partition)

    def move_leader(self, partition: TopicPartition, node: int) -> None:
        """Have this node lead the partition, as an election does: the log goes with it, and what is known of
        producers. Clients learn of it with their next metadata. Raises ConfigurationError."""
        self._log(partition)
        self.nodes.lead(partition, node)

    def hang(self, node: int) -> None:
        """Have the node answer nothing, as a stopped process (SIGSTOP) does, until :meth:`unhang`.

        It still leads what it leads, and connections to it stay. Requests wait there, also when their sender gave up
        or broke the connection meanwhile; only what was sent over a connection made since it hangs goes with that
        connection, for a client sends nothing before the node has greeted it.
        """
        self.nodes.hang(node)

    def unhang(self, node: int) -> None:
        """Have the node go on: it carries out what has waited, in order. It takes batches for partitions that it
        leads now, and refuses those for others (NOT_LEADER_OR_FOLLOWER)."""
        self.nodes.unhang(node)

    def stop_node(self, node: int) -> None:
        """Stop the node, hung or not: its connections break, what was on its way there is lost, and partitions that
        it leads have no leader until :meth:`start_node` or :meth:`move_leader`."""
        self.nodes.stop(node)

    def start_node(self, node: int) -> None:
        """Start a node that was stopped."""
        self.nodes.start(node)

    # -- permissions and reach

    def go_down(self) -> None:
        """Break all connections; requests do not arrive until :meth:`come_back`. Sessions stand still."""
        self.is_reachable = False
        self._sessions_stand_still = True

    def come_back(self) -> None:
        """Be reachable again; sessions begin anew."""
        self.is_reachable = True
        for partition in sorted(self.partitions_of(re.compile(".*"))):
            self._tell_log(partition)

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
        instance_id: str | None = None,
    ) -> dict[TopicPartition, ErrorCode | None]:
        """OffsetCommit: None for each partition that was taken, else why not. Raises Refused for all."""
        group = self.coordinate(group_id)
        results, good = self._sorted_out(offsets)
        foreign = [p for p, one in good.items() if one.topic_id not in (b"", self.topic_id(p.topic))]
        results |= dict.fromkeys(foreign, ErrorCode.UNKNOWN_TOPIC_ID)
        good = {p: one._replace(topic_id=b"") for p, one in good.items() if p not in foreign}
        return {**results, **group.commit(good, generation, now, instance_id)}

    def _sorted_out(
        self, offsets: Mapping[TopicPartition, Committed]
    ) -> tuple[dict[TopicPartition, ErrorCode | None], dict[TopicPartition, Committed]]:
        """Those that are not taken whatever their group says, each with its code, and the others."""
        bad: dict[TopicPartition, ErrorCode | None] = {
            p: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if p.topic in self._denied_topics
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for p in offsets
            if p.topic in self._denied_topics or self.log(p) is None
        }
        return bad, {p: committed for p, committed in offsets.items() if p not in bad}

    def commit_in_transaction(
        self,
        transactional_id: str,
        epoch: Epoch,
        group_id: str,
        offsets: Mapping[TopicPartition, Committed],
        generation: Generation,
        now: float,
        instance_id: str | None = None,
    ) -> dict[TopicPartition, ErrorCode | None]:
        """TxnOffsetCommit: None for each partition that goes with the transaction, else why not. Raises Refused."""
        group = self.coordinate(group_id)
        self.transactions.begin(transactional_id, epoch, now)
        results, good = self._sorted_out(offsets)
        results |= group.commit_in_transaction(good, generation, now, instance_id)
        # By the names of topics alone.
        taken = {p: offsets[p]._replace(topic_id=b"") for p, code in results.items() if code is None}
        if taken:
            self.transactions.add_offsets(transactional_id, epoch, group_id, taken, now)
        return results

    def stable_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Committed | ErrorCode | None]:
        """OffsetFetch with ``require_stable``. Raises Refused."""
        committed = self.coordinate(group_id).committed(partitions)
        pending = self.transactions.pending(group_id, partitions)
        return {p: ErrorCode.UNSTABLE_OFFSET_COMMIT if p in pending else committed.get(p) for p in partitions}

    def expire_session(self, group_id: str, member_id: str, now: float) -> None:
        """Have the group throw the member out now, as it does when a session expires."""
        self.group(group_id).leave(member_id, now)

    # -- time

    def advance(self, now: float) -> None:
        """Let time pass in all groups: sessions expire, rebalances go on without those who are late."""
        if not (self.is_reachable and self.is_coordinator_available):
            self._sessions_stand_still = True
            return
        if self._sessions_stand_still:
            self._sessions_stand_still = False
            for group in self._groups.values():
                group.restart_sessions(now)
        self.transactions.advance(now)
        for group in self._groups.values():
            group.advance(now)

    def next_deadline(self, group_id: str) -> float | None:
        """When :meth:`advance` has something to do for the group, on the clients' clock."""
        return self.group(group_id).next_deadline()

    def _tell_group(self, group_id: str) -> None:
        for observer in tuple(self._observers):
            observer.group_changed(group_id)
