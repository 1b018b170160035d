"""Where a run with ``until="end"`` ends, if a log loses its tail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.client import REQUEST_TIMEOUT, Client
from aioparallel.group.sessions import Session, SessionState

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
            if doubtful := [session for session in self._assigned.sessions.values() if self._seems_cut(session)]:
                await self._ask(doubtful)

    def _seems_cut(self, session: Session) -> bool:
        if session.state is not SessionState.OPEN or session.resetting:
            return False
        end = self._client.end_offset_seen(session.partition)
        return end is not None and session.ledger.position >= end and end < session.target

    async def _ask(self, doubtful: list[Session]) -> None:
        try:
            ends = await self._client.end_offsets([session.partition for session in doubtful], REQUEST_TIMEOUT)
        except TimeoutError:
            if len(doubtful) > 1:  # a partition without a leader must not delay the others
                await asyncio.gather(*[self._ask([session]) for session in doubtful])
            return  # the next check asks again
        for session in doubtful:
            end = ends.get(session.partition)
            # Skipped are sessions that have gone meanwhile, and logs that have grown beyond their target. A log that
            # ends below the position is skipped as well: the next fetch reports it, and a reset handles it.
            if end is None or not session.current or not session.ledger.position <= end < session.target:
                continue
            logger.warning(
                "%s: the log ends at offset %d, before offset %d at which it ended at the start: its tail was lost",
                session.partition,
                end,
                session.target,
                extra={"action": "target_lowered", "end": end, "target": session.target},
            )
            self._assigned.lower_target(session, end)
        self._on_change()
