"""What handlers do with their connections, and what their errors say: who is to blame, and who is not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aioparallel import ConfigurationError, FailurePolicy, Ordering, Record, RetryLater, RetryPolicy
from aioparallel.handlers.batches import Batch, batches
from aioparallel.persistence.sql import SqlStore
from aioparallel.records.errors import ConsumerStateError
from aioparallel.testing.memory import InMemoryBroker
from tests.support.sql_stores import ONCE, consumer_of, fill, rows, run_all, save

pytestmark = pytest.mark.asyncio

CONFLICT = "DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '40001'; END $$"
SLOW = {
    "postgresql": "SELECT pg_sleep(30)",
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000000) SELECT count(*) FROM n",
}
postgresql = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_a_constraint_that_speaks_at_commit(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """It is the record's failure, and says which constraint."""
    fill(broker, range(0, 12, 2))
    told = list[str]()

    async def put_away(record: Record, error: Exception) -> None:
        told.append(f"{record.value!r} {error}")

    async def handle(record: Record, connection: AsyncConnection) -> None:
        value = b"2" if record.value == b"6" else record.value
        await connection.execute(text("INSERT INTO results VALUES ('', :value)"), {"value": int(value or b"")})

    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE results ADD UNIQUE (value) DEFERRABLE INITIALLY DEFERRED"))
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    await run_all(broker, engine, handle, failures=failures, ordering=Ordering.PARTITION)
    assert len(told) == 1
    assert "b'6'" in told[0]
    assert "results_value_key" in told[0]
    assert sorted(await rows(engine)) == [0, 2, 4, 8, 10]


async def test_a_handler_that_closes_its_connection_is_told(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Nothing of it is written, and no other handler gets into its transaction."""
    fill(broker, range(40), key=lambda n: b"%d" % n)
    told = list[str]()

    async def put_away(record: Record, error: Exception) -> None:
        told.append(str(error))

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await save(record, connection)
        if int(record.value or b"") % 4 == 0:
            await connection.close()
        await asyncio.sleep(0)

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    await run_all(broker, engine, handle, failures=failures)
    assert sorted(await rows(engine)) == [n for n in range(40) if n % 4]
    assert len(told) == 10
    assert all("the handler has closed its connection" in one for one in told)


async def test_what_a_handler_sets_is_not_for_the_next_one(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Options of its connection end with its transaction, as those of any connection do."""
    fill(broker, range(40))
    found = list[object]()

    async def handle(record: Record, connection: AsyncConnection) -> None:
        assert connection.sync_connection is not None
        found.append(connection.sync_connection.get_execution_options().get("schema_translate_map"))
        await save(record, connection)
        await connection.execution_options(schema_translate_map={None: "another"})

    await run_all(broker, engine, handle)
    assert found == [None] * 40


# -- whose fault it is ----------------------------------------------------------------------------------


async def by_sqlalchemy(connection: AsyncConnection) -> None:
    """As it is."""
    await connection.execute(text(CONFLICT))


async def by_the_driver(connection: AsyncConnection) -> None:
    """asyncpg's own error."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    await driver.execute(CONFLICT)


async def as_another_error(connection: AsyncConnection) -> None:
    """Of the handler's own kind."""
    try:
        await connection.execute(text(CONFLICT))
    except DBAPIError as error:
        raise RuntimeError("not booked") from error


async def in_a_group(connection: AsyncConnection) -> None:
    """Of a task."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(by_sqlalchemy(connection))


@postgresql
@pytest.mark.parametrize("conflict", [by_sqlalchemy, by_the_driver, as_another_error, in_a_group])
async def test_a_conflict_in_any_form_is_no_failure(
    broker: InMemoryBroker, engine: AsyncEngine, conflict: Callable[[AsyncConnection], Awaitable[None]]
) -> None:
    """The record runs again at once."""
    fill(broker, range(0, 12, 2))
    runs: Counter[bytes] = Counter()

    async def handle(record: Record, connection: AsyncConnection) -> None:
        value = record.value or b""
        runs[value] += 1
        await save(record, connection)
        if value == b"4" and runs[value] == 1:
            await conflict(connection)

    await run_all(broker, engine, handle, failures=ONCE)
    assert (runs[b"4"], broker.records("dead")) == (2, [])
    assert sorted(await rows(engine)) == list(range(0, 12, 2))


@postgresql
async def test_conflicts_that_go_on_are_told(
    broker: InMemoryBroker, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """And come less often: nothing is retried for ever in silence."""
    broker.append("in", b"1")
    runs = 0

    async def handle(record: Record, connection: AsyncConnection) -> None:
        nonlocal runs
        runs += 1
        if runs <= 10:
            await by_sqlalchemy(connection)
        await save(record, connection)

    began = asyncio.get_running_loop().time()
    await run_all(broker, engine, handle, failures=ONCE)
    assert asyncio.get_running_loop().time() - began > 2
    (told,) = [line.getMessage() for line in caplog.records if getattr(line, "action", "") == "transaction_conflict"]
    assert " offset 0 conflicts with other transactions, 10 times so far" in told


@pytest.mark.parametrize("way", ["its own time-out", "an error beside a statement"])
async def test_a_handler_that_gives_a_statement_up_has_failed(
    broker: InMemoryBroker, engine: AsyncEngine, way: str
) -> None:
    """SQLAlchemy closes the connection of a statement that is cancelled: the database is not away for that, and on
    SQLite the file is let go."""
    fill(broker, range(0, 12, 2))

    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise ValueError("a bad record")

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await save(record, connection)
        if record.value != b"4":
            return
        slow = connection.execute(text(SLOW[engine.dialect.name]))
        if way == "its own time-out":
            async with asyncio.timeout(0.2):
                await slow
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(slow)
            tasks.create_task(fails())

    began = asyncio.get_running_loop().time()
    await run_all(broker, engine, handle, failures=ONCE)
    assert asyncio.get_running_loop().time() - began < 10
    assert [record.value for record in broker.records("dead")] == [b"4"]
    assert sorted(await rows(engine)) == [0, 2, 6, 8, 10]


# -- whose connection it is -----------------------------------------------------------------------------


async def test_a_savepoint_may_come_first(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """It is inside the transaction: its rows go with it."""
    fill(broker, range(0, 12, 2))
    failed = False

    async def handle(record: Record, connection: AsyncConnection) -> None:
        nonlocal failed
        async with connection.begin_nested():
            await save(record, connection)
        if record.value == b"4" and not failed:
            failed = True
            raise ValueError

    await run_all(broker, engine, handle, failures=FailurePolicy(retry=RetryPolicy(first_delay=0.02)))
    assert failed
    assert sorted(await rows(engine)) == list(range(0, 12, 2))


async def test_a_task_that_outlives_its_handler_is_told(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """It is not in another record's transaction, and ends none."""
    fill(broker, range(0, 12, 2))
    go_on = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def late(connection: AsyncConnection) -> None:
        await go_on.wait()
        await connection.rollback()

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await save(record, connection)
        if not left:
            left.append(asyncio.create_task(late(connection)))
        elif not go_on.is_set():
            go_on.set()
            with pytest.raises(ConsumerStateError, match="the handler of this connection has ended"):
                await left[0]

    await run_all(broker, engine, handle, failures=ONCE, max_concurrency=1)
    assert sorted(await rows(engine)) == list(range(0, 12, 2))
    assert broker.records("dead") == []


async def test_a_batch_whose_handler_puts_back_what_stands_behind(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """It has written nothing for them, and said so: the others are committed together."""
    for number in range(10):
        broker.append("in", b"%d" % number, key=b"%d" % (number % 2), partition=0)
    sizes = list[int]()

    async def handle(batch: Batch[Record], connection: AsyncConnection) -> None:
        sizes.append(len(batch))
        closed = set[bytes | None]()
        for record in batch:
            if record.key in closed:
                batch.fail(record, RetryLater(0))
            elif record.value == b"4":
                closed.add(record.key)
                batch.fail(record, ValueError("bad"))
            else:
                await save(record, connection)

    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store, failures=ONCE) as consumer:
        await consumer.run(batches(store.handler(handle), size=10, linger=0.3))
    assert sizes[0] == 10
    assert sizes.count(1) <= 1
    assert sorted(await rows(engine)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [record.value for record in broker.records("dead")] == [b"4"]


# -- what is no handler ---------------------------------------------------------------------------------


async def test_what_is_no_handler(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Is refused at once, or ends the run; no record is to blame."""

    async def of_a_record(record: Record) -> None:
        """It takes no connection."""

    def plain(record: Record, connection: AsyncConnection) -> None:
        """It cannot be awaited."""

    store = SqlStore(engine)
    await store.create_tables()
    with pytest.raises(ConfigurationError, match="a record, or a batch, and a connection: too many positional"):
        store.handler(of_a_record)  # type: ignore[arg-type]
    fill(broker, range(4))
    async with asyncio.timeout(60), consumer_of(broker, store, failures=ONCE) as consumer:
        with pytest.raises(ConsumerStateError, match="returned NoneType, not an awaitable"):
            await consumer.run(store.handler(plain))  # type: ignore[arg-type]
    assert broker.records("dead") == []


async def test_a_consumer_without_a_handler_of_its_store_is_warned(
    broker: InMemoryBroker, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """What its handler writes is in no transaction of the store. And a function of a record and a connection is told
    what makes a handler of it."""

    async def of_both(record: Record, connection: AsyncConnection) -> None:
        """It takes a connection, which only the store can give."""

    async def of_a_record(record: Record) -> None:
        """It writes by itself."""

    async def warned(handle: Any, store: SqlStore) -> bool:
        caplog.clear()
        async with asyncio.timeout(60), consumer_of(broker, store) as consumer:
            await consumer.run(handle)
        return "no_store_handler" in [getattr(one, "action", "") for one in caplog.records]

    store = SqlStore(engine)
    await store.create_tables()
    fill(broker, range(4))
    with pytest.raises(ConfigurationError, match=r"one argument, the record; SqlStore.handler\(function\) makes"):
        await warned(of_both, SqlStore(engine))
    assert await warned(of_a_record, SqlStore(engine))
    assert not await warned(store.handler(of_both), store)
