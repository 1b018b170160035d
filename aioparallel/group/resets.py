"""Finds where a session continues if its log does not hold the position any more, or may hold other records below it.
Each session has its own task, so the others do not wait."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from aioparallel.engine.run.processor import Processor
from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.client import REQUEST_PAUSE, REQUEST_TIMEOUT, Client, Fetched
from aioparallel.group.leader_epochs import UNKNOWN, LeaderEpochs
from aioparallel.group.opening import Opener
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.starts import Starts
from aioparallel.group.truncations import CREATED_AGAIN, Truncations, ledger_below
from aioparallel.offsets import Ledger
from aioparallel.records.errors import OffsetOutOfRange, PositionOutsideLog

__all__ = ["Resets", "differs"]

logger = logging.getLogger(__name__)

_LOG_EVERY: Final = 120
"""One of so many tries without an answer is logged as a warning. Tries are at least half a second apart."""


def differs(session: Session, fetched: Fetched) -> bool:
    """Return whether fetched data shows that the log may not be the one that was read before."""
    if fetched.topic_id and session.topic_id and fetched.topic_id != session.topic_id:
        return True
    if fetched.leader_changed:
        return session.leader_epochs.newest != UNKNOWN
    newest = fetched.leader_epochs[-1][1] if fetched.leader_epochs else UNKNOWN
    return session.leader_epochs.differs(fetched.next_offset - 1, newest)


class _Log(NamedTuple):
    """The log that a partition has now. ``valid``: up to this offset it holds the records that were read. If the topic
    ``is_new``, it is where the log begins."""

    valid: int
    topic_id: bytes
    is_new: bool


class Resets:
    """Moves sessions to a position inside their logs. Until then they are ``resetting``: nothing is fetched for them,
    everything else continues.

    ``refuses``: a position outside the log ends the run, because other data is stored with the positions (state, for
    example) and belongs to the lost records.
    """

    def __init__(
        self,
        client: Client,
        starts: Starts,
        assigned: AssignedPartitions,
        processor: Processor,
        opener: Opener,
        truncations: Truncations,
        on_change: Callable[[], None],
        *,
        refuses: bool = False,
        is_error: bool = False,
    ) -> None:
        self._refuses = refuses
        self._is_error = is_error
        self._client = client
        self._starts = starts
        self._assigned = assigned
        self._processor = processor
        self._opener = opener
        self._truncations = truncations
        self._on_change = on_change
        self.count = 0

    async def reset(self, session: Session) -> None:
        """Move a session whose position is outside the log. Tries again while there is no answer and the session is
        open.

        * The position is before the beginning of the log, because retention was faster. The same session continues at
          the beginning, also with ``"latest"``. What was read before still counts.
        * The position is beyond the end, because the log was truncated. What was read belongs to another log, so a new
          session begins. It continues where the records of known leader epochs end, or as ``auto_offset_reset`` says.
        """
        if self._refuses:
            raise PositionOutsideLog(session.partition, session.ledger.position)
        for attempt in itertools.takewhile(lambda _: _is_open(session), itertools.count()):
            log = await self._log(session)
            found = None if log is None else await self._look(session)
            if not _is_open(session):
                return  # it has gone meanwhile
            if found is not None and log is not None:
                if log.valid < session.ledger.position:
                    self._truncate(session, log._replace(valid=max(log.valid, found[0])))
                else:
                    self._move(session, *found)
                return
            what = "is outside the log, and the broker does not answer where the log begins and ends"
            self._log_waiting(session, what, attempt)
            await asyncio.sleep(REQUEST_PAUSE)

    async def check(self, session: Session, news: Fetched) -> None:
        """Check whether the log has lost records that were read, and continue. Tries again as :meth:`reset` does."""
        for attempt in itertools.takewhile(lambda _: _is_open(session), itertools.count()):
            log = await self._log(session)
            if not _is_open(session):
                return
            position = session.ledger.position
            if log is not None and not log.is_new and log.valid >= position:
                if news.leader_epochs:
                    session.leader_epochs = LeaderEpochs(position, news.leader_epochs[-1][1])
                self._opener.go(session)
                self._on_change()
                return
            if log is not None:
                if self._refuses:
                    raise PositionOutsideLog(session.partition, position)
                if self._is_error:
                    raise OffsetOutOfRange(session.partition, position)
                self._truncate(session, log)
                return
            self._log_waiting(session, "may be in another log by now, and the broker does not answer", attempt)
            await asyncio.sleep(REQUEST_PAUSE)

    async def _log(self, session: Session) -> _Log | None:
        """Return the log that the partition has now; None without an answer."""
        partition, epoch = session.partition, session.leader_epochs.newest
        try:
            topic_id = (await self._client.topic_ids([partition.topic], REQUEST_TIMEOUT)).get(partition.topic, b"")
            if topic_id and session.topic_id and topic_id != session.topic_id:
                begins = (await self._client.beginning_offsets([partition], REQUEST_TIMEOUT)).get(partition)
                return None if begins is None else _Log(begins, topic_id, is_new=True)
            valid: int | None = session.ledger.position  # without a known epoch, assume that nothing is lost
            if epoch != UNKNOWN:
                valid = (await self._client.valid_ends({partition: epoch}, REQUEST_TIMEOUT)).get(partition)
        except TimeoutError:
            return None
        return None if valid is None else _Log(valid, topic_id or session.topic_id, is_new=False)

    async def _look(self, session: Session) -> tuple[int, int] | None:
        """Return where the log begins, and where to start; None without an answer."""
        partition = session.partition
        try:
            begins = (await self._client.beginning_offsets([partition], REQUEST_TIMEOUT)).get(partition)
            if begins is not None and session.ledger.position < begins:
                return begins, begins
            start = await self._starts.after_reset(partition, REQUEST_TIMEOUT)
        except TimeoutError:
            return None
        return None if begins is None or start is None else (begins, start)

    @staticmethod
    def _log_waiting(session: Session, what: str, attempt: int) -> None:
        logger.log(
            logging.DEBUG if attempt % _LOG_EVERY else logging.WARNING,
            "%s: position %d %s; asking again",
            session.partition,
            session.ledger.position,
            what,
            extra={"action": "reset_retry"},
        )

    def _move(self, session: Session, begins: int, start: int) -> None:
        self.count += 1
        position = session.ledger.position
        logger.warning(
            "%s: position %d is outside the log, which begins at %d: continuing at %d",
            session.partition,
            position,
            begins,
            start,
            extra={"action": "offset_reset", "position": position, "start": start},
        )
        if position <= begins <= start:
            session.ledger.register([], start)
            self._opener.go(session)
            self._on_change()
        else:
            self._replace(session, Ledger(start), session.topic_id)

    def _truncate(self, session: Session, log: _Log) -> None:
        self.count += 1
        known_until = session.ledger.position - 1
        ledger = Ledger(log.valid) if log.is_new else ledger_below(session.ledger.snapshot(), log.valid)
        epoch = UNKNOWN if log.is_new else session.leader_epochs.newest
        session = self._replace(session, ledger, log.topic_id)
        session.leader_epochs = LeaderEpochs(log.valid - 1, epoch)  # the log may lose more before the next fetch
        what = CREATED_AGAIN if log.is_new else "its log was truncated"
        self._truncations.report(session, known_until, log.valid, ledger.position, what)

    def _replace(self, session: Session, ledger: Ledger, topic_id: bytes) -> Session:
        """Begin a new session, because what was read belongs to another log. Its handlers are cancelled."""
        gone, session = session, self._assigned.replace(session)
        self._processor.cancel([gone])
        session.ledger = ledger
        session.promised = ledger.restored_until
        session.topic_id = topic_id
        self._opener.go(session)
        self._on_change()
        return session


def _is_open(session: Session) -> bool:
    return session.state is SessionState.OPEN
