"""Takes over, folds and releases the partitions of this member.

To fold is to move completed records from rows of their own into the offset map of the position.
"""

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
from aioparallel.persistence.sql.database_errors import NO_ANSWER, describe
from aioparallel.persistence.sql.lag_offsets import LagOffsets
from aioparallel.persistence.sql.statements import Found, Log, Owned, Statements
from aioparallel.records.errors import OffsetMapError, PositionOutsideLog
from aioparallel.records.record import TopicPartition

__all__ = ["Partitions", "Stored", "Taken"]

logger = logging.getLogger(__name__)

_OF_TIME: Final = 0.8
"""The part of a timeout that may be spent waiting for locks."""
_GAP: Final = 200_000
"""The most offsets between a position and the rows that are merged into it. If a log lost unread records, there may be
millions of offsets, and each would be written as incomplete."""
_IDS: Final = 2.0
"""Seconds to look up topic ids in the cluster."""


class Taken:
    """One partition of this member, since it was taken over."""

    def __init__(self, owned: Owned, *, is_stored: bool) -> None:
        self.owned = owned
        self.done: list[int] = []
        """Offsets whose row is written but not folded yet."""
        self.is_stored = asyncio.Event()
        """Set once the position is in the table. No record's row may be written before: rows without a position do not
        tell which records below them are complete."""
        self.conflicts: dict[int, int] = {}
        """How often transactions of a record conflicted with others, by offset."""
        if is_stored:
            self.is_stored.set()


class Partitions:
    """The partitions of this member, an :class:`~aioparallel.group.offset_stores.OffsetStore`. ``lag`` gets the
    positions as well. ``turn`` serializes writers, for databases that need it. ``on_trouble(error)``: the
    database failed; it may be out of connections. ``on_answer()``: it succeeded."""

    def __init__(
        self,
        engine: AsyncEngine,
        statements: Statements,
        group_id: str,
        client: Client,
        lag: LagOffsets,
        turn: contextlib.AbstractAsyncContextManager[Any],
        on_trouble: Callable[[Exception], Awaitable[None]],
        on_answer: Callable[[], None],
    ) -> None:
        # A take-over must see what was committed while it waited, whatever isolation level the engine has.
        is_plain = statements.is_postgresql
        self._engine = engine.execution_options(isolation_level="READ COMMITTED") if is_plain else engine
        self._statements = statements
        self._group_id = group_id
        self._client = client
        self._lag = lag
        self._turn = turn
        self._on_trouble = on_trouble
        self._on_answer = on_answer
        self.taken: dict[TopicPartition, Taken] = {}

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """Raise the epoch, then read what is stored. The first waits for open transactions of the previous owner
        and fences its later ones. Raises PositionOutsideLog if a position belongs to another log."""
        ends = asyncio.get_running_loop().time() + timeout
        async with self._transaction(ends, f"Taking {len(partitions)} partitions over") as connection:
            owned = await self._statements.take(connection, self._group_id, partitions, timeout * _OF_TIME)
            found = await self._statements.find(connection, owned)
        ids = await self._topic_ids(partitions)
        stored = await self._of_these_logs({p: Stored.of(found[one.id]) for p, one in owned.items()}, ids, ends)
        if not stored:
            raise TimeoutError(f"the brokers do not answer which logs {len(partitions)} positions belong to")
        positions = {p: one.merged((ids or {}).get(p.topic, b"")) for p, one in stored.items()}
        folded = {
            owned[partition]: _Fold.of(position, one.done)
            for partition, one in stored.items()
            if (position := positions[partition]) is not None and one.done
        }
        if folded:
            # If all records are complete already, no later commit would fold these rows.
            async with self._transaction(ends, f"Folding {len(folded)} positions", is_fold=True) as connection:
                await self._fold(connection, folded, ends)
        for partition, position in positions.items():
            one, before = owned[partition], self.taken.get(partition)
            if before is None or before.owned.epoch < one.epoch:  # else it was released and taken over again since
                self.taken[partition] = Taken(one, is_stored=position is not None)
        # The member before may have been killed before it did so, and perhaps all records are complete.
        known = {partition: position for partition, position in positions.items() if position is not None}
        await self._lag.tell(known, generation)
        return positions

    @contextlib.asynccontextmanager
    async def _transaction(self, ends: float, what: str, *, is_fold: bool = False) -> AsyncIterator[AsyncConnection]:
        """Open a transaction on its own connection, which must end by ``ends`` (the event loop's time). Raises
        TimeoutError if the database fails."""
        try:
            async with asyncio.timeout_at(ends), self._turn, self._engine.begin() as connection:
                yield connection
        except NO_ANSWER as error:
            logger.warning(
                "%s: %s",
                what,
                describe(error),
                extra={"action": "fold_failed" if is_fold else "take_over_failed"},
            )
            await self._on_trouble(error)
            raise TimeoutError(what) from error
        self._on_answer()

    async def _topic_ids(self, partitions: Collection[TopicPartition]) -> Mapping[str, bytes] | None:
        """Return the topic ids, or None if no broker answers."""
        try:
            return await self._client.topic_ids({partition.topic for partition in partitions}, _IDS)
        except TimeoutError:
            return None

    async def _of_these_logs(
        self, stored: Mapping[TopicPartition, Stored], ids: Mapping[str, bytes] | None, ends: float
    ) -> dict[TopicPartition, Stored]:
        """Return the positions that belong to the current logs, without those that are still undecided.

        The leader epoch of a position is checked when its partition is opened. Rows have no leader epoch, so merging
        them removes it from the position. Therefore it is checked here.
        """
        logs = {partition: one.log for partition, one in stored.items() if one.log is not None}
        undecided = set()
        for partition, log in logs.items():
            if log.topic_id and ids is None:
                undecided.add(partition)
            elif log.topic_id and (topic_id := (ids or {}).get(partition.topic)) and topic_id.hex() != log.topic_id:
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
        """Write the partitions that this member still owns, and return them."""
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
        """Return the partitions that have a position."""
        topics = {partition.topic for partition in partitions}
        ends = asyncio.get_running_loop().time() + timeout
        async with self._transaction(ends, "Looking for positions") as connection:
            found = await self._statements.positions_of(connection, self._group_id, topics)
        return found.intersection(partitions)

    def release(self, partition: TopicPartition) -> None:
        """Forget a partition that this member no longer owns."""
        self.taken.pop(partition, None)
        self._lag.release(partition)

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Write the positions and delete the rows that they cover."""
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
            one.is_stored.set()
            results[partition] = None
        if len(kept) < len(positions):
            # Another member has taken them over. The group does not know yet, or it removed this member for a moment.
            self._client.fenced(generation)
        await self._lag.tell({partition: positions[partition] for partition in kept}, generation)
        return results


class _Fold(NamedTuple):
    """What is written for one partition."""

    position: Committed
    done: Sequence[int]
    """Offsets with a row that the position marks as complete."""
    log: Log

    @classmethod
    def of(cls, position: Committed, done: Sequence[int]) -> _Fold:
        """Make the fold of this position. ``done``: offsets that have a row."""
        offset_map = decode_offset_map(*position[:2])
        is_complete = offset_map.looker()
        log = Log(_highest(position, offset_map), position.leader_epoch, position.topic_id.hex())
        return cls(position, [offset for offset in done if is_complete(offset)], log)


class Stored(NamedTuple):
    """What is stored for one partition."""

    position: Committed | None
    offset_map: OffsetMap | None
    """The decoded offset map; None if there is none or it cannot be decoded."""
    done: Sequence[int]
    """Offsets with a row, ascending."""
    log: Log | None
    """None if unknown, or if a version that stores no log has moved the position since."""

    @classmethod
    def of(cls, found: Found) -> Stored:
        """Drop rows and log if the map cannot be decoded. Opening the partition reports that error."""
        position, done, log = found
        if position is None:
            return cls(None, None, done, None)
        try:
            offset_map = decode_offset_map(*position[:2])
        except OffsetMapError:
            return cls(position, None, (), None)
        if log is None or log.record_offset != _highest(position, offset_map):
            return cls(position, offset_map, done, None)
        return cls(position._replace(leader_epoch=log.leader_epoch), offset_map, done, log)

    def merged(self, topic_id: bytes) -> Committed | None:
        """Return position and rows as one position, without rows that are far above it. Their records run again and are
        then found to be complete."""
        if self.position is None:
            return None
        position, offset_map = self.position._replace(topic_id=topic_id), self.offset_map
        if offset_map is None:
            return position
        known = _highest(position, offset_map)
        fresh = [offset for offset in self.done if position.offset <= offset <= known + _GAP]
        if not fresh:
            return position
        highest = max(offset_map.highest_succeeded, fresh[-1])
        done = set(fresh)
        incompletes = [offset for offset in offset_map.incompletes if offset not in done]
        incompletes += [offset for offset in range(offset_map.highest_succeeded + 1, highest + 1) if offset not in done]
        first = incompletes[0] if incompletes else highest + 1
        text = encode_offset_map(first, highest, incompletes, limit=None) if first <= highest else ""
        # Rows do not store the leader epoch of their record.
        return Committed(first, text, position.leader_epoch if highest <= known else UNKNOWN, topic_id)


def _highest(position: Committed, offset_map: OffsetMap) -> int:
    """The highest offset that the position or its map covers."""
    return max(position.offset - 1, offset_map.highest_succeeded)
