"""Positions that the log does not hold: where to go on. Each in a task of its own, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aioparallel.engine.processor import Processor
from aioparallel.errors import PositionOutsideLog
from aioparallel.group.client import REQUEST_PAUSE, REQUEST_TIMEOUT, Client
from aioparallel.group.holdings import Holdings
from aioparallel.group.opening import Opener
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.starts import Starts
from aioparallel.offsets import Ledger
from aioparallel.records import TopicPartition

__all__ = ["Resets"]

logger = logging.getLogger(__name__)


class Resets:
    """Moves sessions into their logs, by ``auto_offset_reset``. Until then they are ``resetting``: nothing is fetched
    for them, all else goes on.
    """

    def __init__(
        self,
        client: Client,
        starts: Starts,
        holdings: Holdings,
        processor: Processor,
        opener: Opener,
        on_change: Callable[[], None],
        *,
        refuses: bool = False,
    ) -> None:
        self._refuses = refuses
        self._client = client
        self._starts = starts
        self._holdings = holdings
        self._processor = processor
        self._opener = opener
        self._on_change = on_change
        self.count = 0

    async def reset(self, session: Session) -> None:
        """Find where it goes on, trying again while there is no answer and it is still ours.

        Behind the log's beginning (retention was faster): the same session goes on there, what was read before still
        counts. Beyond its end (truncated): a new session, what was read belongs to another log.
        """
        if self._refuses:
            raise PositionOutsideLog(session.partition, session.ledger.position)
        while _is_open(session):
            found = await self._look(session.partition)
            if not _is_open(session):
                return  # went while we waited
            if found is not None:
                self._move(session, *found)
                return
            logger.warning(
                "%s: position %d is outside the log, and the broker does not tell where that begins and ends; "
                "asking again",
                session.partition,
                session.ledger.position,
                extra={"action": "reset_retry"},
            )
            await asyncio.sleep(REQUEST_PAUSE)

    async def _look(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Where the log begins, and where to start; None without an answer."""
        try:
            begins = (await self._client.beginning_offsets([partition], REQUEST_TIMEOUT)).get(partition)
            start = (await self._starts.by_policy([partition], REQUEST_TIMEOUT)).get(partition)
        except TimeoutError:
            return None
        return None if begins is None or start is None else (begins, start)

    def _move(self, session: Session, begins: int, start: int) -> None:
        self.count += 1
        position = session.ledger.position
        logger.warning(
            "%s: position %d is outside the log, which begins at %d: going on at %d",
            session.partition,
            position,
            begins,
            start,
            extra={"action": "offset_reset", "position": position, "start": start},
        )
        if position <= begins <= start:
            session.ledger.register([], start)
        else:
            gone, session = session, self._holdings.replace(session)
            self._processor.cancel([gone])
            session.ledger = Ledger(start)
        self._opener.go(session)
        self._on_change()


def _is_open(session: Session) -> bool:
    return session.state is SessionState.OPEN
