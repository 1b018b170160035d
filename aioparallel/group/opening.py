"""How a session opens: take the partition over, restore its map or find its start, and let the client fetch it.

After each ``await`` the session may be gone, or the member may be in another generation: what is written follows from
what is looked at after it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence

from aioparallel.errors import NoCommittedOffset, NoOffsetMap, OffsetMapError, PositionOutsideLog
from aioparallel.group.client import REQUEST_PAUSE, REQUEST_TIMEOUT, Client, Committed
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.starts import Starts
from aioparallel.group.stores import Positions
from aioparallel.offsets import Ledger, decode_offset_map
from aioparallel.records import TopicPartition

__all__ = ["Opener"]

logger = logging.getLogger(__name__)

# Characters of metadata restored (a millisecond or two) after which the event loop gets a turn; one map is one step.
_TURN = 1_000
# Seconds until it is looked again whether something is decided.
_UNDECIDED_PAUSE = 0.05


class Opener:
    """Opens sessions.

    ``on_fresh()`` hears that starts were chosen, which are to be committed; ``on_change()`` that more is to be fetched.
    ``refuses_unreadable_maps``, ``refuses_resets``: see :class:`~aioparallel.group.committing.Keeping`.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        positions: Positions,
        starts: Starts,
        *,
        on_fresh: Callable[[], None],
        on_change: Callable[[], None],
        refuses_unreadable_maps: bool = False,
        refuses_resets: bool = False,
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._positions = positions
        self._refuses_unreadable_maps = refuses_unreadable_maps
        self._refuses_resets = refuses_resets
        self._starts = starts
        self._on_fresh = on_fresh
        self._on_change = on_change
        self.unreadable_maps = 0

    async def open(self, sessions: Sequence[Session]) -> None:
        """Open these sessions, trying again while there is no answer and they are still ours."""
        for attempt in itertools.count(1):
            opening = [session for session in sessions if session.state is SessionState.OPENING]
            if not opening:
                return
            try:
                if not await self._open_once(opening):
                    await asyncio.sleep(_UNDECIDED_PAUSE)
            except TimeoutError:
                logger.warning(
                    "%d partitions wait for their committed offsets: no answer (try %d)",
                    len(opening),
                    attempt,
                    extra={"action": "open_retry"},
                )
                await asyncio.sleep(REQUEST_PAUSE)

    async def _open_once(self, sessions: Sequence[Session]) -> bool:
        """Open those of which it is decided where they stand; whether these are all."""
        # All that one member holds has the same generation.
        generation = sessions[0].generation
        asked = [session.partition for session in sessions]
        found = await self._positions.take_over(asked, generation, REQUEST_TIMEOUT)
        fresh = [partition for partition, committed in found.items() if committed is None]
        starts = await self._starts.of(fresh, REQUEST_TIMEOUT) if fresh else {}
        if self._refuses_resets:
            await self._expect_ends(sessions, found)
        turn = 0
        for session in sessions:
            if session.state is not SessionState.OPENING or session.partition not in found:
                continue  # went while we waited; or it is not decided
            committed = found[session.partition]
            if committed is not None:
                self._restore(session, committed)
                turn += len(committed.metadata)
            elif session.partition in starts:
                # Dirty until committed: without that, "latest" would skip what comes before the first commit.
                session.ledger = Ledger(starts[session.partition])
            else:
                raise NoCommittedOffset(session.partition, self._group_id)
            self.go(session)
            if turn > _TURN:
                turn = 0
                self._on_change()
                await asyncio.sleep(0)
        if starts:
            self._on_fresh()
        self._on_change()
        return len(found) == len(asked)

    async def _expect_ends(self, sessions: Sequence[Session], found: Mapping[TopicPartition, Committed | None]) -> None:
        """A run that ends at its targets reads nothing of a log that ends before the position, so no fetch tells."""
        behind = {
            session.partition: committed.offset
            for session in sessions
            if (committed := found.get(session.partition)) is not None and committed.offset > session.target
        }
        if behind:
            ends = await self._client.written_end_offsets(behind, REQUEST_TIMEOUT)
            for partition, offset in behind.items():
                if partition in ends and offset > ends[partition]:
                    raise PositionOutsideLog(partition, offset)

    def _restore(self, session: Session, committed: Committed) -> None:
        try:
            restored = decode_offset_map(committed.offset, committed.metadata)
        except OffsetMapError as error:
            if self._refuses_unreadable_maps:
                raise NoOffsetMap(session.partition, self._group_id, committed.offset, error) from error
            self.unreadable_maps += 1
            logger.warning(
                "%s: the metadata committed at offset %d is no offset map (%s): "
                "completed records above that offset run again",
                session.partition,
                committed.offset,
                error,
                extra={"action": "unreadable_map"},
            )
            restored = None
        session.ledger = Ledger(committed.offset, restored)
        session.acknowledged = committed
        session.promised = session.ledger.restored_until
        session.acknowledged_version = session.ledger.version

    def go(self, session: Session) -> None:
        """Read it from its ledger's position on."""
        session.opened = True
        session.resetting = False
        self._client.seek(session.partition, session.ledger.position)
