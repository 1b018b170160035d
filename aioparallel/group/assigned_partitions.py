"""The assignments of the partitions assigned to this member. Plain methods: no ``await``, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Generation
from aioparallel.group.extensions import Extensions
from aioparallel.group.offset_stores import Positions
from aioparallel.group.priorities import RankOf, no_rank
from aioparallel.records.record import TopicPartition

__all__ = ["AssignedPartitions"]


class AssignedPartitions:
    """At most one assignment for each partition. The assignment and resets change it.

    ``rank_of``: the priority of a partition.
    ``targets``: with ``until="end"``, the offset at which each partition's assignments end; else None.
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
        self.assignments: dict[TopicPartition, Assignment] = {}
        self.read_before: dict[TopicPartition, tuple[bytes, Committed | None]] = {}
        """For each partition whose last assignment is over, its topic id and its last committed position."""

    def begin(self, partition: TopicPartition, generation: Generation) -> Assignment:
        """Begin a new assignment and end the one before it."""
        previous = self.assignments.get(partition)
        if previous is not None:
            self.end(previous)
        return self._next(partition, generation)

    def replace(self, assignment: Assignment) -> Assignment:
        """Begin a new assignment in the same generation: the log has changed, the owner has not."""
        self._drop(assignment)
        return self._next(assignment.partition, assignment.generation)

    def end(self, assignment: Assignment) -> None:
        """End an assignment. Ending it again does nothing."""
        self._drop(assignment)
        if self.assignments.get(assignment.partition) is assignment:
            del self.assignments[assignment.partition]
            self._positions.release(assignment.partition)

    def _drop(self, assignment: Assignment) -> None:
        self._scheduler.drop(assignment)
        if assignment.topic_id:
            self.read_before[assignment.partition] = assignment.topic_id, assignment.acknowledged

    def of(self, partitions: Collection[TopicPartition]) -> list[Assignment]:
        """Return the assignments of those partitions that are assigned."""
        return [self.assignments[partition] for partition in partitions if partition in self.assignments]

    def move_to(self, generation: Generation) -> None:
        """Move this group's assignments to the new generation, in which all but abandoned ones may commit again."""
        for assignment in self.assignments.values():
            if assignment.generation.group == generation.group:
                assignment.generation = generation
                assignment.fenced = assignment.abandoned

    def lower_target(self, assignment: Assignment, end: int) -> None:
        """Set a lower target: the log has lost its tail and ends before the old one."""
        assignment.target = end
        if self._targets is not None:
            self._targets[assignment.partition] = end

    def _next(self, partition: TopicPartition, generation: Generation) -> Assignment:
        epoch = self._epochs[partition] = self._epochs.get(partition, 0) + 1
        assignment = self.assignments[partition] = Assignment(partition, epoch, generation)
        assignment.extend(self._extensions.assigned(assignment), self._extensions.fail_soon)
        assignment.rank = self._rank_of(partition)
        self._scheduler.follow_pauses((assignment,))
        if self._targets is not None:
            # A partition that was added after the start is not read.
            assignment.target = self._targets.get(partition, 0)
        return assignment
