"""Reads the positions of a group without taking partitions over, for tools outside the group."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from aioparallel.group.client import Committed
from aioparallel.persistence.sql.schema import Schema
from aioparallel.persistence.sql.statements import Owned, Statements
from aioparallel.persistence.sql.taking import Stored
from aioparallel.records.record import TopicPartition

__all__ = ["stored_positions"]

_IDLE = 10.0
"""Seconds that a transaction may be idle. Nothing is locked."""


async def stored_positions(engine: AsyncEngine, schema: Schema, group_id: str) -> dict[TopicPartition, Committed]:
    """The positions of a group with their offset maps, including the records completed since the last fold.

    Raises SQLAlchemy's errors, also if the tables do not exist.
    """
    statements, table = Statements(engine, schema, _IDLE), schema.partition
    async with engine.connect() as connection:
        await statements.version(connection)
        rows = await connection.execute(
            select(table.c.topic, table.c.number, table.c.id, table.c.epoch).where(table.c.group_id == group_id)
        )
        owned = {TopicPartition(topic, number): Owned(key, epoch) for topic, number, key, epoch in rows}
        found = await statements.find(connection, owned)
    merged = {partition: Stored.of(found[one.id]).merged(b"") for partition, one in owned.items()}
    return {partition: position for partition, position in merged.items() if position is not None}
