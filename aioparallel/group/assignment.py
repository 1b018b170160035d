"""Sessions from assigned to given away.

When a partition is assigned, the listener's ``assigned`` only creates the session, because the member may send no
heartbeats meanwhile. The opener then takes the partition over, reads offset and map, finds the start, and lets the
client fetch.

When a partition goes, ``revoked`` starts nothing more, drains, commits and drops the session. ``lost`` cancels handlers
and drops the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from aioparallel.config.options import Options
from aioparallel.engine.run.processor import Processor
from aioparallel.group.admission import Admission
from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.client import Client, CommitFault, Fetched, Generation
from aioparallel.group.committing import CommitStrategy
from aioparallel.group.opening import Opener
from aioparallel.group.resets import Resets, differs
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.starts import Starts
from aioparallel.group.truncations import Truncations
from aioparallel.group.turns import Spawn
from aioparallel.group.unreadable import UnreadablePartitions
from aioparallel.records.errors import OffsetOutOfRange
from aioparallel.records.record import TopicPartition

__all__ = ["Assignment"]

logger = logging.getLogger(__name__)

# Seconds that handlers get to end after they were cancelled at the drain deadline.
CANCEL_GRACE = 0.5


class Assignment:
    """Takes partitions and gives them away. It keeps its sessions in ``assigned``.

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
            longest_wait=options.session_timeout + options.rebalance_timeout,
            spawn=spawn,
            on_fresh=commits.committer.soon,
            on_change=on_change,
            read_before=assigned.read_before,
            refuses_unreadable_maps=commits.refuses_unreadable_maps,
        )
        self.resets = Resets(client, starts, assigned, processor, self.opener, self.truncations, on_change)
        self.unreadable = UnreadablePartitions(client, assigned, options.skip_unreadable, on_change)
        """Partitions whose data cannot be read."""
        self.sessions: Mapping[TopicPartition, Session] = assigned.sessions
        self._has_assignment = False  # between a join and the next revoked or lost
        self._is_whole = is_whole

    # -- the listener -----------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """Begin new sessions, which the opener opens. Kept sessions move to the new generation."""
        self._assigned.move_to(generation)
        abandoned = [session for session in self.sessions.values() if session.abandoned]
        new = [self._assigned.begin(partition, generation) for partition in sorted(partitions)]
        new += [self._assigned.replace(session) for session in abandoned if session.current]
        self._processor.cancel(abandoned)
        self._has_assignment = True
        if new:
            self._spawn(self.opener.open(new), "opener")
        self._on_change()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Drain, commit and drop the sessions of these partitions, within ``drain_timeout`` and ``commit_timeout``."""
        self._has_assignment = False
        sessions = self._assigned.of(partitions)
        try:
            await self.settle(sessions, self._options.drain_timeout)
        except BaseException:
            # The partitions go in any case. A session that stays would move to the next generation, and then overwrite
            # the commits of the new owner.
            self._let_go(sessions)
            raise
        self._on_change()

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel the handlers and drop the sessions of these partitions without a commit: they are gone already."""
        self._has_assignment = False
        sessions = self._assigned.of(partitions)
        if sessions:
            logger.warning(
                "lost %d partitions without a last commit: some of their records may run again at the next owner",
                len(sessions),
                extra={"action": "partitions_lost"},
            )
        self._let_go(sessions)
        self._on_change()

    def _let_go(self, sessions: Collection[Session]) -> None:
        for session in sessions:
            self._assigned.end(session)
        self._processor.cancel(list(sessions))

    # -- giving away ------------------------------------------------------------------------------------

    async def settle(
        self,
        sessions: Collection[Session],
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
        for session in sessions:
            if session.state is SessionState.OPENING:
                self._assigned.end(session)  # nothing was read yet, so there is nothing to commit
        settling = [session for session in sessions if session.current]
        await self._admission.settle(settling, drain_timeout, CANCEL_GRACE)
        owing = await self._committer.commit_until(settling, deadline)
        if finish is not None and not owing:
            await finish()
            if news := [session for session in settling if session.current and session.has_news]:
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
        for session in settling:
            self._assigned.end(session)
        return owing

    def close(self) -> None:
        """Drop the sessions whose last commit has raised. The others were settled before."""
        self._let_go([*self.sessions.values()])
        self.unreadable.close()

    # -- out of range -----------------------------------------------------------------------------------

    def reset(self, error: OffsetOutOfRange) -> None:
        """Move a session whose position is outside the log. With ``auto_offset_reset="error"`` the error is raised."""
        session = self._assigned.sessions.get(error.partition)
        if session is None or session.state is not SessionState.OPEN or session.resetting:
            return
        if self._options.auto_offset_reset == "error":
            raise error
        session.resetting = True
        self._spawn(self.resets.reset(session), "reset")

    def is_same_log(self, session: Session, fetched: Fetched) -> bool:
        """Return whether fetched data continues the log that this session has read. If that is unsure, a check is
        started, and nothing is fetched until it ends."""
        if differs(session, fetched):
            session.resetting = True
            self._spawn(self.resets.check(session, fetched), "log-check")
            return False
        session.topic_id = session.topic_id or fetched.topic_id
        for offset, epoch in fetched.leader_epochs:
            session.leader_epochs.note(offset, epoch)
        return True

    # -- state ------------------------------------------------------------------------------------------

    @property
    def has_assignment(self) -> bool:
        """Whether every group of this member has sent an assignment, and no partition was revoked or lost since."""
        return self._has_assignment and self._is_whole()

    def settled_down(self) -> bool:
        """Whether there is an assignment, and all its sessions are open."""
        return self.has_assignment and all(
            session.state is SessionState.OPEN and not session.resetting for session in self.sessions.values()
        )
