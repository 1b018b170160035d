"""The coordinator's state of one consumer group, in Kafka's classic protocol. Plain data; time is passed in.

The states of a rebalance::

    STABLE --(a member joins, leaves, expires, or joins again with another subscription)-->
    PREPARING_REBALANCE    heartbeats answer REBALANCE_IN_PROGRESS; commits of the old generation are accepted
      --(every member has joined again, or the rebalance timeout has removed the others)-->
    COMPLETING_REBALANCE   the generation is one higher; commits answer REBALANCE_IN_PROGRESS
      --(the leader syncs)-->
    STABLE                 each member gets its partitions by syncing

The rules for commits and heartbeats in each state are those of Kafka's GroupCoordinator. Requests of a static member
(KIP-345) contain its instance id. A process that joins with the instance id of a member replaces that member, and gets
its assignment. Requests with this instance id and the former member id are then refused with FENCED_INSTANCE_ID.

Groups of the new protocol (KIP-848) have their members elsewhere (``consumer_groups.py``), and their offsets here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from aioparallel.group.client import Committed, Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.assignor import Subscription, assign
from aioparallel.testing.memory.refused import Refused

__all__ = ["Group", "GroupState", "Member", "utf16_length"]

METADATA_LIMIT = 4096  # UTF-16 characters; a broker's offset.metadata.max.bytes
COMMIT_LIMIT = 1_048_588  # bytes; one commit is one batch in the offsets topic, with its max.message.bytes


class GroupState(enum.Enum):
    """The state of a group."""

    EMPTY = "empty"
    PREPARING_REBALANCE = "preparing rebalance"
    COMPLETING_REBALANCE = "completing rebalance"
    STABLE = "stable"


@dataclass(slots=True)
class Member:
    """A member. Times are seconds on the clock that is passed in."""

    id: str
    subscription: Subscription
    session_timeout: float
    rebalance_timeout: float
    expires_at: float
    instance_id: str | None = None
    has_joined: bool = False
    """It has sent JoinGroup in this rebalance, and waits for the others. A waiting member does not expire."""
    has_synced: bool = False
    """It has sent SyncGroup in this generation."""
    assignment: frozenset[TopicPartition] = frozenset()


class Group:
    """A group's members, generation and committed offsets."""

    def __init__(
        self, group_id: str, metadata_limit: int = METADATA_LIMIT, changed: Callable[[], None] | None = None
    ) -> None:
        self.group_id = group_id
        self.metadata_limit = metadata_limit
        self.commit_limit = COMMIT_LIMIT
        self.state = GroupState.EMPTY
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.leader: str | None = None
        self.offsets: dict[TopicPartition, Committed] = {}
        self._changed = changed or (lambda: None)
        self._rebalance_deadline = 0.0
        self._ids_given = 0

    # -- joining

    def join(
        self,
        member_id: str | None,
        subscription: Subscription,
        *,
        session_timeout: float,
        rebalance_timeout: float,
        now: float,
        instance_id: str | None = None,
    ) -> str:
        """JoinGroup. Returns the member's id, a new one for None; :meth:`joined` says when the join is complete.

        Raises Refused with UNKNOWN_MEMBER_ID for a removed member, and with FENCED_INSTANCE_ID for a member that was
        replaced.
        """
        before = None if instance_id is None or member_id is not None else self._with_instance(instance_id)
        if before is not None:
            member = self._replace(before)
            # It gets the replaced member's assignment, so no rebalance is needed.
            needs_rebalance = (
                self.state is not GroupState.STABLE or subscription.partitions != member.subscription.partitions
            )
            member.subscription = Subscription(subscription.partitions)
            member.session_timeout, member.rebalance_timeout = session_timeout, rebalance_timeout
        elif member_id is None:
            member = self._admit(subscription, session_timeout, rebalance_timeout, instance_id)
            needs_rebalance = True
        else:
            member = self._known(member_id, instance_id)
            needs_rebalance = member.subscription != subscription or member_id == self.leader
            member.subscription = subscription
        member.expires_at = now + session_timeout
        if needs_rebalance or self.state is GroupState.PREPARING_REBALANCE:
            self._prepare_rebalance(now)
            member.has_joined = True
            self._complete_join_if_all_joined(now)
        return member.id

    def _admit(self, subscription: Subscription, session: float, rebalance: float, instance_id: str | None) -> Member:
        # Ignore what a new member claims to own: the group did not assign it to this member.
        fresh = Subscription(subscription.partitions)
        member = Member(self._new_id(), fresh, session, rebalance, expires_at=0.0, instance_id=instance_id)
        self.members[member.id] = member
        return member

    def _replace(self, member: Member) -> Member:
        """Give the member another id, for the process that replaces it."""
        former, member.id = member.id, self._new_id()
        self.members = {one.id: one for one in self.members.values()}
        if self.leader == former:
            self.leader = member.id
        self._changed()
        return member

    def _new_id(self) -> str:
        self._ids_given += 1
        return f"member-{self._ids_given}"

    def joined(self, member_id: str, instance_id: str | None = None) -> Generation | None:
        """The generation that the member has joined; None while it must wait for others."""
        member = self._known(member_id, instance_id)
        return None if member.has_joined else Generation(self.generation, member_id)

    def sync(self, generation: Generation, now: float, instance_id: str | None = None) -> None:
        """SyncGroup. The leader's request assigns the partitions; :meth:`synced` says when they are assigned."""
        member = self._fenced(generation, instance_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        member.has_synced = True
        member.expires_at = now + member.session_timeout
        if self.state is GroupState.COMPLETING_REBALANCE and member.id == self.leader:
            shares = assign({id_: each.subscription for id_, each in self.members.items()})
            for each in self.members.values():
                each.assignment = shares[each.id]
                if each.has_synced:  # its session was suspended while it waited
                    each.expires_at = now + each.session_timeout
            self.state = GroupState.STABLE
            self._changed()

    def synced(self, generation: Generation, instance_id: str | None = None) -> frozenset[TopicPartition] | None:
        """The member's partitions in this generation; None until the leader has assigned them."""
        member = self._fenced(generation, instance_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        return member.assignment if self.state is GroupState.STABLE else None

    # -- staying and going

    def heartbeat(self, generation: Generation, now: float, instance_id: str | None = None) -> None:
        """Heartbeat. Raises Refused; REBALANCE_IN_PROGRESS tells the member to join again."""
        member = self._fenced(generation, instance_id)
        member.expires_at = now + member.session_timeout
        if self.state is GroupState.PREPARING_REBALANCE:
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, now: float) -> None:
        """LeaveGroup. Any process may send it for a member."""
        self._known(member_id)
        self._remove([member_id], now)

    def restart_sessions(self, now: float) -> None:
        """Give every member a full session, as a coordinator does that has just loaded the group."""
        for member in self.members.values():
            member.expires_at = now + member.session_timeout
        self._rebalance_deadline = now + self._longest_rebalance_timeout()

    def advance(self, now: float) -> None:
        """Let time pass: sessions expire, and a rebalance continues without late members."""
        expired = [m.id for m in self.members.values() if now >= m.expires_at and not self._waits(m)]
        if expired:
            self._remove(expired, now)
        if self.state is GroupState.PREPARING_REBALANCE and now >= self._rebalance_deadline:
            self._remove([m.id for m in self.members.values() if not m.has_joined], now)

    def next_deadline(self) -> float | None:
        """When :meth:`advance` has something to do if nothing else happens; None: never."""
        times = [m.expires_at for m in self.members.values() if not self._waits(m)]
        if self.state is GroupState.PREPARING_REBALANCE:
            times.append(self._rebalance_deadline)
        return min(times, default=None)

    def _waits(self, member: Member) -> bool:
        if self.state is GroupState.PREPARING_REBALANCE:
            return member.has_joined
        return self.state is GroupState.COMPLETING_REBALANCE and member.has_synced

    # -- offsets

    def commit(
        self,
        offsets: Mapping[TopicPartition, Committed],
        generation: Generation,
        now: float,
        instance_id: str | None = None,
    ) -> dict[TopicPartition, ErrorCode | None]:
        """OffsetCommit: None for each committed partition, else the error.

        Raises Refused if it commits nothing at all. A negative generation belongs to a consumer without a group
        protocol, or a tool; it is accepted only while the group has no members.
        """
        if not (generation.id < 0 and self.state is GroupState.EMPTY):
            member = self._fenced(generation, instance_id)
            if self.state is GroupState.COMPLETING_REBALANCE:
                raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
            member.expires_at = now + member.session_timeout
        return self.store(offsets)

    def store(self, offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, ErrorCode | None]:
        """Commit for a member that may. Returns and raises as :meth:`commit`."""
        results = self.check_sizes(offsets)
        self.offsets.update({partition: offsets[partition] for partition, code in results.items() if code is None})
        return results

    def commit_in_transaction(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, instance_id: str | None = None
    ) -> dict[TopicPartition, ErrorCode | None]:
        """TxnOffsetCommit: None for each partition that joins the transaction, else the error. Raises Refused."""
        if not (generation.id < 0 and self.state is GroupState.EMPTY):
            self._fenced(generation, instance_id)
        return self.check_sizes(offsets)

    def check_sizes(self, offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, ErrorCode | None]:
        """None for each partition, or the error if its metadata is too large. Raises Refused if all together are."""
        results: dict[TopicPartition, ErrorCode | None] = {
            partition: ErrorCode.OFFSET_METADATA_TOO_LARGE
            if utf16_length(committed.metadata) > self.metadata_limit
            else None
            for partition, committed in offsets.items()
        }
        good = [offsets[partition] for partition, code in results.items() if code is None]
        if sum(len(committed.metadata.encode()) for committed in good) > self.commit_limit:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
        return results

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """OffsetFetch: the committed offsets of those partitions that have one."""
        return {p: self.offsets[p] for p in partitions if p in self.offsets}

    # -- the state machine

    def _with_instance(self, instance_id: str) -> Member | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def _known(self, member_id: str, instance_id: str | None = None) -> Member:
        if instance_id is not None:
            owner = self._with_instance(instance_id)
            if owner is not None and owner.id != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _fenced(self, generation: Generation, instance_id: str | None = None) -> Member:
        member = self._known(generation.member_id, instance_id)
        if generation.id != self.generation:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _prepare_rebalance(self, now: float) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        self.state = GroupState.PREPARING_REBALANCE
        self._rebalance_deadline = now + self._longest_rebalance_timeout()
        for member in self.members.values():
            member.has_joined = member.has_synced = False
        self._changed()

    def _longest_rebalance_timeout(self) -> float:
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def _remove(self, member_ids: Collection[str], now: float) -> None:
        for member_id in member_ids:
            del self.members[member_id]
        self._prepare_rebalance(now)
        self._complete_join_if_all_joined(now)
        self._changed()

    def _complete_join_if_all_joined(self, now: float) -> None:
        if not all(member.has_joined for member in self.members.values()):
            return
        self.generation += 1
        self.state = GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY
        self.leader = next(iter(self.members), None)
        for member in self.members.values():
            member.has_joined = member.has_synced = False
            member.assignment = frozenset()
        self.restart_sessions(now)
        self._changed()


def utf16_length(text: str) -> int:
    """The number of UTF-16 characters (Java's ``String.length()``), which a broker limits."""
    return len(text) + sum(character > "\uffff" for character in text)
