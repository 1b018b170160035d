"""Sessions from assigned to given away: opening, settling, losing, resetting.

How a partition comes: the listener's ``assigned`` only creates the session (a member may be without heartbeats
meanwhile). The opener then reads offset and map, finds the start, and lets the client fetch; after each of its
awaits the session may be gone, which it checks before it writes.

How a partition goes: ``revoked`` stops starting, drains, commits, drops; ``lost`` cancels and drops.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from aioparallel.engine.processor import Processor
from aioparallel.errors import NoCommittedOffset, OffsetMapError, OffsetOutOfRange
from aioparallel.group.client import Client, Committed, Generation
from aioparallel.group.committer import Committer
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.starts import Starts
from aioparallel.offsets import Ledger, decode_offset_map
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["Assignment"]

logger = logging.getLogger(__name__)

# Seconds that handlers get to end after they were cancelled at the drain deadline.
CANCEL_GRACE = 0.5
_OPEN_TIMEOUT = 10.0  # seconds for one request while opening
_OPEN_PAUSE = 0.5  # seconds between tries to open


class Assignment:
    """The sessions of this process, by partition. Implements the client's ``RebalanceListener``.

    ``on_change()`` hears that fetching should be planned anew; ``on_fatal(error)`` what must end the run.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        options: Options,
        processor: Processor,
        *,
        targets: Mapping[TopicPartition, int] | None,
        on_change: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._options = options
        self._processor = processor
        self._starts = Starts(client, group_id, options)
        self._targets = targets
        self._on_change = on_change
        self._on_fatal = on_fatal
        self._epochs: dict[TopicPartition, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.sessions: dict[TopicPartition, Session] = {}
        self.committer: Committer  # set by the engine: each needs the other
        self.has_assignment = False  # between a join and the next revoked or lost
        self.offset_resets = 0
        self.unreadable_maps = 0

    # -- the listener -----------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        """New sessions, closed until the opener is through; kept ones move to the new generation."""
        for session in self.sessions.values():
            session.generation = generation
            session.fenced = False
        new = [self._new_session(partition, generation) for partition in sorted(partitions)]
        self.has_assignment = True
        if new:
            self._spawn(self._open(new))
        self._on_change()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Settle: drain, commit, drop. Bounded by drain_timeout and commit_timeout."""
        self.has_assignment = False
        sessions = [self.sessions[p] for p in partitions if p in self.sessions]
        await self.settle(sessions, self._options.drain_timeout)
        self._on_change()

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Gone already: cancel what runs, drop without a commit."""
        self.has_assignment = False
        sessions = [self.sessions[p] for p in partitions if p in self.sessions]
        if sessions:
            logger.warning(
                "lost %d partitions without a last commit: records of theirs may run again at their next owner",
                len(sessions),
                extra={"action": "partitions_lost"},
            )
        for session in sessions:
            self._drop(session)
        self._processor.cancel(sessions)
        self._on_change()

    # -- giving away ------------------------------------------------------------------------------------

    async def settle(self, sessions: Collection[Session], drain_timeout: float) -> bool:
        """Drain for at most ``drain_timeout`` seconds, commit, drop. True when the commit was acknowledged."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_timeout + CANCEL_GRACE + self._options.commit_timeout
        for session in sessions:
            if session.state is SessionState.OPENING:
                self._drop(session)  # nothing was read yet, so nothing is to be said
        settling = [session for session in sessions if session.current]
        await self._processor.drain(settling, drain_timeout, CANCEL_GRACE)
        committed = await self.committer.commit_until(settling, deadline)
        if not committed:
            logger.warning(
                "gave away %d partitions without an acknowledged commit within the deadline: "
                "records completed since the last one will run again",
                len(settling),
                extra={"action": "settle_uncommitted"},
            )
        for session in settling:
            self._drop(session)
        return committed

    def _drop(self, session: Session) -> None:
        self._processor.scheduler.drop(session)
        if self.sessions.get(session.partition) is session:
            del self.sessions[session.partition]

    async def close(self) -> None:
        """End the openers. The sessions were settled before."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- opening ----------------------------------------------------------------------------------------

    def _new_session(self, partition: TopicPartition, generation: Generation) -> Session:
        previous = self.sessions.get(partition)
        if previous is not None:
            self._drop(previous)
        epoch = self._epochs[partition] = self._epochs.get(partition, 0) + 1
        session = self.sessions[partition] = Session(partition, epoch, generation)
        if self._targets is not None:
            # A partition that came up after the start holds nothing that was to be read.
            session.target = self._targets.get(partition, 0)
        return session

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="aioparallel-opener")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)

    async def _open(self, sessions: list[Session]) -> None:
        """Open these sessions, trying again while the broker does not answer and they are still ours."""
        for attempt in itertools.count(1):
            opening = [session for session in sessions if session.state is SessionState.OPENING]
            if not opening:
                return
            try:
                await self._open_once(opening)
            except TimeoutError:
                logger.warning(
                    "%d partitions wait for their committed offsets: the broker did not answer (try %d)",
                    len(opening),
                    attempt,
                    extra={"action": "open_retry"},
                )
                await asyncio.sleep(_OPEN_PAUSE)

    async def _open_once(self, sessions: list[Session]) -> None:
        committed = await self._client.committed([s.partition for s in sessions], _OPEN_TIMEOUT)
        fresh = [s.partition for s in sessions if s.partition not in committed]
        starts = await self._starts.of(fresh, _OPEN_TIMEOUT) if fresh else {}
        for session in sessions:
            if session.state is not SessionState.OPENING:
                continue  # went while we waited
            if session.partition in committed:
                self._restore(session, committed[session.partition])
            elif session.partition in starts:
                # Dirty until committed: without that, "latest" would skip what comes before the first commit.
                session.ledger = Ledger(starts[session.partition])
            else:
                raise NoCommittedOffset(session.partition, self._group_id)
            self._go(session)
        if starts:
            self.committer.soon()
        self._on_change()

    def _restore(self, session: Session, committed: Committed) -> None:
        try:
            restored = decode_offset_map(committed.offset, committed.metadata)
        except OffsetMapError as error:
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
        session.acknowledged_version = session.ledger.version

    def _go(self, session: Session) -> None:
        session.opened = True
        self._client.seek(session.partition, session.ledger.position)

    # -- out of range -----------------------------------------------------------------------------------

    async def reset(self, error: OffsetOutOfRange) -> None:
        """The log does not hold a session's position. Move it, by ``auto_offset_reset``.

        Behind the log's beginning (retention was faster): the same session goes on there, what was read
        before still counts. Beyond its end (truncated): a new session, what was read belongs to another log.
        """
        session = self.sessions.get(error.partition)
        if session is None or session.state is not SessionState.OPEN:
            return
        if self._options.auto_offset_reset == "error":
            raise error
        try:
            begins = (await self._client.beginning_offsets([error.partition], _OPEN_TIMEOUT))[error.partition]
            start = (await self._starts.by_policy([error.partition], _OPEN_TIMEOUT))[error.partition]
        except TimeoutError:
            await asyncio.sleep(_OPEN_PAUSE)
            return  # fetching raises again
        if self.sessions.get(error.partition) is not session or session.state is not SessionState.OPEN:
            return  # went while we waited
        self.offset_resets += 1
        position = session.ledger.position
        logger.warning(
            "%s: position %d is outside the log, which begins at %d: going on at %d",
            error.partition,
            position,
            begins,
            start,
            extra={"action": "offset_reset", "position": position, "start": start},
        )
        if position <= begins <= start:
            session.ledger.register([], start)
        else:
            generation = session.generation
            self._drop(session)
            self._processor.cancel([session])
            session = self._new_session(error.partition, generation)
            session.ledger = Ledger(start)
        self._go(session)
        self._on_change()

    def settled_down(self) -> bool:
        """Whether there is an assignment, and no session of it is on its way in or out."""
        return self.has_assignment and all(s.state is SessionState.OPEN for s in self.sessions.values())
