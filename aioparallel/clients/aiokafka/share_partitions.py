"""The partitions of a member of a share group: which are assigned, which broker leads each, what is acquired of them.
Synchronous.

A partition stays here while it is assigned or an offset of it is not acknowledged for good. Acknowledgements go to the
partition's leader. A new leader knows of no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from aioparallel.clients.aiokafka.share_acks import Ended, PartitionAcks
from aioparallel.group.share_client import Acknowledged
from aioparallel.records.record import TopicPartition

__all__ = ["SharePartition", "SharePartitions"]

_HINT_LASTS = 5.0
"""Seconds for which the leader that a broker has named counts more than the metadata, which may be older."""


class SharePartition:
    """One partition of a topic, which is identified by its id: a topic that is made anew has another one."""

    def __init__(self, partition: TopicPartition, topic_id: bytes, ended: list[Ended]) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.acks = PartitionAcks(ended)
        self.is_assigned = False
        self.is_excluded = False
        """Nothing of it is to be acquired."""
        self.is_failing = False
        """The last fetch of it has failed, or was refused."""
        self.leader: int | None = None
        """None while it is unknown."""
        self._last_leader: int | None = None
        self._hint: tuple[int, float] | None = None

    @property
    def place(self) -> tuple[bytes, int]:
        """As it is named in requests."""
        return self.topic_id, self.partition.partition

    def named_leader(self, leader: int, now: float) -> None:
        """A broker says who leads it."""
        self._hint = (leader, now + _HINT_LASTS) if leader >= 0 else None

    def led_by(self, known: int | None, now: float) -> None:
        """The metadata says ``known``; None or negative: no leader."""
        if self._hint is not None and self._hint[1] <= now:
            self._hint = None
        leader = known if self._hint is None else self._hint[0]
        self.leader = None if leader is None or leader < 0 else leader
        if self.leader is None:
            return
        if self._last_leader not in {None, leader}:
            self.acks.released()
        self._last_leader = leader


class SharePartitions:
    """See the module."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        """Acknowledgements that have ended and are not reported yet."""
        self._all: dict[TopicPartition, SharePartition] = {}
        self._by_leader: dict[int, list[SharePartition]] = {}
        self._excluded: frozenset[TopicPartition] = frozenset()

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(self._all.values())

    def get(self, partition: TopicPartition) -> SharePartition | None:
        return self._all.get(partition)

    @property
    def assigned(self) -> set[TopicPartition]:
        return {found.partition for found in self if found.is_assigned}

    @property
    def leaderless(self) -> list[TopicPartition]:
        """Those that need a leader and have none."""
        return sorted(found.partition for found in self if found.leader is None)

    @property
    def failing(self) -> list[TopicPartition]:
        """Those that are assigned, and whose last fetch has failed."""
        return sorted(found.partition for found in self if found.is_failing and found.is_assigned)

    def leaders(self) -> Collection[int]:
        return self._by_leader.keys()

    def of(self, leader: int) -> list[SharePartition]:
        """The partitions that this broker leads."""
        return self._by_leader.get(leader, [])

    def assign(self, topic_ids: Mapping[TopicPartition, bytes]) -> None:
        """These partitions are assigned and no others. What was acquired of a former topic of the same name is
        cleared: its log is gone."""
        for one in self:
            one.is_assigned = False
        for partition, topic_id in topic_ids.items():
            found = self._all.get(partition)
            if found is None or found.topic_id != topic_id:
                if found is not None:
                    found.acks.clear(Acknowledged.NOT_HELD)
                found = self._all[partition] = SharePartition(partition, topic_id, self.ended)
            found.is_assigned = True
        self.exclude(self._excluded)

    def exclude(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing of these partitions is to be acquired, and of all others something again."""
        self._excluded = frozenset(partitions)
        for one in self:
            one.is_excluded = one.partition in self._excluded

    def route(self, leader_of: Callable[[TopicPartition], int | None], now: float) -> None:
        """Find the leader of each partition. ``leader_of``: as in the metadata; None or negative: unknown."""
        by_leader: dict[int, list[SharePartition]] = {}
        for found in list(self):
            if not found.is_assigned and not found.acks.holds:
                del self._all[found.partition]
                continue
            found.led_by(leader_of(found.partition), now)
            if found.leader is not None:
                by_leader.setdefault(found.leader, []).append(found)
        self._by_leader = by_leader
