"""What users of SQLAlchemy, asyncpg and others have reported, tried on ``SqlStore``. ``docs/testing.md`` names the
threads."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aioparallel import FailurePolicy, Record, RetryPolicy
from aioparallel.persistence.sql import SqlStore
from aioparallel.testing.memory import InMemoryBroker
from tests.support.sql_stores import consumer_of, fill, rows, run_all, save
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

IDLE = "SELECT state FROM pg_stat_activity WHERE state LIKE 'idle in%' AND pid <> pg_backend_pid()"
SOON = FailurePolicy(retry=RetryPolicy(first_delay=0.01))


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_a_deadline_within_a_statement_leaves_no_transaction(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Deadlines strike while statements run, the first of a transaction among them: what the next records write on
    these connections is committed, what was cut short is rolled back, and nothing stays open."""
    fill(broker, range(40))
    attempts: Counter[int] = Counter()

    async def handle(record: Record, connection: AsyncConnection) -> None:
        number = int(record.value or b"")
        attempts[number] += 1
        if number % 2 == 0:
            await save(record, connection)
        if attempts[number] == 1 and number % 4 < 2:
            await connection.execute(text("SELECT pg_sleep(30)"))
        if number % 2:
            await save(record, connection)

    await run_all(broker, engine, handle, max_concurrency=4, handler_timeout=0.2, failures=SOON)
    assert sorted(await rows(engine)) == list(range(40))
    assert {number: count for number, count in attempts.items() if count != 1} == {
        number: 2 for number in range(40) if number % 4 < 2
    }
    assert await rows(engine, IDLE) == []


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_a_stop_leaves_no_lock(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Handlers hold locks on rows and are cancelled by the stop: the locks are free when the block is left."""
    fill(broker, range(4))
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE locked (key INTEGER PRIMARY KEY)"))
        await connection.execute(text("INSERT INTO locked SELECT generate_series(0, 3)"))
    holding: set[int] = set()

    async def handle(record: Record, connection: AsyncConnection) -> None:
        number = int(record.value or b"")
        await connection.execute(text("SELECT key FROM locked WHERE key = :key FOR UPDATE"), {"key": number})
        holding.add(number)
        await asyncio.Event().wait()

    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store, until=None) as consumer:
        running = asyncio.create_task(consumer.run(store.handler(handle)))
        await until(lambda: len(holding) == 4)
        consumer.stop(drain=False)
        await running
    assert sorted(await rows(engine, "SELECT key FROM locked FOR UPDATE NOWAIT")) == [0, 1, 2, 3]
    assert await rows(engine, IDLE) == []
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert await rows(engine) == []
