"""How a session opens: take the partition over, restore its map or find its start, and let the client fetch it.

After each ``await`` the session may be gone, or the member may be in another generation: what is written follows from
what is looked at after it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from aioparallel.errors import NoCommittedOffset, NoOffsetMap, OffsetMapError, OffsetOutOfRange, PositionOutsideLog
from aioparallel.group.client import REQUEST_PAUSE, REQUEST_TIMEOUT, Client, Committed
from aioparallel.group.leader_epochs import UNKNOWN, LeaderEpochs
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.starts import Starts
from aioparallel.group.stores import Positions
from aioparallel.group.truncations import Truncations, ledger_below
from aioparallel.offsets import Ledger, decode_offset_map
from aioparallel.records import TopicPartition

__all__ = ["Opener"]

logger = logging.getLogger(__name__)

# Characters of metadata restored (a millisecond or two) after which the event loop gets a turn; one map is one step.
_TURN = 1_000
# Seconds until it is looked again whether something is decided.
_UNDECIDED_PAUSE = 0.05
# Seconds in which the brokers tell where all logs begin or end that are asked for together; then each is asked for by
# itself.
_TOGETHER = 2.0


class _Untold(TimeoutError):
    """Nobody tells where the log of one of these partitions begins or ends: it has no leader, its topic is gone."""


class Opener:
    """Opens sessions.

    ``on_fresh()`` hears that starts were chosen, which are to be committed; ``on_change()`` that more is to be fetched.
    ``refuses_unreadable_maps``, ``refuses_resets``: see :class:`~aioparallel.group.committing.Keeping`.
    ``is_error``: a position outside the log ends the run. ``truncations`` hears of logs that lost records.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        positions: Positions,
        starts: Starts,
        truncations: Truncations,
        *,
        on_fresh: Callable[[], None],
        on_change: Callable[[], None],
        refuses_unreadable_maps: bool = False,
        refuses_resets: bool = False,
        is_error: bool = False,
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._positions = positions
        self._refuses_unreadable_maps = refuses_unreadable_maps
        self._refuses_resets = refuses_resets
        self._is_error = is_error
        self._starts = starts
        self._truncations = truncations
        self._on_fresh = on_fresh
        self._on_change = on_change
        self.unreadable_maps = 0
        self.topic_ids: dict[TopicPartition, bytes] = {}
        """Of the topic that each partition was of when it was read last."""
        self._told_ids: dict[TopicPartition, bytes] = {}

    async def open(self, sessions: Sequence[Session]) -> None:
        """Open these sessions, trying again while there is no answer and they are still ours. One whose log nobody
        knows holds up no other.
        """
        for attempt in itertools.count(1):
            opening = [session for session in sessions if session.state is SessionState.OPENING]
            if not opening:
                return
            try:
                if not await self._open_once(opening):
                    await asyncio.sleep(_UNDECIDED_PAUSE)
            except _Untold:
                if len(opening) > 1:
                    await self._open_each(opening)
                    return
                if attempt == 1:
                    logger.warning(
                        "%s: nobody tells where the log begins and ends; asking again until somebody does",
                        opening[0].partition,
                        extra={"action": "start_retry"},
                    )
                await asyncio.sleep(REQUEST_PAUSE)
            except TimeoutError:
                logger.warning(
                    "%d partitions wait for their committed offsets: no answer (try %d)",
                    len(opening),
                    attempt,
                    extra={"action": "open_retry"},
                )
                await asyncio.sleep(REQUEST_PAUSE)

    async def _open_each(self, sessions: Sequence[Session]) -> None:
        """Each in a task of its own. Raises the first error, and ends the others."""
        opening = [asyncio.ensure_future(self.open([session])) for session in sessions]
        try:
            await asyncio.gather(*opening)
        finally:
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)

    async def _open_once(self, sessions: Sequence[Session]) -> bool:
        """Open those of which it is decided where they stand; whether these are all."""
        # All that one member holds has the same generation.
        generation = sessions[0].generation
        asked = [session.partition for session in sessions]
        patience = _TOGETHER if len(asked) > 1 else REQUEST_TIMEOUT
        found = await self._positions.take_over(asked, generation, REQUEST_TIMEOUT)
        if self._refuses_resets:
            await self._expect_ends(sessions, found, patience)
        stored = {partition: committed for partition, committed in found.items() if committed is not None}
        valid = await self._valid_ends(stored)
        anew = await self._made_anew(asked)
        await self._go_on(sessions, stored, valid, anew)
        fresh = {partition for partition, committed in found.items() if committed is None}
        if fresh:
            starts = await self._starts_of(fresh - anew.keys(), patience)
            self._begin([session for session in sessions if session.partition in fresh], starts, anew)
        return len(found) == len(asked) and len(valid) == len(stored)

    async def _go_on(
        self,
        sessions: Sequence[Session],
        stored: Mapping[TopicPartition, Committed],
        valid: Mapping[TopicPartition, int | None],
        anew: Mapping[TopicPartition, int],
    ) -> None:
        """Open those that have committed, and whose leader has said what of their logs is left: they wait for no
        other."""
        turn = 0
        for session in sessions:
            if session.state is not SessionState.OPENING or session.partition not in valid:
                continue  # went while we waited; or it is not decided, or has committed nothing
            committed = stored[session.partition]
            self._restore(session, committed, valid[session.partition], anew.get(session.partition))
            self.go(session)
            turn += len(committed.metadata)
            if turn > _TURN:
                turn = 0
                self._on_change()
                await asyncio.sleep(0)
        self._on_change()

    async def _valid_ends(self, stored: Mapping[TopicPartition, Committed]) -> Mapping[TopicPartition, int | None]:
        """Up to where each log holds what its position speaks of; None: it speaks of nothing that could be lost."""
        epochs = {p: one.leader_epoch for p, one in stored.items() if one.metadata or one.leader_epoch != UNKNOWN}
        told = await self._client.valid_ends(epochs, REQUEST_TIMEOUT) if epochs else {}
        return {**{partition: None for partition in stored if partition not in epochs}, **told}

    async def _starts_of(self, fresh: Collection[TopicPartition], patience: float) -> Mapping[TopicPartition, int]:
        try:
            return await self._starts.of(fresh, patience) if fresh else {}
        except TimeoutError as error:
            raise _Untold from error

    def _begin(
        self,
        sessions: Sequence[Session],
        starts: Mapping[TopicPartition, int],
        anew: Mapping[TopicPartition, int],
    ) -> None:
        """Open those that have committed nothing."""
        for session in sessions:
            if session.state is not SessionState.OPENING:
                continue  # went while we waited
            if (begins := anew.get(session.partition)) is not None:
                self._truncate(session, Ledger(begins), begins - 1, begins, "its topic was made anew")
            elif session.partition in starts:
                # Dirty until committed: without that, "latest" would skip what comes before the first commit.
                session.ledger = Ledger(starts[session.partition])
            else:
                raise NoCommittedOffset(session.partition, self._group_id)
            self.go(session)
        self._on_fresh()
        self._on_change()

    async def _expect_ends(
        self, sessions: Sequence[Session], found: Mapping[TopicPartition, Committed | None], patience: float
    ) -> None:
        """A run that ends at its targets reads nothing of a log that ends before the position, so no fetch tells."""
        behind = {
            session.partition: committed.offset
            for session in sessions
            if (committed := found.get(session.partition)) is not None and committed.offset > session.target
        }
        if behind:
            try:
                ends = await self._client.written_end_offsets(behind, patience)
            except TimeoutError as error:
                raise _Untold from error
            for partition, offset in behind.items():
                if partition in ends and offset > ends[partition]:
                    raise PositionOutsideLog(partition, offset)

    async def _made_anew(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Those whose topics are others than when this member has opened them last, and where they begin."""
        try:
            ids = await self._client.topic_ids({partition.topic for partition in partitions}, _TOGETHER)
        except TimeoutError:
            return {}  # the ids known before stay: what is fetched of another topic tells
        changed = []
        for partition in partitions:
            if topic_id := ids.get(partition.topic):
                if self.topic_ids.get(partition, topic_id) != topic_id:
                    changed.append(partition)
                self._told_ids[partition] = topic_id
        return await self._client.beginning_offsets(changed, REQUEST_TIMEOUT) if changed else {}

    def _restore(self, session: Session, committed: Committed, valid: int | None, begins: int | None) -> None:
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
        ledger = Ledger(committed.offset, restored)
        known_until = max(committed.offset - 1, ledger.restored_until)
        session.acknowledged = committed
        if valid is not None and committed.leader_epoch == UNKNOWN:
            # A map that speaks of more than there is may speak of lost records anywhere. A position beyond the end is
            # told by the first fetch, and moved as the options say.
            valid = committed.offset if ledger.restored_until >= valid else None
        if begins is not None:
            self._truncate(session, Ledger(begins), known_until, begins, "its topic was made anew")
        elif valid is not None and known_until >= valid:
            below = ledger_below(ledger.snapshot(), valid)
            self._truncate(session, below, known_until, valid, "its log was truncated while nobody read it")
        else:
            session.ledger = ledger
            session.leader_epochs = LeaderEpochs(known_until, committed.leader_epoch)
            session.acknowledged_version = ledger.version
        session.promised = session.ledger.restored_until

    def _truncate(self, session: Session, ledger: Ledger, known_until: int, valid: int, what: str) -> None:
        """The log lost what the position speaks of. What is committed stays, and is owed anew."""
        if self._refuses_resets:
            raise PositionOutsideLog(session.partition, known_until + 1)
        if self._is_error:
            raise OffsetOutOfRange(session.partition, known_until + 1)
        session.ledger = ledger
        self._truncations.told(session, known_until, valid, ledger.position, what)

    def go(self, session: Session) -> None:
        """Read it from its ledger's position on."""
        session.opened = True
        session.resetting = False
        session.topic_id = session.topic_id or self._told_ids.get(session.partition, b"")
        if session.topic_id:
            self.topic_ids[session.partition] = session.topic_id
        self._client.seek(session.partition, session.ledger.position)
