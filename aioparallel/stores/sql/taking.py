"""Partitions of this member: taken over, folded, released. An :class:`~aioparallel.group.stores.OffsetStore`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aioparallel.group.client import Client, CommitFault, Committed, Generation
from aioparallel.offsets import decode_offset_map, encode_offset_map
from aioparallel.records import TopicPartition
from aioparallel.stores.sql.faults import NO_ANSWER, told_of
from aioparallel.stores.sql.statements import Found, Owned, Statements

__all__ = ["Partitions", "Taken"]

logger = logging.getLogger(__name__)

_OF_TIME: Final = 0.8
"""Of a time-out, for waiting for locks."""
_GAP: Final = 200_000
"""Offsets that are listed, at most, between a position and the rows beside it. Where logs lose what was not read, there
may be millions, and each would be written as one that is not complete."""
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
        """See :class:`~aioparallel.group.stores.Positions`. First the epoch, which waits for the transactions of the
        owner before and shuts out its next ones; then what stands there."""
        positions: dict[TopicPartition, Committed | None] = {}
        try:
            async with asyncio.timeout(timeout), self._turn, self._engine.begin() as connection:
                owned = await self._statements.take(connection, self._group_id, partitions, timeout * _OF_TIME)
                found = await self._statements.find(connection, owned)
                for partition, one in owned.items():
                    positions[partition] = _merged(found[one.id])
                await self._fold_found(connection, owned, found, positions)
        except NO_ANSWER as error:
            told = told_of(error)
            logger.warning("Taking %d partitions over: %s", len(partitions), told, extra={"action": "take_over_failed"})
            await self._on_trouble(error)
            raise TimeoutError from error
        self._on_answer()
        for partition, one in owned.items():
            before = self.taken.get(partition)
            if before is None or before.owned.epoch < one.epoch:  # else it went, and was taken over again meanwhile
                self.taken[partition] = Taken(one, stands=positions[partition] is not None)
        return positions

    async def _fold_found(
        self,
        connection: AsyncConnection,
        owned: Mapping[TopicPartition, Owned],
        found: Mapping[int, Found],
        positions: Mapping[TopicPartition, Committed | None],
    ) -> None:
        """What is complete beside positions becomes part of them at once: a partition of which all is done has nothing
        to say later."""
        folded: dict[Owned, Committed] = {}
        said: dict[Owned, Sequence[int]] = {}
        for partition, one in owned.items():
            position, done = positions[partition], found[one.id].done
            if position is not None and done:
                folded[one], said[one] = position, _said(done, position)
        if folded:
            await self._statements.fold(connection, folded, said)

    def release(self, partition: TopicPartition) -> None:
        """See :class:`~aioparallel.group.stores.Positions`."""
        self.taken.pop(partition, None)

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """See :class:`~aioparallel.group.stores.OffsetStore`: fold what the ledgers say into the positions."""
        mine = {partition: self.taken[partition] for partition in positions if partition in self.taken}
        results: dict[TopicPartition, CommitFault | None] = dict.fromkeys(positions, CommitFault.FENCED)
        folded = {partition: _said(one.done, positions[partition]) for partition, one in mine.items()}
        try:
            async with asyncio.timeout(timeout), self._turn, self._engine.begin() as connection:
                still = await self._statements.still_owned(
                    connection, [one.owned for one in mine.values()], timeout * _OF_TIME
                )
                kept = {partition: one for partition, one in mine.items() if one.owned in still}
                await self._statements.fold(
                    connection,
                    {one.owned: positions[partition] for partition, one in kept.items()},
                    {one.owned: folded[partition] for partition, one in kept.items()},
                )
        except NO_ANSWER as error:
            told = told_of(error)
            logger.warning("Folding %d positions: %s", len(mine), told, extra={"action": "fold_failed"})
            await self._on_trouble(error)
            return {**results, **dict.fromkeys(mine, CommitFault.RETRIABLE)}
        self._on_answer()
        for partition, one in kept.items():
            gone = set(folded[partition])
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
            plain = {partition: Committed(committed.offset, "") for partition, committed in positions.items()}
            await self._client.commit(plain, generation, _LAG_TOOLS)


def _merged(found: Found) -> Committed | None:
    """Position and rows as one position; without those rows that are far above the others. Their records run again, and
    are found to be complete."""
    if found.position is None or not found.done:
        return found.position
    base, text, _ = found.position
    restored = decode_offset_map(base, text)
    fresh = [offset for offset in found.done if base <= offset <= max(restored.highest_succeeded, base - 1) + _GAP]
    if not fresh:
        return found.position
    highest = max(restored.highest_succeeded, fresh[-1])
    done = set(fresh)
    incompletes = [offset for offset in restored.incompletes if offset not in done]
    incompletes += [offset for offset in range(restored.highest_succeeded + 1, highest + 1) if offset not in done]
    first = incompletes[0] if incompletes else highest + 1
    if first > highest:
        return Committed(highest + 1, "")
    return Committed(first, encode_offset_map(first, highest, incompletes, limit=None))


def _said(done: Sequence[int], committed: Committed) -> list[int]:
    """Those of these offsets that this position calls complete."""
    is_complete = decode_offset_map(*committed[:2]).looker()
    return [offset for offset in done if is_complete(offset)]
