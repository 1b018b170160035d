"""Assignments from assigned to given away.

When a partition is assigned, the listener's ``assigned`` only creates the assignment, because the member may send no
heartbeats meanwhile. The opener then takes the partition over, reads offset and map, finds the start, and lets the
client fetch.

When a partition goes, ``revoked`` starts nothing more, drains, commits and drops the assignment. ``lost`` cancels
handlers and drops the assignment. The other partitions go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from aioparallel.config.options import Options
from aioparallel.engine.run.processor import Processor
from aioparallel.group.admission import Admission
from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import Client, CommitFault, Fetched, Generation
from aioparallel.group.committing import CommitStrategy
from aioparallel.group.opening import Opener
from aioparallel.group.resets import Resets, differs
from aioparallel.group.starts import Starts
from aioparallel.group.truncations import Truncations
from aioparallel.group.turns import Spawn
from aioparallel.group.unreadable import UnreadablePartitions
from aioparallel.records.errors import OffsetOutOfRange
from aioparallel.records.record import TopicPartition

__all__ = ["Rebalancer"]

logger = logging.getLogger(__name__)

# Seconds that handlers get to end after they were cancelled at the drain deadline.
CANCEL_GRACE = 0.5


class Rebalancer:
    """Takes partitions and gives them away. It keeps its assignments in ``assigned``.

    ``on_change()`` is called when fetches must be planned again. ``spawn(work, name)`` runs openers and resets in tasks
    that end with the run. ``is_whole()``: whether all groups of the client have sent an assignment.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        options: Options,
        processor: Processor,
        admission: Admission,
        assigned: AssignedPartitions,
        commits: CommitStrategy,
        *,
        on_change: Callable[[], None],
        spawn: Spawn,
        is_whole: Callable[[], bool],
    ) -> None:
        self._options = options
        self._processor = processor
        self._admission = admission
        self._assigned = assigned
        self._committer = commits.committer
        self._on_change = on_change
        self._spawn = spawn
        starts = Starts(client, commits.positions, options)
        self.truncations = Truncations(commits.refuses_resets, options.auto_offset_reset == "error")
        self.opener = Opener(
            client,
            group_id,
            commits.positions,
            starts,
            self.truncations,
            longest_wait=options.session + options.rebalance_timeout,
            spawn=spawn,
            on_fresh=commits.committer.soon,
            on_change=on_change,
            read_before=assigned.read_before,
            refuses_unreadable_maps=commits.refuses_unreadable_maps,
        )
        self.resets = Resets(client, starts, assigned, processor, self.opener, self.truncations, on_change)
        self.unreadable = UnreadablePartitions(client, assigned, options.skip_unreadable, on_change)
        """Partitions whose data cannot be read."""
        self.assignments: Mapping[TopicPartition, Assignment] = assigned.assignments
        self.generations: dict[str, Generation] = {}
        """The generation of the last assignment of each group of the client."""
        self._has_assignment = False  # from a join until all is revoked or lost
        self._going: Collection[Assignment] = ()  # what ``revoked`` gives away now
        self._is_whole = is_whole

    # -- the listener -----------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """Begin new assignments, which the opener opens. Kept assignments move to the new generation."""
        self.generations[generation.group] = generation
        self._assigned.move_to(generation)
        if any(one.fault is CommitFault.RETRIABLE for one in self.assignments.values()):
            self._committer.soon()  # it may have been refused because of the old generation
        abandoned = [one for one in self.assignments.values() if one.abandoned and one not in self._going]
        new = [self._assigned.begin(partition, generation) for partition in sorted(partitions)]
        new += [self._assigned.replace(assignment) for assignment in abandoned if assignment.current]
        self._processor.cancel(abandoned)
        self._has_assignment = True
        if new:
            self._spawn(self.opener.open(new), "opener")
        self._on_change()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Drain, commit and drop the assignments of these partitions, within ``drain_timeout`` and
        ``commit_timeout``."""
        assignments = self._assigned.of(partitions)
        self._has_assignment = self._has_assignment and self._keeps_some(assignments)
        self._going = (*self._going, *assignments)
        try:
            await self.settle(assignments, self._options.drain_timeout)
        except BaseException:
            # The partitions go in any case. An assignment that stays would move to the next generation, and then
            # overwrite the commits of the new owner.
            self._let_go(assignments)
            raise
        finally:
            self._going = [one for one in self._going if one not in assignments]
        self._on_change()

    def _keeps_some(self, going: Collection[Assignment]) -> bool:
        """Whether others of the same group stay."""
        groups = {assignment.generation.group for assignment in going}
        return any(one not in going and one.generation.group in groups for one in self.assignments.values())

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel the handlers and drop the assignments of these partitions without a commit: they are gone already."""
        self._has_assignment = False
        found = self._assigned.of(partitions)
        groups = {assignment.generation.group for assignment in found}
        going = [one for one in self._going if not groups or one.generation.group in groups]
        assignments = [one for one in found if one not in going]
        for assignment in going:
            # It must not move to the generation in which the member joins again: it may have another owner by then.
            assignment.fenced = assignment.abandoned = True
        self._processor.cancel(going)
        if assignments:
            logger.warning(
                "lost %d partitions without a last commit: some of their records may run again at the next owner",
                len(assignments),
                extra={"action": "partitions_lost"},
            )
        self._let_go(assignments)
        self._on_change()

    def _let_go(self, assignments: Collection[Assignment]) -> None:
        for assignment in assignments:
            self._assigned.end(assignment)
        self._processor.cancel(list(assignments))

    # -- giving away ------------------------------------------------------------------------------------

    async def settle(
        self,
        assignments: Collection[Assignment],
        drain_timeout: float,
        finish: Callable[[], Awaitable[object]] | None = None,
    ) -> Mapping[TopicPartition, CommitFault]:
        """Drain for at most ``drain_timeout`` seconds, commit, drop. Returns the partitions whose commit was not
        acknowledged, and why.

        ``finish()`` is called when everything is committed. If it leaves something new to commit, there is one more
        commit.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_timeout + CANCEL_GRACE + self._options.commit_timeout
        for assignment in assignments:
            if assignment.state is AssignmentState.OPENING:
                self._assigned.end(assignment)  # nothing was read yet, so there is nothing to commit
        settling = [assignment for assignment in assignments if assignment.current]
        await self._admission.settle(settling, drain_timeout, CANCEL_GRACE)
        owing = await self._committer.commit_until(settling, deadline)
        if finish is not None and not owing:
            await finish()
            if news := [assignment for assignment in settling if assignment.current and assignment.has_news]:
                deadline = loop.time() + self._options.commit_timeout
                await self._committer.commit_until(news, deadline)
        if owing:
            logger.warning(
                "gave away %d of %d partitions without an acknowledged commit: "
                "records completed since the last one will run again",
                len(owing),
                len(settling),
                extra={"action": "settle_uncommitted"},
            )
        for assignment in settling:
            self._assigned.end(assignment)
        return owing

    def close(self) -> None:
        """Drop the assignments whose last commit has raised. The others were settled before."""
        self._let_go([*self.assignments.values()])
        self.unreadable.close()

    # -- out of range -----------------------------------------------------------------------------------

    def reset(self, error: OffsetOutOfRange) -> None:
        """Move an assignment whose position is outside the log. With ``auto_offset_reset="error"`` the error is
        raised."""
        assignment = self._assigned.assignments.get(error.partition)
        if assignment is None or assignment.state is not AssignmentState.OPEN or assignment.resetting:
            return
        if self._options.auto_offset_reset == "error":
            raise error
        assignment.resetting = True
        self._spawn(self.resets.reset(assignment), "reset")

    def is_same_log(self, assignment: Assignment, fetched: Fetched) -> bool:
        """Return whether fetched data continues the log that this assignment has read. If that is unsure, a check is
        started, and nothing is fetched until it ends."""
        if differs(assignment, fetched):
            assignment.resetting = True
            self._spawn(self.resets.check(assignment, fetched), "log-check")
            return False
        assignment.topic_id = assignment.topic_id or fetched.topic_id
        for offset, epoch in fetched.leader_epochs:
            assignment.leader_epochs.note(offset, epoch)
        return True

    # -- state ------------------------------------------------------------------------------------------

    @property
    def has_assignment(self) -> bool:
        """Whether every group of this member has sent an assignment, and it was not revoked or lost as a whole."""
        return self._has_assignment and self._is_whole()

    def settled_down(self) -> bool:
        """Whether there is an assignment, and all its assignments are open."""
        return self.has_assignment and all(
            assignment.state is AssignmentState.OPEN and not assignment.resetting
            for assignment in self.assignments.values()
        )
