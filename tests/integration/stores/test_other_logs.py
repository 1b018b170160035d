"""Positions in a database that belong to another log than the one that is there: a topic that was made anew, an unclean
election. Other records have the offsets of those whose results are stored, so the run ends before it handles any."""

from __future__ import annotations

import asyncio
import logging

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aioparallel import NoOffsetMap, PositionOutsideLog, Record, RetryLater
from aioparallel.persistence.sql import SqlStore
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.sql_stores import T0, consumer_of, fill, rows, rows_are, run, save
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

LOG = "SELECT record_offset, leader_epoch, topic_id FROM aioparallel_log ORDER BY partition_id"


async def execute(engine: AsyncEngine, statement: str) -> None:
    """In a transaction of its own."""
    async with engine.begin() as connection:
        await connection.execute(text(statement))


def write(broker: InMemoryBroker, count: int) -> None:
    """To partition 0 alone."""
    for number in range(count):
        broker.append("in", b"%d" % number, key=b"%d" % number, partition=0)


async def stop_behind_a_stuck_record(broker: InMemoryBroker, engine: AsyncEngine, stuck: int, *, fold: bool) -> None:
    """All records of partition 0 are done but that one. Without ``fold``, the rows of all but the first five are beside
    a position that does not tell them, as a crash leaves them."""
    store, count = SqlStore(engine), len(broker.records("in"))
    await store.create_tables()

    async def handle(record: Record, connection: AsyncConnection) -> None:
        if record.partition == 0 and record.offset == stuck:
            raise RetryLater(3600)
        await save(record, connection)

    consumer = consumer_of(broker, store, until=None, drain_timeout=0.1, max_concurrency=20)
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(store.handler(handle)))
        await until(lambda: rows_are(engine, count - 1))
        consumer.stop()
        await running
    if not fold:
        # What the last fold did is undone: the position tells 0..4.
        await execute(engine, f"UPDATE aioparallel_position SET next_offset = 5, offset_map = '' WHERE {ZERO}")
        await execute(engine, f"UPDATE aioparallel_log SET record_offset = 4 WHERE {ZERO}")
        for offset in range(5, count):
            if offset != stuck:
                await execute(
                    engine,
                    f"INSERT INTO aioparallel_done SELECT id, {offset} FROM aioparallel_partition WHERE number = 0",
                )


ZERO = "partition_id = (SELECT id FROM aioparallel_partition WHERE number = 0)"


async def test_the_log_is_stored_with_the_position(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Of the highest record that the position speaks of."""
    fill(broker, range(20))
    broker.truncate_tail(T0, 10)  # another leader, nothing lost
    fill(broker, range(20, 40))
    await run(broker, engine)
    topic_id = (broker.topic_id("in") or b"").hex()
    assert await rows(engine, LOG) == [(19, 1, topic_id), (19, 0, topic_id)]
    await run(broker, engine)
    assert len(await rows(engine)) == 40


@pytest.mark.parametrize("fold", [True, False], ids=["folded", "rows beside the position"])
@pytest.mark.parametrize("written", [10, 100])
async def test_a_log_that_was_cut_below_what_is_stored(
    broker: InMemoryBroker, engine: AsyncEngine, written: int, fold: bool
) -> None:
    """An unclean election at 3: records above have other offsets' results, or none."""
    write(broker, 60)
    await stop_behind_a_stuck_record(broker, engine, 45, fold=fold)
    broker.truncate_tail(T0, 3)
    write(broker, written)
    with pytest.raises(PositionOutsideLog, match="in-0: position"):
        await run(broker, engine)
    assert len(await rows(engine)) == 59


async def test_a_log_that_ends_below_rows_beside_the_position(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """The position is of records that are there, the rows are not."""
    write(broker, 60)
    await stop_behind_a_stuck_record(broker, engine, 45, fold=False)
    broker.truncate_tail(T0, 20)
    write(broker, 10)
    with pytest.raises(PositionOutsideLog, match="in-0: position"):
        await run(broker, engine)


async def test_another_leader_that_has_all_of_it(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """The rows beside a position may be of a later leader's records: nothing was lost, and nothing is repeated."""
    write(broker, 10)
    broker.truncate_tail(T0, 10)  # another leader, nothing lost
    write(broker, 50)
    await stop_behind_a_stuck_record(broker, engine, 45, fold=False)
    await execute(engine, f"UPDATE aioparallel_log SET leader_epoch = 0 WHERE {ZERO}")  # of record 4
    await run(broker, engine)
    assert len(await rows(engine)) == 60


@pytest.mark.parametrize("written", [5, 100])
async def test_a_topic_that_was_made_anew(broker: InMemoryBroker, engine: AsyncEngine, written: int) -> None:
    """However long it is."""
    fill(broker, range(20))
    await run(broker, engine)
    broker.delete_topic("in")
    broker.create_topic("in", 2)
    fill(broker, range(written))
    with pytest.raises(PositionOutsideLog, match=r"in-\d: position 10 is outside the log"):
        await run(broker, engine)
    assert len(await rows(engine)) == 20


async def test_nobody_tells_the_topics_id(
    broker: InMemoryBroker,
    engine: AsyncEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A position whose log is unknown is not believed before it is known."""
    fill(broker, range(20))
    await run(broker, engine)
    broker.delete_topic("in")
    broker.create_topic("in", 2)
    fill(broker, range(100))
    monkeypatch.setattr("aioparallel.persistence.sql.taking._IDS", 0.05)
    store = SqlStore(engine)
    async with asyncio.timeout(60), consumer_of(broker, store, until=None) as consumer:
        broker.faults.always(Request.METADATA, Fault(is_request_lost=True))
        running = asyncio.create_task(consumer.run(store.handler(save)))
        await until(lambda: caplog.text.count("partitions wait for their committed offsets") >= 2)
        broker.faults.heal(Request.METADATA)
        with pytest.raises(PositionOutsideLog):
            await running
    assert len(await rows(engine)) == 20


async def test_a_version_that_does_not_know_the_table(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """It has moved the position, and what the table says is of an older one: it says nothing."""
    fill(broker, range(20))
    await run(broker, engine)
    await execute(engine, "UPDATE aioparallel_log SET leader_epoch = 7, topic_id = '00'")
    await execute(engine, "UPDATE aioparallel_position SET next_offset = 9")
    await run(broker, engine)
    assert len(await rows(engine)) == 22
    assert [row[:2] for row in await rows(engine, LOG)] == [(9, 0), (9, 0)]


async def test_a_database_that_lacks_the_table(
    broker: InMemoryBroker, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """As an older version has made it: it is told, and all else goes on as before."""
    fill(broker, range(20))
    await SqlStore(engine).create_tables()
    await execute(engine, "DROP TABLE aioparallel_log")
    store = SqlStore(engine)
    with caplog.at_level(logging.WARNING, "aioparallel"):
        async with asyncio.timeout(60), consumer_of(broker, store) as consumer:
            await consumer.run(store.handler(save))
    assert len(await rows(engine)) == 20
    told = [one for one in caplog.records if getattr(one, "action", "") == "no_log_table"]
    assert ["aioparallel store init" in one.getMessage() for one in told] == [True]


async def test_a_map_that_cannot_be_read_with_rows_beside_it(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Ends the run, and is named with its partition."""
    write(broker, 10)
    await stop_behind_a_stuck_record(broker, engine, 7, fold=False)
    await execute(engine, f"UPDATE aioparallel_position SET offset_map = 'what?' WHERE {ZERO}")
    with pytest.raises(NoOffsetMap, match="in-0"):
        await run(broker, engine)
