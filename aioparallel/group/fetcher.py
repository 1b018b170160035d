"""The fetcher: one coroutine that brings records in, driven by runnable work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from aioparallel.engine.processor import Processor
from aioparallel.errors import FetchFailed, OffsetOutOfRange
from aioparallel.group.admission import Admission
from aioparallel.group.arrivals import ArrivalWatch
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Client, Fetched
from aioparallel.group.intake import Plan
from aioparallel.group.priorities import Planner
from aioparallel.group.sessions import Session, SessionState
from aioparallel.records import Record, TopicPartition

__all__ = ["Fetcher"]

logger = logging.getLogger(__name__)


class Fetcher:
    """Plans, fetches and admits, for ever. ``on_fetched()`` is called after each fetch. ``arrivals``: notes when
    records came; None: nobody asks."""

    def __init__(
        self,
        client: Client,
        assignment: Assignment,
        processor: Processor,
        admission: Admission,
        planner: Planner,
        on_fetched: Callable[[], None],
        arrivals: ArrivalWatch | None = None,
    ) -> None:
        self._client = client
        self._assignment = assignment
        self._processor = processor
        self._admission = admission
        self._planner = planner
        self._on_fetched = on_fetched
        self._arrivals = arrivals
        self.state = "nothing assigned"
        self.asked: Collection[TopicPartition] = ()
        """Partitions that may bring records now."""

    def replan(self) -> None:
        """Something changed that decides what to fetch: room, sessions, pause."""
        self._client.wake()

    async def run(self) -> None:
        """Fetch for ever; ends by cancellation, or by what the client raises for good."""
        while True:
            sessions = dict(self._assignment.sessions)
            plan = self._planner.plan(list(sessions.values()))
            self.state = plan.state
            self.asked = plan.quotas.keys()
            self._processor.scheduler.counters.taken_left = plan.starts_until_next
            if self._processor.gathers:
                self._input_ended(sessions.values(), plan)
            try:
                # Without quotas too: the client tells here when the group refuses this member.
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
        """Tell whose batches wait for nothing: no more is asked for, or there is no room for it before some start."""
        for session in sessions:
            at_end = session.opened and (session.waits or session.ledger.position >= session.target)
            # Where there is no room, others may still bring a record each, for which nobody waits.
            waits = plan.is_full(session.rank) or (session.partition not in plan.quotas and not session.ready)
            self._processor.set_no_more_input(session, at_end or (waits and session.opened))

    def _admit(self, fetched: Fetched, stamped: Session | None) -> None:
        # Between the plan and now the partition may have been given away, even given back: then these records
        # belong to another epoch, and its own fetch brings them again.
        session = self._assignment.sessions.get(fetched.partition)
        if session is None or session is not stamped or session.state is not SessionState.OPEN:
            return
        if session.resetting or not self._assignment.is_same_log(session, fetched):
            return
        records, next_offset = fetched.records, fetched.next_offset
        if next_offset > session.target:
            records, next_offset = _below(records, session.target), session.target
        if self._arrivals is not None:
            self._arrivals.read(session)
        wanted = session.register(records, next_offset)
        if session.unreadable is not None:
            self._assignment.unreadable.is_read(session)
        self._planner.saw(len(wanted), self._admission.admit(session, wanted), session.rank)


def _below(records: Sequence[Record], target: int) -> Sequence[Record]:
    return [record for record in records if record.offset < target]
