"""The sessions of the partitions assigned to this member. Plain methods: no ``await``, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.client import Committed, Generation
from aioparallel.group.extensions import Extensions
from aioparallel.group.offset_stores import Positions
from aioparallel.group.priorities import RankOf, no_rank
from aioparallel.group.sessions import Session
from aioparallel.records.record import TopicPartition

__all__ = ["AssignedPartitions"]


class AssignedPartitions:
    """At most one session for each partition. The assignment and resets change it.

    ``rank_of``: the priority of a partition.
    ``targets``: with ``until="end"``, the offset at which each partition's sessions end; else None.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        positions: Positions,
        extensions: Extensions,
        targets: Mapping[TopicPartition, int] | None = None,
        rank_of: RankOf = no_rank,
    ) -> None:
        self._scheduler = scheduler
        self._positions = positions
        self._targets = None if targets is None else dict(targets)
        self._extensions = extensions
        self._rank_of = rank_of
        self._epochs: dict[TopicPartition, int] = {}
        self.sessions: dict[TopicPartition, Session] = {}
        self.read_before: dict[TopicPartition, tuple[bytes, Committed | None]] = {}
        """For each partition whose last session is over, its topic id and its last committed position."""

    def begin(self, partition: TopicPartition, generation: Generation) -> Session:
        """Begin a new session and end the one before it."""
        previous = self.sessions.get(partition)
        if previous is not None:
            self.end(previous)
        return self._next(partition, generation)

    def replace(self, session: Session) -> Session:
        """Begin a new session in the same generation: the log has changed, the owner has not."""
        self._drop(session)
        return self._next(session.partition, session.generation)

    def end(self, session: Session) -> None:
        """End a session. Ending it again does nothing."""
        self._drop(session)
        if self.sessions.get(session.partition) is session:
            del self.sessions[session.partition]
            self._positions.release(session.partition)

    def _drop(self, session: Session) -> None:
        self._scheduler.drop(session)
        if session.topic_id:
            self.read_before[session.partition] = session.topic_id, session.acknowledged

    def of(self, partitions: Collection[TopicPartition]) -> list[Session]:
        """Return the sessions of those partitions that are assigned."""
        return [self.sessions[partition] for partition in partitions if partition in self.sessions]

    def move_to(self, generation: Generation) -> None:
        """Move this group's sessions to the new generation, in which all but abandoned ones may commit again."""
        for session in self.sessions.values():
            if session.generation.group == generation.group:
                session.generation = generation
                session.fenced = session.abandoned

    def lower_target(self, session: Session, end: int) -> None:
        """Set a lower target: the log has lost its tail and ends before the old one."""
        session.target = end
        if self._targets is not None:
            self._targets[session.partition] = end

    def _next(self, partition: TopicPartition, generation: Generation) -> Session:
        epoch = self._epochs[partition] = self._epochs.get(partition, 0) + 1
        session = self.sessions[partition] = Session(partition, epoch, generation)
        session.extend(self._extensions.assigned(session), self._extensions.fail_soon)
        session.rank = self._rank_of(partition)
        if self._targets is not None:
            # A partition that was added after the start is not read.
            session.target = self._targets.get(partition, 0)
        return session
