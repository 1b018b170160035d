"""Up to where a run with ``until="end"`` reads, when logs lose their ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.client import REQUEST_TIMEOUT, Client
from aioparallel.group.sessions import Session, SessionState

__all__ = ["Ends"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds between two looks


class Ends:
    """Lowers the targets that logs do not hold any more (an unclean election lost their tails): nobody would ever get
    there. ``on_change()`` hears of it.

    What the last fetch response told is only a hint, because a new leader may tell too little for a moment; so the
    cluster is asked before a target is lowered.
    """

    def __init__(self, client: Client, assigned: AssignedPartitions, on_change: Callable[[], None]) -> None:
        self._client = client
        self._assigned = assigned
        self._on_change = on_change

    async def run(self) -> None:
        """Look for ever; ends by cancellation."""
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
            if len(doubtful) > 1:  # one whose log nobody knows holds up no other
                await asyncio.gather(*[self._ask([session]) for session in doubtful])
            return  # the next look asks again
        for session in doubtful:
            end = ends.get(session.partition)
            # Gone while we waited; or the log has grown beyond its target meanwhile; or it ends below the position,
            # which the next fetch tells, and a reset mends.
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
