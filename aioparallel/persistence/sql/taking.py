"""Partitions of this member: taken over, folded, released. An :class:`~aioparallel.group.offset_stores.OffsetStore`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aioparallel.group.client import Client, CommitFault, Committed, Generation
from aioparallel.group.leader_epochs import UNKNOWN
from aioparallel.offsets import OffsetMap, decode_offset_map, encode_offset_map
from aioparallel.persistence.sql.database_errors import NO_ANSWER, told_of
from aioparallel.persistence.sql.statements import Found, Log, Owned, Statements
from aioparallel.records.errors import OffsetMapError, PositionOutsideLog
from aioparallel.records.record import TopicPartition

__all__ = ["Partitions", "Taken"]

logger = logging.getLogger(__name__)

_OF_TIME: Final = 0.8
"""Of a time-out, for waiting for locks."""
_GAP: Final = 200_000
"""Offsets that are listed, at most, between a position and the rows beside it. Where logs lose what was not read, there
may be millions, and each would be written as one that is not complete."""
_IDS: Final = 2.0
"""Seconds in which the cluster tells the ids of topics."""
_LAG_TOOLS: Final = 1.0
"""Seconds for telling Kafka where the group stands, which nobody here reads."""


class Taken:
    """One partition of this member, since it was taken over."""

    def __init__(self, owned: Owned, *, stands: bool) -> None:
        self.owned = owned
        self.done: list[int] = []
        """Records whose row was written, and is not folded yet."""
        self.stands = asyncio.Event()
        """Whether its position is in the table. Before, no record's row may be: who finds rows without a position
        does not know what was complete below them."""
        self.conflicts: dict[int, int] = {}
        """How often transactions of records could not go on beside others, by offset."""
        if stands:
            self.stands.set()


class Partitions:
    """Those that this member has. ``turn``: of who writes, where only one may. ``on_trouble(error)``: the database has
    not done what was asked; it may have no more connections. ``on_answer()``: it has."""

    def __init__(
        self,
        engine: AsyncEngine,
        statements: Statements,
        group_id: str,
        client: Client,
        turn: contextlib.AbstractAsyncContextManager[Any],
        on_trouble: Callable[[Exception], Awaitable[None]],
        on_answer: Callable[[], None],
    ) -> None:
        # Whoever takes over must see what was committed while it waited, whatever the engine's own level is.
        is_plain = statements.is_postgresql
        self._engine = engine.execution_options(isolation_level="READ COMMITTED") if is_plain else engine
        self._statements = statements
        self._group_id = group_id
        self._client = client
        self._turn = turn
        self._on_trouble = on_trouble
        self._on_answer = on_answer
        self.taken: dict[TopicPartition, Taken] = {}

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """See :class:`~aioparallel.group.offset_stores.Positions`. First the epoch, which waits for the transactions of
        the owner before and shuts out its next ones; then what is stored. Raises PositionOutsideLog where that belongs
        to another log."""
        ends = asyncio.get_running_loop().time() + timeout
        async with self._transaction(ends, f"Taking {len(partitions)} partitions over") as connection:
            owned = await self._statements.take(connection, self._group_id, partitions, timeout * _OF_TIME)
            found = await self._statements.find(connection, owned)
        ids = await self._topic_ids(partitions)
        stored = await self._of_these_logs({p: _Stored.of(found[one.id]) for p, one in owned.items()}, ids, ends)
        if not stored:
            raise TimeoutError(f"nobody tells which logs {len(partitions)} positions belong to")
        positions = {p: one.merged((ids or {}).get(p.topic, b"")) for p, one in stored.items()}
        folded = {
            owned[partition]: _Fold.of(position, one.done)
            for partition, one in stored.items()
            if (position := positions[partition]) is not None and one.done
        }
        if folded:
            # A partition of which all is done has nothing to say later.
            async with self._transaction(ends, f"Folding {len(folded)} positions", is_fold=True) as connection:
                await self._fold(connection, folded, ends)
        for partition, position in positions.items():
            one, before = owned[partition], self.taken.get(partition)
            if before is None or before.owned.epoch < one.epoch:  # else it went, and was taken over again meanwhile
                self.taken[partition] = Taken(one, stands=position is not None)
        return positions

    @contextlib.asynccontextmanager
    async def _transaction(self, ends: float, what: str, *, is_fold: bool = False) -> AsyncIterator[AsyncConnection]:
        """One on a connection of its own, until the event loop's clock says ``ends``. Raises TimeoutError where the
        database does not do what it is asked."""
        try:
            async with asyncio.timeout_at(ends), self._turn, self._engine.begin() as connection:
                yield connection
        except NO_ANSWER as error:
            logger.warning(
                "%s: %s",
                what,
                told_of(error),
                extra={"action": "fold_failed" if is_fold else "take_over_failed"},
            )
            await self._on_trouble(error)
            raise TimeoutError(what) from error
        self._on_answer()

    async def _topic_ids(self, partitions: Collection[TopicPartition]) -> Mapping[str, bytes] | None:
        """Those that brokers have. None: nobody answers."""
        try:
            return await self._client.topic_ids({partition.topic for partition in partitions}, _IDS)
        except TimeoutError:
            return None

    async def _of_these_logs(
        self, stored: Mapping[TopicPartition, _Stored], ids: Mapping[str, bytes] | None, ends: float
    ) -> dict[TopicPartition, _Stored]:
        """Those whose positions belong to the logs that are there; without those of which that is not decided yet.

        Whoever opens a partition compares the leader epoch that its position has. Rows beside a position have none,
        and leave it without: so it is compared here.
        """
        logs = {partition: one.log for partition, one in stored.items() if one.log is not None}
        undecided = set()
        for partition, log in logs.items():
            if log.topic_id and ids is None:
                undecided.add(partition)
            elif log.topic_id and (told := (ids or {}).get(partition.topic)) and told.hex() != log.topic_id:
                raise PositionOutsideLog(partition, log.record_offset + 1)
        asked = {p: log.leader_epoch for p, log in logs.items() if stored[p].done and log.leader_epoch != UNKNOWN}
        valid = await self._valid_ends(asked, ends) if asked else {}
        for partition, end in valid.items():
            if logs[partition].record_offset >= end:
                raise PositionOutsideLog(partition, logs[partition].record_offset + 1)
        undecided |= asked.keys() - valid.keys()
        return {partition: one for partition, one in stored.items() if partition not in undecided}

    async def _valid_ends(self, asked: Mapping[TopicPartition, int], ends: float) -> Mapping[TopicPartition, int]:
        try:
            return await self._client.valid_ends(asked, max(0.0, ends - asyncio.get_running_loop().time()))
        except TimeoutError:
            return {}

    async def _fold(self, connection: AsyncConnection, folded: Mapping[Owned, _Fold], ends: float) -> set[Owned]:
        """Write those that are still this member's, and return them."""
        outages = max(0.0, ends - asyncio.get_running_loop().time()) * _OF_TIME
        still = await self._statements.still_owned(connection, folded.keys(), outages)
        kept = {one: fold for one, fold in folded.items() if one in still}
        await self._statements.fold(
            connection,
            {one: fold.position for one, fold in kept.items()},
            {one: fold.done for one, fold in kept.items()},
            {one: fold.log for one, fold in kept.items()},
        )
        return still

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """See :class:`~aioparallel.group.offset_stores.Positions`."""
        topics = {partition.topic for partition in partitions}
        ends = asyncio.get_running_loop().time() + timeout
        async with self._transaction(ends, "Looking for positions") as connection:
            found = await self._statements.positions_of(connection, self._group_id, topics)
        return found.intersection(partitions)

    def release(self, partition: TopicPartition) -> None:
        """See :class:`~aioparallel.group.offset_stores.Positions`."""
        self.taken.pop(partition, None)

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """See :class:`~aioparallel.group.offset_stores.OffsetStore`: fold what the ledgers say into the positions."""
        ends = asyncio.get_running_loop().time() + timeout
        mine = {partition: self.taken[partition] for partition in positions if partition in self.taken}
        results: dict[TopicPartition, CommitFault | None] = dict.fromkeys(positions, CommitFault.FENCED)
        folded = {one.owned: _Fold.of(positions[partition], one.done) for partition, one in mine.items()}
        try:
            async with self._transaction(ends, f"Folding {len(mine)} positions", is_fold=True) as connection:
                still = await self._fold(connection, folded, ends)
        except TimeoutError:
            return {**results, **dict.fromkeys(mine, CommitFault.RETRIABLE)}
        kept = {partition: one for partition, one in mine.items() if one.owned in still}
        for partition, one in kept.items():
            gone = set(folded[one.owned].done)
            one.done = [offset for offset in one.done if offset not in gone]
            one.stands.set()
            results[partition] = None
        if len(kept) < len(positions):
            # Somebody has taken them over, and the group does not know yet, or took us for dead for a moment.
            self._client.fenced(generation)
        await self._tell_group({partition: positions[partition] for partition in kept}, generation)
        return results

    async def _tell_group(self, positions: Mapping[TopicPartition, Committed], generation: Generation) -> None:
        """For tools that show lag; nobody here reads it, so nothing follows from its answer."""
        if positions:
            plain = {partition: committed._replace(metadata="") for partition, committed in positions.items()}
            await self._client.commit(plain, generation, _LAG_TOOLS)


class _Fold(NamedTuple):
    """What is written of one partition."""

    position: Committed
    done: Sequence[int]
    """Records with a row, which the position says are complete."""
    log: Log

    @classmethod
    def of(cls, position: Committed, done: Sequence[int]) -> _Fold:
        """Of records with a row, and this position."""
        said = decode_offset_map(*position[:2])
        is_complete = said.looker()
        log = Log(_highest(position, said), position.leader_epoch, position.topic_id.hex())
        return cls(position, [offset for offset in done if is_complete(offset)], log)


class _Stored(NamedTuple):
    """What was found of one partition."""

    position: Committed | None
    said: OffsetMap | None
    """What the position says; None: it cannot be read, or there is none."""
    done: Sequence[int]
    """Records that are complete beside that, ascending."""
    log: Log | None
    """None: unknown, also where a version that tells no logs has moved the position since."""

    @classmethod
    def of(cls, found: Found) -> _Stored:
        """Without rows and log where the position cannot be read: whoever opens the partition tells that."""
        position, done, log = found
        if position is None:
            return cls(None, None, done, None)
        try:
            said = decode_offset_map(*position[:2])
        except OffsetMapError:
            return cls(position, None, (), None)
        if log is None or log.record_offset != _highest(position, said):
            return cls(position, said, done, None)
        return cls(position._replace(leader_epoch=log.leader_epoch), said, done, log)

    def merged(self, topic_id: bytes) -> Committed | None:
        """Position and rows as one position; without those rows that are far above the others. Their records run again,
        and are found to be complete."""
        if self.position is None:
            return None
        position, said = self.position._replace(topic_id=topic_id), self.said
        if said is None:
            return position
        known = _highest(position, said)
        fresh = [offset for offset in self.done if position.offset <= offset <= known + _GAP]
        if not fresh:
            return position
        highest = max(said.highest_succeeded, fresh[-1])
        done = set(fresh)
        incompletes = [offset for offset in said.incompletes if offset not in done]
        incompletes += [offset for offset in range(said.highest_succeeded + 1, highest + 1) if offset not in done]
        first = incompletes[0] if incompletes else highest + 1
        text = encode_offset_map(first, highest, incompletes, limit=None) if first <= highest else ""
        # No row tells the epoch of its record.
        return Committed(first, text, position.leader_epoch if highest <= known else UNKNOWN, topic_id)


def _highest(position: Committed, said: OffsetMap) -> int:
    """The highest offset that both speak of."""
    return max(position.offset - 1, said.highest_succeeded)
