"""Positions read and changed by a tool, while no consumer of the group runs; and what a live owner sees of that."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from aioparallel.group.client import Committed
from aioparallel.offsets import decode_offset_map
from aioparallel.offsets.editing import completed, encode_like, reopened
from aioparallel.persistence.sql import SqlStore
from aioparallel.persistence.sql.changing import PositionsChanged, RowsAbove, change_positions
from aioparallel.persistence.sql.reading import stored_positions
from aioparallel.persistence.sql.schema import Schema
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker
from tests.support.sql_stores import ONCE, T0, consumer_of, fill, rows, run_all, save
from tests.support.waiting import until

SCHEMA = Schema()


async def run_once(engine: AsyncEngine, broker: InMemoryBroker, count: int) -> None:
    """Create the tables, and save so many records."""
    await SCHEMA.create(engine)
    fill(broker, range(count))
    await run_all(broker, engine, save)


async def changed(engine: AsyncEngine, offsets: list[int]) -> dict[TopicPartition, Committed]:
    """Let these offsets of the first partition run again. Returns the position before."""
    before = {T0: (await stored_positions(engine, SCHEMA, "g"))[T0]}
    known = reopened(decode_offset_map(*before[T0][:2]), offsets)
    after = Committed(known.base_offset, encode_like(known, "", None))
    await change_positions(engine, SCHEMA, "g", before, {T0: after})
    return before


async def test_records_run_again(engine: AsyncEngine, broker: InMemoryBroker) -> None:
    """Exactly these, and their rows are written once more; the other partition is as it was."""
    await run_once(engine, broker, 40)
    other = (await stored_positions(engine, SCHEMA, "g"))[T0._replace(partition=1)]
    before = await changed(engine, [3, 5])
    assert before[T0].offset == 20
    found = await stored_positions(engine, SCHEMA, "g")
    assert decode_offset_map(*found[T0][:2]).incompletes == (3, 5)
    assert found[T0._replace(partition=1)] == other
    await run_all(broker, engine, save)
    saved = await rows(engine, "SELECT value FROM results ORDER BY value")
    assert sorted(saved) == sorted([*range(40), 6, 10])


async def test_what_is_stored_must_be_what_was_planned_from(engine: AsyncEngine, broker: InMemoryBroker) -> None:
    """Otherwise nothing changes, not even the epoch."""
    await run_once(engine, broker, 40)
    before = await changed(engine, [3])
    epochs = await rows(engine, "SELECT epoch FROM aioparallel_partition ORDER BY number")
    with pytest.raises(PositionsChanged) as raised:
        await change_positions(engine, SCHEMA, "g", before, {T0: Committed(0, "")})
    assert raised.value.partition == T0
    assert await rows(engine, "SELECT epoch FROM aioparallel_partition ORDER BY number") == epochs


async def test_rows_that_no_map_includes_are_refused(engine: AsyncEngine, broker: InMemoryBroker) -> None:
    """They would say that a record is complete which should run again."""
    await run_once(engine, broker, 40)
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO aioparallel_done SELECT id, 900000 FROM aioparallel_partition "
                "WHERE topic = 'in' AND number = 0"
            )
        )
    with pytest.raises(RowsAbove) as raised:
        await changed(engine, [3])
    assert raised.value.offset == 900_000


async def test_a_map_that_cannot_be_read_is_replaced(engine: AsyncEngine, broker: InMemoryBroker) -> None:
    """Its rows go as well: with a map that can be read, their records would count as complete."""
    await run_once(engine, broker, 40)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE aioparallel_position SET next_offset = 10, offset_map = 'other text'"))
        await connection.execute(
            text("INSERT INTO aioparallel_done SELECT id, 15 FROM aioparallel_partition WHERE topic = 'in'")
        )
    before = {T0: (await stored_positions(engine, SCHEMA, "g"))[T0]}
    assert before[T0][:2] == (10, "other text")
    await change_positions(engine, SCHEMA, "g", before, {T0: Committed(8, "")})
    assert (await stored_positions(engine, SCHEMA, "g"))[T0][:2] == (8, "")
    left = "SELECT number FROM aioparallel_done JOIN aioparallel_partition ON partition_id = id"
    assert await rows(engine, left) == [1]


async def test_an_owner_that_is_alive_writes_nothing_more(engine: AsyncEngine, broker: InMemoryBroker) -> None:
    """The change raises the epoch, as a new owner does. The consumer takes its partitions again, and goes on from the
    new position."""
    await SCHEMA.create(engine)
    store = SqlStore(engine)
    consumer = consumer_of(broker, store, until=None, failures=ONCE)
    async with consumer:
        running = asyncio.create_task(consumer.run(store.handler(save)))
        fill(broker, range(10))
        await until(lambda: consumer.health().ready and consumer.stats().succeeded == 10)
        await consumer.commit_now()
        position = (await stored_positions(engine, SCHEMA, "g"))[T0]
        known = completed(decode_offset_map(*position[:2]), [6])
        await change_positions(
            engine, SCHEMA, "g", {T0: position}, {T0: Committed(known.base_offset, encode_like(known, "", None))}
        )
        fill(broker, range(10, 16))
        await until(lambda: consumer.stats().lag == 0, what="the new records")
        consumer.stop()
        await running
    saved = await rows(engine, "SELECT value FROM results ORDER BY value")
    # Offset 6 of the first partition, which has the value 12, was complete before it was there.
    assert sorted(saved) == [value for value in range(16) if value != 12]
