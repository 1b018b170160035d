"""The fetcher: one coroutine that fetches records when the workers need more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from aioparallel.engine.run.processor import Processor
from aioparallel.group.admission import Admission
from aioparallel.group.arrivals import ArrivalWatch
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import Client, Fetched
from aioparallel.group.intake import Plan
from aioparallel.group.priorities import Planner
from aioparallel.group.rebalancer import Rebalancer
from aioparallel.records.errors import FetchFailed, OffsetOutOfRange
from aioparallel.records.record import TopicPartition

__all__ = ["Fetcher"]

logger = logging.getLogger(__name__)

# Seconds for each assignment from one plan to the next if nothing can start. A plan takes about a microsecond for each.
# A hot key whose outputs are awaited has nothing ready after each record: a plan for each would cost as much as all
# else (counted with 300 partitions: 1.7 plans a record).
_PAUSE = 2e-5
_NO_PAUSE = 1e-3  # timers are not more precise


@dataclass(eq=False, repr=False)
class Fetcher:
    """Plans, fetches and admits. ``on_fetched()`` is called after each fetch. ``arrivals``: None if not needed."""

    _client: Client
    _rebalancer: Rebalancer
    _processor: Processor
    _admission: Admission
    _planner: Planner
    _on_fetched: Callable[[], None]
    _arrivals: ArrivalWatch | None = None
    state: str = field(default="nothing assigned", init=False)
    requested: Collection[TopicPartition] = field(default=(), init=False)
    """Partitions that may bring records now."""
    _some_wait: bool = field(default=False, init=False)
    _some_ready: bool = field(default=False, init=False)
    """Some records were ready at the last plan."""
    _planned_starts: int = field(default=0, init=False)
    _planned_at: float = field(default=0.0, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def nothing_starts(self) -> None:
        """Plan again if the partitions without a quota would wait for starts that do not come: no record can start now,
        and since the last plan some have started, or were found to be held back (paused, for example)."""
        scheduler = self._processor.scheduler
        if not self._some_wait or scheduler.has_ready:
            return
        if not self._some_ready and scheduler.counters.taken_left == self._planned_starts:
            return
        self._some_wait = False
        loop = asyncio.get_running_loop()
        wait = self._planned_at + _PAUSE * len(self._rebalancer.assignments) - loop.time()
        if wait < _NO_PAUSE:
            self.replan()
        else:
            self._timer = loop.call_later(wait, self.replan)

    def replan(self) -> None:
        """Plan again, because something has changed: free buffer, assignments, or a pause."""
        self._client.wake()

    async def run(self) -> None:
        """Fetch until cancelled. Raises the client's errors that must end the run."""
        try:
            await self._run()
        finally:
            self._some_wait = False
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            assignments = dict(self._rebalancer.assignments)
            plan = self._planner.plan(list(assignments.values()))
            self._planned_at = loop.time()
            self._stop_timer()
            self.state = plan.state
            self.requested = plan.quotas.keys()
            scheduler = self._processor.scheduler
            scheduler.counters.taken_left = self._planned_starts = plan.starts_until_next
            self._some_wait, self._some_ready = plan.some_wait, scheduler.has_ready
            if self._processor.has_batches:
                self._input_ended(assignments.values(), plan)
            try:
                # Also without quotas: the client reports here if the group refuses this member.
                fetched = await self._client.fetch(plan.quotas, plan.most)
            except OffsetOutOfRange as error:
                self._rebalancer.reset(error)
                continue
            except FetchFailed as error:
                self._rebalancer.unreadable.found(error, assignments.get(error.partition))
                continue
            if not fetched:
                continue
            for one in fetched:
                self._admit(one, assignments.get(one.partition))
            self._on_fetched()
            await asyncio.sleep(0)  # a fetch that finds something does not suspend: let workers run

    def _input_ended(self, assignments: Iterable[Assignment], plan: Plan) -> None:
        """Mark the assignments whose batches need not wait: nothing more is fetched, or only after some records
        start."""
        for assignment in assignments:
            nothing_comes = assignment.waits or assignment.paused or assignment.ledger.position >= assignment.target
            at_end = assignment.opened and nothing_comes
            # If the buffer is full, an assignment may still have a quota of one record. Batches do not wait for that.
            waits = plan.is_full(assignment.rank) or (assignment.partition not in plan.quotas and not assignment.ready)
            self._processor.set_no_more_input(assignment, at_end or (waits and assignment.opened))

    def _admit(self, fetched: Fetched, stamped: Assignment | None) -> None:
        # Since the plan the partition may have been revoked, and even assigned again. Then the fetched records belong
        # to an older epoch, and the new assignment fetches them again.
        assignment = self._rebalancer.assignments.get(fetched.partition)
        if assignment is None or assignment is not stamped or assignment.state is not AssignmentState.OPEN:
            return
        if assignment.resetting or not self._rebalancer.is_same_log(assignment, fetched):
            return
        records, next_offset = fetched.records, fetched.next_offset
        if next_offset > assignment.target:
            records = [record for record in records if record.offset < assignment.target]
            next_offset = assignment.target
        if self._arrivals is not None:
            self._arrivals.read(assignment)
        wanted = assignment.register(records, next_offset)
        if assignment.unreadable is not None:
            self._rebalancer.unreadable.is_read(assignment)
        self._planner.saw(len(wanted), self._admission.admit(assignment, wanted), assignment.rank)
