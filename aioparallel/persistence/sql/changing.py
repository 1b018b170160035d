"""Changes the positions of a group that is stopped, for tools outside the group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from aioparallel.group.client import Committed
from aioparallel.offsets import decode_offset_map
from aioparallel.persistence.sql.schema import Schema
from aioparallel.persistence.sql.statements import Log, Owned, Statements
from aioparallel.persistence.sql.taking import Stored
from aioparallel.records.record import TopicPartition

__all__ = ["PositionsChanged", "RowsAbove", "change_positions"]

_IDLE: Final = 10.0
"""Seconds that the transaction may be idle while it locks an epoch."""
_LOCK: Final = 5.0
"""Seconds to wait for transactions of an owner that is still alive."""


class PositionsChanged(Exception):
    """A position is not what it was when the change was planned. Nothing was changed."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(partition)
        self.partition = partition


class RowsAbove(Exception):
    """Rows of completed records are so far above the position that no map includes them. Nothing was changed."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(partition, offset)
        self.partition = partition
        self.offset = offset


async def change_positions(
    engine: AsyncEngine,
    schema: Schema,
    group_id: str,
    expected: Mapping[TopicPartition, Committed],
    positions: Mapping[TopicPartition, Committed],
) -> None:
    """Write ``positions`` in one transaction, and delete the rows of records that ``expected`` includes.

    The epoch of each partition is raised first, as in a take-over: an owner that is still alive can write nothing more.
    ``expected``: what :func:`~aioparallel.persistence.sql.reading.stored_positions` has returned. Raises
    PositionsChanged if that is not stored any more, RowsAbove, and SQLAlchemy's errors.
    """
    statements = Statements(engine, schema, _IDLE)
    async with engine.begin() as connection:
        await statements.version(connection)
        owned = await statements.take(connection, group_id, list(positions), _LOCK)
        found = await statements.find(connection, owned)
        folded: dict[Owned, list[int]] = {}
        logs: dict[Owned, Log] = {}
        for partition, position in positions.items():
            one = owned[partition]
            stored = Stored.of(found[one.id])
            before, merged = expected[partition], stored.merged(b"")
            if merged is None or merged[:2] != before[:2]:
                raise PositionsChanged(partition)
            if stored.offset_map is not None:
                covered = decode_offset_map(*before[:2]).highest_succeeded
                if above := [offset for offset in stored.done if offset > covered]:
                    raise RowsAbove(partition, above[0])
            # Also those that are not in ``stored`` because the map cannot be read: with the new one they would count.
            folded[one] = list(found[one.id].done)
            highest = max(position.offset - 1, decode_offset_map(*position[:2]).highest_succeeded)
            topic_id = stored.log.topic_id if stored.log is not None else ""
            logs[one] = Log(highest, position.leader_epoch, topic_id)
        places = {owned[partition]: position for partition, position in positions.items()}
        await statements.fold(connection, places, folded, logs)
