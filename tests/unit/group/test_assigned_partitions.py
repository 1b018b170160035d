"""What a member holds, and what its store is told of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.assignment import AssignmentState
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.extensions import Extensions
from aioparallel.records.record import TopicPartition

P = TopicPartition("t", 0)


class Told:
    """A store that notes what it is told to release."""

    def __init__(self) -> None:
        self.released: list[TopicPartition] = []

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        return {}

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        return {}

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        return ()

    def release(self, partition: TopicPartition) -> None:
        self.released.append(partition)


def test_a_store_is_told_once_when_a_partition_goes() -> None:
    """An assignment that another one replaces after a reset has not given its partition away; one that ends has,
    once."""
    store = Told()
    assigned = AssignedPartitions(Scheduler(), store, Extensions())
    first = assigned.begin(P, Generation(1, "m"))
    second = assigned.replace(first)
    assert (first.state, second.epoch, second.generation) == (AssignmentState.DROPPED, 2, first.generation)
    assert store.released == []
    assigned.end(first)
    assert assigned.assignments == {P: second}
    assigned.end(second)
    assigned.end(second)
    assert (assigned.assignments, store.released) == ({}, [P])


def test_a_partition_that_is_assigned_twice_begins_anew() -> None:
    """Without a revoke between, the assignment before is over, and its partition released before it begins again."""
    store = Told()
    assigned = AssignedPartitions(Scheduler(), store, Extensions(), {P: 10})
    first = assigned.begin(P, Generation(1, "m"))
    assigned.lower_target(first, 5)
    second = assigned.begin(P, Generation(2, "m"))
    assert first.state is AssignmentState.DROPPED
    assert (second.epoch, second.target, store.released) == (2, 5, [P])


def test_a_partition_that_comes_up_after_the_start_holds_nothing_to_read() -> None:
    """With ``until="end"`` the ends of the start are the targets, and it had none."""
    assigned = AssignedPartitions(Scheduler(), Told(), Extensions(), {P: 10})
    assert assigned.begin(P, Generation(1, "m")).target == 10
    assert assigned.begin(TopicPartition("t", 1), Generation(1, "m")).target == 0
    assert AssignedPartitions(Scheduler(), Told(), Extensions()).begin(P, Generation(1, "m")).target == sys.maxsize


def test_a_new_generation_moves_what_is_held_of_its_group() -> None:
    """What is held of another group stays; one that was fenced may commit again, unless nobody knows what became of
    its last commit."""
    assigned = AssignedPartitions(Scheduler(), Told(), Extensions())
    mine, fenced, abandoned = (assigned.begin(TopicPartition("t", n), Generation(1, "m", "g")) for n in range(3))
    other = assigned.begin(TopicPartition("u", 0), Generation(1, "m", "h"))
    fenced.fenced = abandoned.fenced = abandoned.abandoned = other.fenced = True
    assigned.move_to(Generation(2, "m", "g"))
    assert [assignment.generation.id for assignment in (mine, fenced, abandoned, other)] == [2, 2, 2, 1]
    assert [assignment.fenced for assignment in (mine, fenced, abandoned, other)] == [False, False, True, True]
