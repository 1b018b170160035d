"""The fetcher: one coroutine that fetches records when the workers need more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from aioparallel.engine.run.processor import Processor
from aioparallel.group.admission import Admission
from aioparallel.group.arrivals import ArrivalWatch
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Client, Fetched
from aioparallel.group.intake import Plan
from aioparallel.group.priorities import Planner
from aioparallel.group.sessions import Session, SessionState
from aioparallel.records.errors import FetchFailed, OffsetOutOfRange
from aioparallel.records.record import TopicPartition

__all__ = ["Fetcher"]

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Fetcher:
    """Plans, fetches and admits. ``on_fetched()`` is called after each fetch. ``arrivals``: None if not needed."""

    _client: Client
    _assignment: Assignment
    _processor: Processor
    _admission: Admission
    _planner: Planner
    _on_fetched: Callable[[], None]
    _arrivals: ArrivalWatch | None = None
    state: str = field(default="nothing assigned", init=False)
    requested: Collection[TopicPartition] = field(default=(), init=False)
    """Partitions that may bring records now."""

    def replan(self) -> None:
        """Plan again, because something has changed: free buffer, sessions, or a pause."""
        self._client.wake()

    async def run(self) -> None:
        """Fetch until cancelled. Raises the client's errors that must end the run."""
        while True:
            sessions = dict(self._assignment.sessions)
            plan = self._planner.plan(list(sessions.values()))
            self.state = plan.state
            self.requested = plan.quotas.keys()
            self._processor.scheduler.counters.taken_left = plan.starts_until_next
            if self._processor.has_batches:
                self._input_ended(sessions.values(), plan)
            try:
                # Also without quotas: the client reports here if the group refuses this member.
                fetched = await self._client.fetch(plan.quotas, plan.most)
            except OffsetOutOfRange as error:
                self._assignment.reset(error)
                continue
            except FetchFailed as error:
                self._assignment.unreadable.found(error, sessions.get(error.partition))
                continue
            if not fetched:
                continue
            for one in fetched:
                self._admit(one, sessions.get(one.partition))
            self._on_fetched()
            await asyncio.sleep(0)  # a fetch that finds something does not suspend: let workers run

    def _input_ended(self, sessions: Iterable[Session], plan: Plan) -> None:
        """Mark the sessions whose batches need not wait: nothing more is fetched, or only after some records start."""
        for session in sessions:
            at_end = session.opened and (session.waits or session.ledger.position >= session.target)
            # If the buffer is full, a session may still have a quota of one record. Batches do not wait for that.
            waits = plan.is_full(session.rank) or (session.partition not in plan.quotas and not session.ready)
            self._processor.set_no_more_input(session, at_end or (waits and session.opened))

    def _admit(self, fetched: Fetched, stamped: Session | None) -> None:
        # Since the plan the partition may have been revoked, and even assigned again. Then the fetched records belong
        # to an older epoch, and the new session fetches them again.
        session = self._assignment.sessions.get(fetched.partition)
        if session is None or session is not stamped or session.state is not SessionState.OPEN:
            return
        if session.resetting or not self._assignment.is_same_log(session, fetched):
            return
        records, next_offset = fetched.records, fetched.next_offset
        if next_offset > session.target:
            records = [record for record in records if record.offset < session.target]
            next_offset = session.target
        if self._arrivals is not None:
            self._arrivals.read(session)
        wanted = session.register(records, next_offset)
        if session.unreadable is not None:
            self._assignment.unreadable.is_read(session)
        self._planner.saw(len(wanted), self._admission.admit(session, wanted), session.rank)
