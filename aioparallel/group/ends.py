"""Where a run with ``until="end"`` ends, if a log loses its tail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import REQUEST_TIMEOUT, Client

__all__ = ["Ends"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds between two checks


@dataclass(eq=False, repr=False)
class Ends:
    """Lowers the targets that are beyond the ends of their logs, and then calls ``on_change()``. An unclean leader
    election may lose the tail of a log, and such a target would never be reached.

    The end offset in the last fetch response is only a hint, because a new leader may report too little for a moment.
    So the cluster is asked before a target is lowered.
    """

    _client: Client
    _assigned: AssignedPartitions
    _on_change: Callable[[], None]

    async def run(self) -> None:
        """Check targets until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            if doubtful := [
                assignment for assignment in self._assigned.assignments.values() if self._seems_cut(assignment)
            ]:
                await self._ask(doubtful)

    def _seems_cut(self, assignment: Assignment) -> bool:
        if assignment.state is not AssignmentState.OPEN or assignment.resetting:
            return False
        end = self._client.end_offset_seen(assignment.partition)
        return end is not None and assignment.ledger.position >= end and end < assignment.target

    async def _ask(self, doubtful: list[Assignment]) -> None:
        try:
            ends = await self._client.end_offsets([assignment.partition for assignment in doubtful], REQUEST_TIMEOUT)
        except TimeoutError:
            if len(doubtful) > 1:  # a partition without a leader must not delay the others
                await asyncio.gather(*[self._ask([assignment]) for assignment in doubtful])
            return  # the next check asks again
        for assignment in doubtful:
            end = ends.get(assignment.partition)
            # Skipped are assignments that have gone meanwhile, and logs that have grown beyond their target. A log that
            # ends below the position is skipped as well: the next fetch reports it, and a reset handles it.
            if end is None or not assignment.current or not assignment.ledger.position <= end < assignment.target:
                continue
            logger.warning(
                "%s: the log ends at offset %d, before offset %d at which it ended at the start: its tail was lost",
                assignment.partition,
                end,
                assignment.target,
                extra={"action": "target_lowered", "end": end, "target": assignment.target},
            )
            self._assigned.lower_target(assignment, end)
        self._on_change()
