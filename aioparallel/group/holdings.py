"""What this member holds: its sessions, by partition. Plain methods: no ``await``, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aioparallel.engine.scheduler import Scheduler
from aioparallel.group.client import Committed, Generation
from aioparallel.group.companions import Companion
from aioparallel.group.ranking import RankOf, no_rank
from aioparallel.group.sessions import Session
from aioparallel.group.stores import Positions
from aioparallel.records import TopicPartition

__all__ = ["Holdings"]


class Holdings:
    """The sessions of this process, at most one for each partition. Written by the assignment, the opener and resets.

    ``companion``: what is kept beside them.
    ``rank_of``: how urgent a partition is.
    ``targets``: with ``until="end"``, the offset of each partition at which its sessions end; else None.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        positions: Positions,
        targets: Mapping[TopicPartition, int] | None = None,
        companion: Companion | None = None,
        rank_of: RankOf = no_rank,
    ) -> None:
        self._scheduler = scheduler
        self._positions = positions
        self._targets = None if targets is None else dict(targets)
        self._companion = companion
        self._rank_of = rank_of
        self._epochs: dict[TopicPartition, int] = {}
        self.sessions: dict[TopicPartition, Session] = {}
        self.read_before: dict[TopicPartition, tuple[bytes, Committed | None]] = {}
        """The topic id of each partition's last session that is over, and what was committed of it last."""

    def begin(self, partition: TopicPartition, generation: Generation) -> Session:
        """A new session; the one before it, if any, is over."""
        previous = self.sessions.get(partition)
        if previous is not None:
            self.end(previous)
        return self._next(partition, generation)

    def replace(self, session: Session) -> Session:
        """A new session under the same generation: the log has changed, the owner has not."""
        self._drop(session)
        return self._next(session.partition, session.generation)

    def end(self, session: Session) -> None:
        """It is over. Ending twice is ending once."""
        self._drop(session)
        if self.sessions.get(session.partition) is session:
            del self.sessions[session.partition]
            self._positions.release(session.partition)

    def _drop(self, session: Session) -> None:
        self._scheduler.drop(session)
        if session.topic_id:
            self.read_before[session.partition] = session.topic_id, session.acknowledged

    def of(self, partitions: Collection[TopicPartition]) -> list[Session]:
        """The sessions of those partitions that are held."""
        return [self.sessions[partition] for partition in partitions if partition in self.sessions]

    def move_to(self, generation: Generation) -> None:
        """What is held of its group belongs to the member's new generation now."""
        for session in self.sessions.values():
            if session.generation.group == generation.group:
                session.generation = generation
                session.fenced = session.abandoned

    def lower_target(self, session: Session, end: int) -> None:
        """The log ends before its target, and will not hold it again."""
        session.target = end
        if self._targets is not None:
            self._targets[session.partition] = end

    def _next(self, partition: TopicPartition, generation: Generation) -> Session:
        epoch = self._epochs[partition] = self._epochs.get(partition, 0) + 1
        session = self.sessions[partition] = Session(partition, epoch, generation)
        if self._companion is not None:
            session.beside = self._companion.beside(session)
        session.rank = self._rank_of(partition)
        if self._targets is not None:
            # A partition that came up after the start holds nothing that was to be read.
            session.target = self._targets.get(partition, 0)
        return session
