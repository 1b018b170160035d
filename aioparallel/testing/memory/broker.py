"""An in-memory Kafka broker: topics, producing, groups, and ways to break them."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from aioparallel.group.client import Committed, Generation
from aioparallel.persistence.transactions import Epoch
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Outgoing, TopicPartition
from aioparallel.testing.memory.consumer_groups import ConsumerGroups
from aioparallel.testing.memory.faults import Faults
from aioparallel.testing.memory.groups import METADATA_LIMIT, Group
from aioparallel.testing.memory.nodes import Nodes
from aioparallel.testing.memory.produced import Numbers
from aioparallel.testing.memory.refused import Refused
from aioparallel.testing.memory.share_groups import ShareGroups
from aioparallel.testing.memory.share_leaders import ShareLeaders
from aioparallel.testing.memory.share_options import ShareGroupOptions
from aioparallel.testing.memory.transactions import TransactionCoordinator

if TYPE_CHECKING:
    from aioparallel.testing.memory.connection import Connection

__all__ = ["InMemoryBroker"]


class InMemoryBroker(Nodes):
    """A broker for tests that does to a consumer what real brokers do. No data leaves the process.

    ::

        broker = InMemoryBroker()
        broker.create_topic("orders", partitions=2)
        broker.append("orders", b"42", key=b"customer-1")
        client = InMemoryClient(broker, "billing")

    It is plain data with plain methods: no threads, waiting or clock. Its clients pass in the time of their event loop,
    and all randomness comes from ``rng``, so a test with a virtual clock is repeatable. Use it from one event loop.

    ``nodes``: number of brokers in the cluster, numbered from 1. They matter to producers and to members of share
    groups: see :meth:`hang`, :meth:`stop_node`, :meth:`move_leader`. Other consumers see a single broker that always
    answers.
    ``metadata_limit``: longest commit metadata, in UTF-16 characters (``offset.metadata.max.bytes``).

    Ways to break it: :attr:`faults` (what happens to requests), :meth:`go_down`, :meth:`hang`,
    :attr:`is_coordinator_available`, :meth:`deny_topic`, :meth:`corrupt`, :meth:`truncate_tail` and others.
    """

    def __init__(
        self, *, nodes: int = 1, rng: random.Random | None = None, metadata_limit: int = METADATA_LIMIT
    ) -> None:
        if metadata_limit < 0:
            raise ConfigurationError("metadata_limit", metadata_limit, "UTF-16 characters, at least 0")
        super().__init__(nodes)
        self.faults = Faults(rng, nodes=nodes)
        self.metadata_limit = metadata_limit
        self.is_reachable = True
        """Whether clients can connect; see :meth:`go_down`."""
        self.is_coordinator_available = True
        """False: requests about groups are answered COORDINATOR_NOT_AVAILABLE. Sessions do not expire meanwhile, and
        restart afterwards, as when a coordinator moves to another broker."""
        self.is_login_refused = False
        """True: clients that connect are refused (SASL authentication failed)."""
        self.is_idempotence_refused = False
        """True: producers that request an id are refused (cluster authorization failed)."""
        self.max_message_bytes: int | None = None
        """Largest batch in bytes; None: unlimited. The default of real brokers is about 1 MiB."""
        self.transaction_version = 2
        """The finalized level of ``transaction.version``. Below 2 this package's producer has no transactions."""
        self.transactions = TransactionCoordinator(self)
        """Coordinates the transactions of :class:`InMemoryTransactionalProducer`."""
        self.consumer_groups = ConsumerGroups(self)
        """Groups of the new protocol (KIP-848): their members."""
        self.share_version = 1
        """The finalized level of ``share.version``. With 0 there are no share groups."""
        self.share = ShareLeaders(self)
        """Share groups at the leaders of partitions: their options, records and sessions."""
        self.share_groups = ShareGroups(self)
        """Share groups at their coordinator: their members."""
        self._groups: dict[str, Group] = {}
        self._denied_groups: set[str] = set()
        self._sessions_stand_still = False

    def delete_topic(self, name: str) -> None:
        """Delete the topic with its records, and the groups' offsets for it."""
        topic_id = self.topic_id(name)
        super().delete_topic(name)
        self.share.topic_deleted(topic_id)
        for group in self._groups.values():
            for partition in [p for p in group.offsets if p.topic == name]:
                del group.offsets[partition]

    # -- producing

    def produce(
        self,
        partition: TopicPartition,
        records: Sequence[Outgoing],
        size: int,
        numbers: Numbers,
        *,
        node: int | None = None,
        transactional_id: str | None = None,
        now: float = 0.0,
    ) -> int:
        """Append a batch of ``size`` bytes once, even if it is sent again. Returns the offset of its first record.

        ``node``: the node that got the request; None: the leader. ``transactional_id``: of the batch's transaction.

        Raises Refused. As in Kafka, errors of the batch itself are checked before duplicates, so a batch that was
        written may be refused when it is sent again.
        """
        log = self.log(partition)
        if self.is_denied(partition.topic):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if log is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if node is not None and node != self.leader(partition):
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
            log.join_batch(offset)
            self.producers.add(partition, numbers, len(records), offset)
            self.notify_log(partition)
        return offset

    # -- permissions and reachability

    def log_in(self, now: float) -> None:
        """A client connects. Raises Refused."""
        if self.is_login_refused:
            raise Refused(ErrorCode.SASL_AUTHENTICATION_FAILED)

    def go_down(self) -> None:
        """Break all connections. Requests do not arrive until :meth:`come_back`, and sessions do not expire."""
        self.is_reachable = False
        self._sessions_stand_still = True
        self.share.close_connections()

    def come_back(self) -> None:
        """Be reachable again. Sessions restart."""
        self.is_reachable = True
        for partition in sorted(self.partitions_of(re.compile(".*"))):
            self.notify_log(partition)

    def deny_group(self, group_id: str, *, denied: bool = True) -> None:
        """Refuse all access to the group."""
        (self._denied_groups.add if denied else self._denied_groups.discard)(group_id)

    def is_group_denied(self, group_id: str) -> bool:
        """Whether :meth:`deny_group` applies to the group."""
        return group_id in self._denied_groups

    # -- nodes

    def move_leader(self, partition: TopicPartition, node: int) -> None:
        """Make this node the partition's leader, as an election does. The log and the producers' state move with it;
        share groups lose their locks. Clients learn of it from their next metadata. Raises ConfigurationError."""
        super().move_leader(partition, node)
        self.share.leader_changed(partition)
        self.notify_log(partition)

    def stop_node(self, node: int) -> None:
        """Stop the node, even if it hangs. Its connections break and requests to it are lost. Its partitions have no
        leader until :meth:`start_node` or :meth:`move_leader`."""
        super().stop_node(node)
        for partition in self.partitions_of(re.compile(".*", re.DOTALL)):
            if self.leader(partition) is None:
                self.share.leader_changed(partition)

    def detach(self, node: int, connection: Connection) -> None:
        """A connection was closed."""
        super().detach(node, connection)
        self.share.connection_lost(connection)

    # -- groups

    def has_consumer_group(self, group_id: str) -> bool:
        """Whether a consumer group has this id, with members or offsets."""
        group = self._groups.get(group_id)
        return self.consumer_groups.has_members(group_id) or (
            group is not None and bool(group.members or group.offsets)
        )

    def member_ids(self, group_id: str) -> list[str]:
        """The ids of the members of a consumer group, of either protocol."""
        group = self.consumer_groups.group(group_id)
        return sorted([*self.group(group_id).members, *(() if group is None else group.members)])

    def group(self, group_id: str) -> Group:
        """The group, created on first use: its offsets, and its members if they use the classic protocol. For
        inspection in tests; clients use :meth:`coordinate`."""
        group = self._groups.get(group_id)
        if group is None:
            group = Group(group_id, self.metadata_limit, lambda: self.notify_group(group_id))
            self._groups[group_id] = group
        return group

    def coordinate(self, group_id: str) -> Group:
        """The group, for a client's request. Raises Refused."""
        if group_id in self._denied_groups:
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not self.is_coordinator_available:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group_id in self.share_groups:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return self.group(group_id)

    def coordinate_classic(self, group_id: str) -> Group:
        """The group, for a request of a member of the classic protocol. Raises Refused."""
        group = self.coordinate(group_id)
        if self.consumer_groups.has_members(group_id):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return group

    def coordinate_consumer(self, group_id: str) -> ConsumerGroups:
        """The groups of the new protocol, for a request of a member of this one. Raises Refused."""
        if group_id in self.share_groups:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        self.coordinate(group_id)
        return self.consumer_groups

    def coordinate_share(self, group_id: str) -> ShareGroups:
        """The share groups, for a client's request about this one. Raises Refused."""
        if group_id in self._denied_groups:
            raise Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not self.is_coordinator_available:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.share_groups

    def configure_share_group(self, group_id: str, options: ShareGroupOptions) -> None:
        """Set the options of a share group, which may not exist yet."""
        self.share.configure(group_id, options)

    def delete_share_group(self, group_id: str) -> None:
        """Delete a share group with all its state."""
        self.share_groups.delete(group_id)
        self.share.delete_group(group_id)

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, Committed],
        generation: Generation,
        now: float,
        instance_id: str | None = None,
    ) -> dict[TopicPartition, ErrorCode | None]:
        """OffsetCommit: None for each committed partition, else the error. Raises Refused for all."""
        group = self.coordinate(group_id)
        results, good = self._sorted_out(offsets)
        foreign = [p for p, one in good.items() if one.topic_id not in (b"", self.topic_id(p.topic))]
        results |= dict.fromkeys(foreign, ErrorCode.UNKNOWN_TOPIC_ID)
        good = {p: one._replace(topic_id=b"") for p, one in good.items() if p not in foreign}
        if not self.consumer_groups.has_members(group_id):
            return {**results, **group.commit(good, generation, now, instance_id)}
        refused = self.consumer_groups.refusals(group_id, good, generation)
        return {**results, **refused, **group.store({p: one for p, one in good.items() if p not in refused})}

    def _sorted_out(
        self, offsets: Mapping[TopicPartition, Committed]
    ) -> tuple[dict[TopicPartition, ErrorCode | None], dict[TopicPartition, Committed]]:
        """Partitions that cannot be committed whatever the group's state, with their errors; and the others."""
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
        """TxnOffsetCommit: None for each partition that joins the transaction, else the error. Raises Refused."""
        group = self.coordinate(group_id)
        self.transactions.begin(transactional_id, epoch, now)
        results, good = self._sorted_out(offsets)
        if self.consumer_groups.has_members(group_id):
            refused = self._refused_in_transaction(group_id, good, generation)
            results |= refused
            results |= group.check_sizes({p: one for p, one in good.items() if p not in refused})
        else:
            results |= group.commit_in_transaction(good, generation, instance_id)
        # Transactions identify topics by name only.
        taken = {p: offsets[p]._replace(topic_id=b"") for p, code in results.items() if code is None}
        if taken:
            self.transactions.add_offsets(transactional_id, epoch, group_id, taken, now)
        return results

    def _refused_in_transaction(
        self, group_id: str, partitions: Collection[TopicPartition], generation: Generation
    ) -> dict[TopicPartition, ErrorCode]:
        """What a member of the new protocol may not commit. TxnOffsetCommit knows no stale epochs."""
        try:
            refused = self.consumer_groups.refusals(group_id, partitions, generation)
        except Refused as error:
            if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                raise Refused(ErrorCode.ILLEGAL_GENERATION) from None
            raise
        return dict.fromkeys(refused, ErrorCode.ILLEGAL_GENERATION)

    def stable_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Committed | ErrorCode | None]:
        """OffsetFetch with ``require_stable``. Raises Refused."""
        committed = self.coordinate(group_id).committed(partitions)
        pending = self.transactions.pending(group_id, partitions)
        return {p: ErrorCode.UNSTABLE_OFFSET_COMMIT if p in pending else committed.get(p) for p in partitions}

    def expire_session(self, group_id: str, member_id: str, now: float) -> None:
        """Remove the member from the group now, as when its session expires. The group may be a share group."""
        if group_id in self.share_groups:
            self.share_groups.expire(group_id, member_id)
        elif self.consumer_groups.has_members(group_id):
            self.consumer_groups.expire(group_id, member_id)
        else:
            self.group(group_id).leave(member_id, now)

    # -- time

    def advance(self, now: float) -> None:
        """Let time pass in all groups: sessions expire, rebalances continue without late members, and locks end."""
        self.share.advance(now)
        if not (self.is_reachable and self.is_coordinator_available):
            self._sessions_stand_still = True
            return
        if self._sessions_stand_still:
            self._sessions_stand_still = False
            for group in self._groups.values():
                group.restart_sessions(now)
            self.consumer_groups.restart_sessions(now)
            self.share_groups.restart_sessions(now)
        self.consumer_groups.advance(now)
        self.share_groups.advance(now)
        self.transactions.advance(now)
        for group in self._groups.values():
            group.advance(now)

    def notify_group(self, group_id: str) -> None:
        """Tell all clients that this group has changed."""
        for client in tuple(self._clients):
            client.group_changed(group_id)
