"""Finds where an assignment continues if its log does not hold the position any more, or may hold other records below
it. Each assignment has its own task, so the others do not wait."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from aioparallel.engine.run.processor import Processor
from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import REQUEST_PAUSE, REQUEST_TIMEOUT, Client, Fetched
from aioparallel.group.leader_epochs import UNKNOWN, LeaderEpochs
from aioparallel.group.opening import Opener
from aioparallel.group.starts import Starts
from aioparallel.group.truncations import CREATED_AGAIN, Truncations, ledger_below
from aioparallel.offsets import Ledger

__all__ = ["Resets", "differs"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LOG_EVERY: Final = 120
"""One of so many tries without an answer is logged as a warning. Tries are at least half a second apart."""


def differs(assignment: Assignment, fetched: Fetched) -> bool:
    """Return whether fetched data shows that the log may not be the one that was read before."""
    if fetched.topic_id and assignment.topic_id and fetched.topic_id != assignment.topic_id:
        return True
    if fetched.leader_changed:
        return assignment.leader_epochs.newest != UNKNOWN
    newest = fetched.leader_epochs[-1][1] if fetched.leader_epochs else UNKNOWN
    return assignment.leader_epochs.differs(fetched.next_offset - 1, newest)


class _Log(NamedTuple):
    """The log that a partition has now. ``valid``: up to this offset it holds the records that were read. If the topic
    ``is_new``, it is where the log begins."""

    valid: int
    topic_id: bytes
    is_new: bool


@dataclass(eq=False, repr=False)
class Resets:
    """Moves assignments to a position inside their logs. Until then they are ``resetting``: nothing is fetched for
    them, everything else continues."""

    _client: Client
    _starts: Starts
    _assigned: AssignedPartitions
    _processor: Processor
    _opener: Opener
    _truncations: Truncations
    _on_change: Callable[[], None]
    count: int = field(default=0, init=False)

    async def reset(self, assignment: Assignment) -> None:
        """Move an assignment whose position is outside the log. Tries again while there is no answer and the assignment
        is open.

        * The position is before the beginning of the log, because retention was faster. The same assignment continues
          at the beginning, also with ``"latest"``. What was read before still counts.
        * The position is beyond the end, because the log was truncated. What was read belongs to another log, so a new
          assignment begins. It continues where the records of known leader epochs end, or as ``auto_offset_reset``
          says.
        """
        self._truncations.allow(assignment.partition, assignment.ledger.position)
        what = "is outside the log, and the broker does not answer where the log begins and ends"
        found = await self._ask(assignment, self._log_and_start, what)
        if found is None:
            return
        log, begins, start = found
        if log.valid < assignment.ledger.position:
            self._truncate(assignment, log._replace(valid=max(log.valid, begins)))
        else:
            self._move(assignment, begins, start)

    async def check(self, assignment: Assignment, news: Fetched) -> None:
        """Check whether the log has lost records that were read, and continue. Tries again as :meth:`reset` does."""
        log = await self._ask(assignment, self._log, "may be in another log by now, and the broker does not answer")
        if log is None:
            return
        position = assignment.ledger.position
        if log.is_new or log.valid < position:
            self._truncations.allow(assignment.partition, position)
            self._truncate(assignment, log)
            return
        if news.leader_epochs:
            assignment.leader_epochs = LeaderEpochs(position, news.leader_epochs[-1][1])
        self._opener.go(assignment)
        self._on_change()

    async def _ask(
        self, assignment: Assignment, ask: Callable[[Assignment], Awaitable[T | None]], what: str
    ) -> T | None:
        """Ask until there is an answer. None: the assignment is not open any more. ``what`` is logged meanwhile."""
        for attempt in itertools.takewhile(lambda _: _is_open(assignment), itertools.count()):
            found = await ask(assignment)
            if not _is_open(assignment):
                return None
            if found is not None:
                return found
            logger.log(
                logging.DEBUG if attempt % _LOG_EVERY else logging.WARNING,
                "%s: position %d %s; asking again",
                assignment.partition,
                assignment.ledger.position,
                what,
                extra={"action": "reset_retry"},
            )
            await asyncio.sleep(REQUEST_PAUSE)
        return None

    async def _log(self, assignment: Assignment) -> _Log | None:
        """Return the log that the partition has now; None without an answer."""
        partition, epoch = assignment.partition, assignment.leader_epochs.newest
        try:
            topic_id = (await self._client.topic_ids([partition.topic], REQUEST_TIMEOUT)).get(partition.topic, b"")
            if topic_id and assignment.topic_id and topic_id != assignment.topic_id:
                begins = (await self._client.beginning_offsets([partition], REQUEST_TIMEOUT)).get(partition)
                return None if begins is None else _Log(begins, topic_id, is_new=True)
            valid: int | None = assignment.ledger.position  # without a known epoch, assume that nothing is lost
            if epoch != UNKNOWN:
                valid = (await self._client.valid_ends({partition: epoch}, REQUEST_TIMEOUT)).get(partition)
        except TimeoutError:
            return None
        return None if valid is None else _Log(valid, topic_id or assignment.topic_id, is_new=False)

    async def _log_and_start(self, assignment: Assignment) -> tuple[_Log, int, int] | None:
        """Return the log, where it begins, and where to start; None without an answer."""
        partition = assignment.partition
        if (log := await self._log(assignment)) is None:
            return None
        try:
            begins = (await self._client.beginning_offsets([partition], REQUEST_TIMEOUT)).get(partition)
            if begins is not None and assignment.ledger.position < begins:
                return log, begins, begins
            start = await self._starts.after_reset(partition, REQUEST_TIMEOUT)
        except TimeoutError:
            return None
        return None if begins is None or start is None else (log, begins, start)

    def _move(self, assignment: Assignment, begins: int, start: int) -> None:
        self.count += 1
        position = assignment.ledger.position
        logger.warning(
            "%s: position %d is outside the log, which begins at %d: continuing at %d",
            assignment.partition,
            position,
            begins,
            start,
            extra={"action": "offset_reset", "position": position, "start": start},
        )
        if position <= begins <= start:
            assignment.ledger.register([], start)
            self._opener.go(assignment)
            self._on_change()
        else:
            self._replace(assignment, Ledger(start), assignment.topic_id)

    def _truncate(self, assignment: Assignment, log: _Log) -> None:
        self.count += 1
        known_until = assignment.ledger.position - 1
        ledger = Ledger(log.valid) if log.is_new else ledger_below(assignment.ledger.snapshot(), log.valid)
        epoch = UNKNOWN if log.is_new else assignment.leader_epochs.newest
        assignment = self._replace(assignment, ledger, log.topic_id)
        assignment.leader_epochs = LeaderEpochs(log.valid - 1, epoch)  # the log may lose more before the next fetch
        what = CREATED_AGAIN if log.is_new else "its log was truncated"
        self._truncations.report(assignment, known_until, log.valid, ledger.position, what)

    def _replace(self, assignment: Assignment, ledger: Ledger, topic_id: bytes) -> Assignment:
        """Begin a new assignment, because what was read belongs to another log. Its handlers are cancelled."""
        gone, assignment = assignment, self._assigned.replace(assignment)
        self._processor.cancel([gone])
        assignment.ledger = ledger
        assignment.promised = ledger.restored_until
        assignment.topic_id = topic_id
        self._opener.go(assignment)
        self._on_change()
        return assignment


def _is_open(assignment: Assignment) -> bool:
    return assignment.state is AssignmentState.OPEN
