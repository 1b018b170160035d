"""Puts fetcher, workers, committer and assignment of one group member together, from run to closed.

Its phase is in a :class:`~aioparallel.group.run_state.RunState`. The first event that ends the run decides whether
:meth:`GroupRun.run` returns (a stop) or raises (a failure).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from aioparallel.config.options import Options
from aioparallel.engine.outcomes.failure_log import FailureLog
from aioparallel.engine.run.processor import Processor
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import DeadLetterSink, OutputSink
from aioparallel.event_loop.left_behind import LeftBehind
from aioparallel.event_loop.waiting import unless
from aioparallel.group.admission import Admission, AtOnce
from aioparallel.group.arrivals import ArrivalWatch
from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import Client, Generation
from aioparallel.group.committer import in_group
from aioparallel.group.committing import CommitStrategy, GroupContext, reasons
from aioparallel.group.ends import Ends
from aioparallel.group.extensions import Extensions
from aioparallel.group.fetcher import Fetcher
from aioparallel.group.join_log import JoinLog
from aioparallel.group.priorities import Priorities
from aioparallel.group.rebalancer import CANCEL_GRACE, Rebalancer
from aioparallel.group.run_state import RunState
from aioparallel.group.run_tasks import RunTasks
from aioparallel.group.skipping import QUEUE_SKIPS_NOTHING, Skipping
from aioparallel.group.snapshot import problems_of, stats_of
from aioparallel.group.stalls import Stalls
from aioparallel.handlers.stack import Stack
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import BrokerOutputs, Stats
from aioparallel.records.errors import FetchFailed, InstanceFenced, NotCommitted
from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.skipped import Skipped

__all__ = ["GroupRun"]

_STALL_INTERVAL: Final = 1.0
"""Seconds between two checks for stalled partitions, at most."""


class GroupRun:
    """Runs handlers for the partitions that one client is assigned. It is the client's ``RebalanceListener``. Make it
    within a running event loop, and use it once.

    ``state``: the phase, and what the user wants; after a change of that, call :meth:`follow`. ``targets``: with
    ``until="end"``, the end offset of each partition at the start; else None. ``output_sink``, ``dead_letter_sink``:
    where outputs and records that failed for good go.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        options: Options,
        stack: Stack,
        state: RunState,
        extensions: Extensions,
        targets: Mapping[TopicPartition, int] | None = None,
        output_sink: OutputSink | None = None,
        dead_letter_sink: DeadLetterSink | None = None,
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._options = options
        self._state = state
        self._extensions = extensions
        self._tasks = RunTasks(state, self.follow)
        self.fail = self._tasks.fail
        """End the run, which raises this error. A later one is logged."""
        extensions.on_failure = self._tasks.fail_at_end
        self._targets = targets
        signals = Signals()
        priorities: Priorities = extensions.only("priorities") or Priorities()
        self._processor = Processor(
            stack,
            options,
            options.failures.retry_budget,
            signals,
            output_sink=output_sink,
            dead_letter_sink=dead_letter_sink,
            log=FailureLog({"group_id": group_id}),
            turns=priorities.turns,
        )
        self._admission: Admission = extensions.only("admission", self._processor) or AtOnce(self._processor)
        scheduler = self._processor.scheduler
        scheduler.pauses_of = state.pauses.of
        group = GroupContext(
            client,
            group_id,
            options,
            scheduler,
            lambda: self._rebalancer.assignments.values(),  # noqa: PLW0108 - the assignment is made below
            self._changed,
            extensions,
            self._tasks.fail_at_end,
        )
        commits: CommitStrategy = extensions.only("commit_strategy", group) or in_group(group)
        assigned = AssignedPartitions(scheduler, commits.positions, extensions, targets, priorities.rank_of)
        self._committer = commits.committer
        self._rebalancer = Rebalancer(
            client,
            group_id,
            options,
            self._processor,
            self._admission,
            assigned,
            commits,
            on_change=self._changed,
            spawn=self._tasks.spawn,
            is_whole=priorities.is_whole,
        )
        self._ends = Ends(
            client, assigned, targets or {}, options.rebalance_timeout, self._committer.soon, self._changed
        )
        timed = extensions.arrival_topics
        self._arrivals = ArrivalWatch(client, timed, self._rebalancer.assignments.values) if timed else None
        self._planner = priorities.planner(options, scheduler, self._admission.waiting)
        self._fetcher = Fetcher(
            client, self._rebalancer, self._processor, self._admission, self._planner, self._check_end, self._arrivals
        )
        self._stalls = Stalls(client, options.stalled_after)
        self._skipping = Skipping(
            client,
            self._processor,
            self._committer,
            self._rebalancer.assignments,
            options,
            self._commit,
            self._changed,
            None if isinstance(self._admission, AtOnce) else QUEUE_SKIPS_NOTHING,
        )
        self._join_log = JoinLog(group_id)
        signals.taken, signals.succeeded = self._fetcher.replan, self._committer.soon
        signals.idle, signals.fatal = self._idle, self.fail
        signals.attempted = extensions.listener("attempts_ended")
        signals.completed = extensions.listener("records_ended")
        signals.failed = extensions.listener("attempt_failed")
        self._fetching: asyncio.Task[None] | None = None
        self._pauses_followed = state.pauses.version
        self._owing: Mapping[TopicPartition, str] = {}  # partitions not committed when the run settled, and why
        self._trouble: Sequence[str] = ()

    # -- running ----------------------------------------------------------------------------------------

    async def run(self, topics: Collection[str] | re.Pattern[str]) -> None:
        """Join the group, and run until a stop is requested, the targets are reached, or a failure, which is raised.

        After a stop everything is settled when this returns. After a failure or a cancellation nothing new starts, and
        :meth:`close` settles the rest.
        """
        self._join_log.start()
        self._client.subscribe(topics, self)
        self._fetching = self._tasks.spawn(self._fetcher.run(), "fetcher")
        self._tasks.spawn(self._committer.run(), "committer")
        working = [self._tasks.spawn(work(), "extension") for work in self._extensions.hooks("work")]
        if self._targets is not None:
            self._tasks.spawn(self._ends.run(), "ends")
        self._tasks.spawn(self._check_stalls(), "stalls")
        if self._arrivals is not None:
            self._tasks.spawn(self._arrivals.run(), "arrivals")
        self.follow()
        try:
            await self._state.ending.wait()
        except asyncio.CancelledError as error:
            self._state.fail(error)
            self.follow()
            raise
        finally:
            self._join_log.stop()
        if self._state.failure is not None:
            raise self._state.failure
        if self._targets is not None:
            assignments = list(self._rebalancer.assignments.values())
            await unless(self._state.hurried, self._committer.finish(assignments, self._options.commit_timeout))
        await self.settle()
        await self._tasks.end(working)  # before extensions are stopped
        if self._tasks.failed_at_end is not None:
            raise self._tasks.failed_at_end
        if self._targets is not None and self._owing:
            raise NotCommitted(self._group_id, self._owing, self._trouble)

    def follow(self) -> None:
        """Start records, or start no more, after the state has changed."""
        scheduler = self._processor.scheduler
        if self._pauses_followed != self._state.pauses.version:
            self._pauses_followed = self._state.pauses.version
            # A queue's records are in sources of their own.
            scheduler.follow_pauses((*self._rebalancer.assignments.values(), *scheduler.sources))
        if scheduler.slots != self._state.max_concurrency:
            self._processor.set_max_concurrency(self._state.max_concurrency)
            self._planner.set_max_concurrency(self._state.max_concurrency)
        if self._state.may_start:
            scheduler.resume()
            self._changed()
            return
        scheduler.pause()
        if self._state.is_running:
            self._fetcher.replan()  # paused: the waiting fetch must return
        elif self._fetching is not None:
            self._fetching.cancel()  # the committer runs until the end

    async def commit_now(self) -> None:
        """Commit what is complete now. Raises NotCommitted if that takes longer than ``commit_timeout`` seconds."""
        self._processor.scheduler.flush_counters()  # a handler may ask
        await self._commit(list(self._rebalancer.assignments.values()))

    async def _commit(self, assignments: Sequence[Assignment]) -> None:
        deadline = asyncio.get_running_loop().time() + self._options.commit_timeout
        owing = await self._committer.commit_until(assignments, deadline)
        if owing:
            raise NotCommitted(self._group_id, reasons(owing), self._trouble_of(owing))

    async def skip(self, partition: TopicPartition, offsets: Sequence[int], *, dry_run: bool) -> list[Skipped]:
        """See ``ParallelConsumer.skip()``."""
        return await self._skipping.skip(TopicPartition(*partition), offsets, dry_run=dry_run)

    async def settle(self) -> None:
        """Drain (unless the stop is hurried), commit and drop all assignments. A second call does nothing."""
        self._join_log.stop()
        if self._state.is_settled:
            return
        self._state.stop(drain=True)
        self.follow()
        # Assignments that were never opened have nothing in flight. Assignments that open from now on start nothing.
        opened = (AssignmentState.OPEN, AssignmentState.DRAINING)
        assignments = [assignment for assignment in self._rebalancer.assignments.values() if assignment.state in opened]
        drain = self._admission.drain(assignments, self._options.drain_timeout, CANCEL_GRACE)
        await unless(self._state.hurried, drain)
        if self._state.hurried.is_set():
            self._processor.log_hurried()
        left = list(self._rebalancer.assignments.values())
        owing = await self._rebalancer.settle(left, 0, self._finish)
        self._owing, self._trouble = reasons(owing), self._trouble_of(owing)
        self._state.settle()

    def _trouble_of(self, owing: Collection[TopicPartition]) -> Sequence[str]:
        return (*self._committer.trouble(), *self._extensions.refusals(owing))

    async def _finish(self) -> None:
        try:
            await unless(self._state.hurried, self._extensions.finish())
        except Exception as error:  # the assignments are dropped in any case
            self._tasks.fail_at_end(error)

    async def close(self) -> None:
        """Settle, then end every coroutine of the engine."""
        try:
            await self.settle()
        finally:
            tasks = self._tasks.cancel()
            self._rebalancer.close()
            await self._processor.close(CANCEL_GRACE)
            await self._tasks.end(tasks)

    # -- the listener -----------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """Begin assignments for these partitions. A stopping member accepts none: it would not run their records. Its
        kept assignments still move to the new generation, for their last commit."""
        self._rebalancer.assigned(partitions if self._state.is_running else (), generation)
        if self._rebalancer.has_assignment:
            self._join_log.stop()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Settle the assignments of these partitions."""
        await self._rebalancer.revoked(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the assignments of these partitions."""
        self._rebalancer.lost(partitions)

    def fenced(self, error: InstanceFenced) -> None:
        """End the run with this error, even if it is ending already, because its last commit was refused."""
        self._tasks.fail_at_end(error)

    # -- reacting ---------------------------------------------------------------------------------------

    async def _check_stalls(self) -> None:
        loop, assignments = asyncio.get_running_loop(), self._rebalancer.assignments
        while True:
            await asyncio.sleep(min(_STALL_INTERVAL, self._options.stalled_after / 4))
            self._stalls.look([assignments[one] for one in self._fetcher.requested if one in assignments], loop.time())

    def _changed(self) -> None:
        self._fetcher.replan()
        self._processor.notify()
        self._check_end()

    def _idle(self) -> None:
        self._fetcher.nothing_starts()
        self._check_end()

    def _check_end(self) -> None:
        if self._targets is None or not self._state.is_running or self._processor.scheduler.begun:
            return
        if not (self._admission.is_idle and self._rebalancer.settled_down()):
            return
        short = [one for one in self._rebalancer.assignments.values() if one.ledger.position < one.target]
        if any(assignment.unreadable is None for assignment in short):
            return
        if short:  # everything else is done, and these partitions cannot be read
            self.fail(cast("FetchFailed", short[0].unreadable))
            return
        if not self._ends.may_end():
            return
        self._state.stop(drain=True)
        self.follow()

    # -- statistics and health --------------------------------------------------------------------------

    def stats(self, outputs: Sequence[BrokerOutputs]) -> Stats:
        """Return a snapshot. It walks all lanes, so it is not for each record. ``outputs``: of the producer."""
        self._processor.scheduler.flush_counters()  # a handler may ask
        intake = self._fetcher.state if self._state.is_running else "stopped"
        found = stats_of(
            self._client,
            self._group_id,
            self._processor,
            self._rebalancer,
            self._committer,
            self._state,
            intake,
            tuple(outputs),
        )
        return self._extensions.through("stats", found)

    @property
    def left_behind(self) -> Sequence[LeftBehind]:
        """After :meth:`close`: handlers that still run."""
        return self._processor.left_behind

    @property
    def held(self) -> Collection[TopicPartition]:
        """The partitions that this member has."""
        return self._rebalancer.assignments.keys()

    @property
    def has_joined(self) -> bool:
        """Whether the group has sent an assignment, and all its assignments are open."""
        opening = any(
            assignment.state is AssignmentState.OPENING for assignment in self._rebalancer.assignments.values()
        )
        return self._rebalancer.has_assignment and not opening

    def problems(self, undelivered: Mapping[Record[Any, Any], str]) -> tuple[Problem, ...]:
        """Return all health problems. ``undelivered``: records that cannot be dead-lettered, and why."""
        return (
            *problems_of(
                self._client.contact(),
                self._processor,
                tuple(self._rebalancer.assignments.values()),
                undelivered,
                self._options.stuck_after,
            ),
            *self._stalls.problems(self._processor.time()),
            *self._extensions.problems(),
            *self._committer.problems(),
        )
