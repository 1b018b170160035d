"""How a session opens: take the partition over, restore its map or find its start, and let the client fetch it.

After each ``await`` the session may be gone, or the member may be in another generation: what is written follows from
what is looked at after it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from aioparallel.errors import NoCommittedOffset, NoOffsetMap, OffsetMapError, OffsetOutOfRange, PositionOutsideLog
from aioparallel.group.client import REQUEST_PAUSE, REQUEST_TIMEOUT, Client, Committed
from aioparallel.group.leader_epochs import UNKNOWN, LeaderEpochs
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.starts import Starts
from aioparallel.group.stores import Positions
from aioparallel.group.truncations import Truncations, ledger_below
from aioparallel.group.turns import Spawn, Turns
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
# Of partitions of which it is not decided yet whether something is stored.
_STORED: Final = Committed(0, "")


_WORTH_TELLING: Final = 3
"""Tries without an answer of a leader after which that is told."""


class _Untold(TimeoutError):
    """Nobody tells where the log of one of these partitions begins or ends: it has no leader, its topic is gone."""


class _Unled(Exception):
    """Nobody tells up to where the logs of these partitions hold what is committed. No other one waits for them."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(partitions)
        self.partitions = partitions


class Opener:
    """Opens sessions.

    ``on_fresh()`` hears that starts were chosen, which are to be committed; ``on_change()`` that more is to be fetched.
    ``refuses_unreadable_maps``, ``refuses_resets``: see :class:`~aioparallel.group.committing.Keeping`.
    ``is_error``: a position outside the log ends the run. ``truncations`` hears of logs that lost records.
    ``longest_wait``, ``spawn``: see :class:`~aioparallel.group.turns.Turns`.
    ``read_before``: see :class:`~aioparallel.group.assigned_partitions.AssignedPartitions`.
    """

    def __init__(
        self,
        client: Client,
        group_id: str,
        positions: Positions,
        starts: Starts,
        truncations: Truncations,
        *,
        longest_wait: float,
        spawn: Spawn,
        on_fresh: Callable[[], None],
        on_change: Callable[[], None],
        refuses_unreadable_maps: bool = False,
        refuses_resets: bool = False,
        is_error: bool = False,
        read_before: Mapping[TopicPartition, tuple[bytes, Committed | None]] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._read_before = read_before
        self._positions = positions
        self._refuses_unreadable_maps = refuses_unreadable_maps
        self._refuses_resets = refuses_resets
        self._is_error = is_error
        self._starts = starts
        self._turns = Turns(starts, longest_wait, begin=self._begin, spawn=spawn)
        self._truncations = truncations
        self._on_fresh = on_fresh
        self._on_change = on_change
        self.unreadable_maps = 0
        self._told_ids: dict[TopicPartition, bytes] = {}
        self._first_ids: dict[str, bytes] = {}
        """Of each topic as this member met it first: another one was made anew meanwhile, with all its partitions."""

    async def open(self, sessions: Sequence[Session]) -> None:
        """Open these sessions, trying again while there is no answer and they are still ours. One whose log nobody
        knows holds up no other. Those that wait for their turn are left to that.
        """
        unled_times = 0
        for attempt in itertools.count(1):
            opening = [
                session
                for session in sessions
                if session.state is SessionState.OPENING and not self._turns.waits(session)
            ]
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
            except _Unled as unled:
                unled_times += 1
                if unled_times == _WORTH_TELLING:  # metadata may be on its way
                    logger.warning(
                        "%s%s: nobody tells up to where the log holds what is committed; asking again until its leader "
                        "does",
                        unled.partitions[0],
                        f" (and {len(unled.partitions) - 1} more partitions)" if unled.partitions[1:] else "",
                        extra={"action": "log_end_retry", "partitions": len(unled.partitions)},
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
        """Open those of which it is decided where they stand; whether these are all. Raises TimeoutError, _Unled."""
        # All that one member holds has the same generation.
        generation = sessions[0].generation
        asked = [session.partition for session in sessions]
        timeout = _TOGETHER if len(asked) > 1 else REQUEST_TIMEOUT
        # Before the positions: what these say may be of a newer topic than that, and never of an older one.
        ids = await self._ids_of(asked)
        found = await self._positions.take_over(asked, generation, REQUEST_TIMEOUT)
        if self._refuses_resets:
            await self._expect_ends(sessions, found, timeout)
        stored = {partition: committed for partition, committed in found.items() if committed is not None}
        valid = await self._valid_ends(stored)
        anew = await self._made_anew(found, ids, timeout)
        await self._go_on(sessions, stored, valid, anew)
        is_known = True
        if fresh := [session for session in sessions if found.get(session.partition, _STORED) is None]:
            is_known = await self._start(fresh, anew, timeout)
        if unled := [partition for partition in stored if partition not in valid]:
            raise _Unled(unled)
        return is_known and len(found) == len(asked)

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

    async def _start(self, fresh: Sequence[Session], anew: Mapping[TopicPartition, int], timeout: float) -> bool:
        """Open those that have committed nothing, or let them wait for their turn; whether these are all."""
        partitions = [session.partition for session in fresh if session.partition not in anew]
        try:
            ends = await self._starts.ends(partitions, timeout)
        except TimeoutError as error:
            raise _Untold from error
        topics = await self._starts.topics(partitions, REQUEST_TIMEOUT)
        try:
            starts = await self._starts.of(partitions, ends, topics, timeout)
        except TimeoutError as error:
            raise _Untold from error
        entering: dict[Session, int] = {}
        unknown = 0
        for session in fresh:
            partition = session.partition
            if session.state is not SessionState.OPENING:
                continue  # went while we waited
            if (begins := anew.get(partition)) is not None:
                if partition in self._read_before:
                    _, before = self._read_before[partition]
                    known_until = begins - 1 if before is None else before.offset - 1
                    self._truncate(session, Ledger(begins), known_until, begins, "its topic was made anew")
                else:  # one of more partitions than the topic had
                    session.ledger = Ledger(begins)
                self._open_fresh([session])
            elif partition in starts:
                entering[session] = starts[partition]
            elif (choice := self._starts.choice(partition, topics)).policy == "error":
                raise NoCommittedOffset(partition, self._group_id, choice.option)
            else:
                unknown += 1
        self._turns.enter(entering, topics)
        return not unknown

    def _begin(self, starts: Mapping[Session, int]) -> None:
        for session, start in starts.items():
            session.ledger = Ledger(start)
        self._open_fresh(starts)

    def _open_fresh(self, sessions: Collection[Session]) -> None:
        """They are dirty until committed: without that, "latest" would skip what comes before the first commit."""
        for session in sessions:
            self.go(session)
        if sessions:
            self._on_fresh()
            self._on_change()

    async def _expect_ends(
        self, sessions: Sequence[Session], found: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> None:
        """A run that ends at its targets reads nothing of a log that ends before the position, so no fetch tells."""
        behind = {
            session.partition: committed.offset
            for session in sessions
            if (committed := found.get(session.partition)) is not None and committed.offset > session.target
        }
        if behind:
            try:
                ends = await self._client.written_end_offsets(behind, timeout)
            except TimeoutError as error:
                raise _Untold from error
            for partition, offset in behind.items():
                if partition in ends and offset > ends[partition]:
                    raise PositionOutsideLog(partition, offset)

    async def _ids_of(self, partitions: Collection[TopicPartition]) -> Mapping[str, bytes]:
        """Of their topics, as far as that is told."""
        try:
            ids = await self._client.topic_ids({partition.topic for partition in partitions}, _TOGETHER)
        except TimeoutError:
            return {}  # what is fetched of another topic tells
        self._told_ids |= {partition: ids[partition.topic] for partition in partitions if partition.topic in ids}
        return ids

    async def _made_anew(
        self, found: Mapping[TopicPartition, Committed | None], ids: Mapping[str, bytes], timeout: float
    ) -> Mapping[TopicPartition, int]:
        """Those whose topics are others than when this member has read them last, and where they begin. One that it has
        not read goes by the topic as the member met it first.

        Nobody has committed anything for the new topic then: the position is gone, or the one of this member. Where
        another member has, that counts.
        """
        changed = []
        for partition, committed in found.items():
            if topic_id := ids.get(partition.topic):
                first_id = self._first_ids.setdefault(partition.topic, topic_id)
                before, acknowledged = self._read_before.get(partition, (first_id, None))
                if before != topic_id and _position(committed) in (None, _position(acknowledged)):
                    changed.append(partition)
        try:
            return await self._client.beginning_offsets(changed, timeout) if changed else {}
        except TimeoutError as error:
            raise _Untold from error

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
            session.leader_epochs = LeaderEpochs(valid - 1, committed.leader_epoch)
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
        self._client.seek(session.partition, session.ledger.position)


def _position(committed: Committed | None) -> tuple[int, str] | None:
    """Without its leader epoch, which older brokers do not keep."""
    return None if committed is None else (committed.offset, committed.metadata)
