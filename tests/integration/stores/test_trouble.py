"""A database that is busy, slow or away, and what handlers do to their connections: nothing stands still, nothing is
written twice, and no record is to blame."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from aioparallel import FailurePolicy, Ordering, Record, RetryPolicy
from aioparallel.stores.sql import SqlStore
from aioparallel.stores.sql import store as store_module
from aioparallel.stores.sql.statements import Statements
from aioparallel.testing.memory import InMemoryBroker
from tests.support.network import Network, network_to
from tests.support.sql_stores import Ends, consumer_of, fill, rows, save

pytestmark = pytest.mark.asyncio

ONCE = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead")
"""A failure is seen."""


@pytest_asyncio.fixture
async def network(server: str) -> AsyncIterator[Network]:
    """To the PostgreSQL server."""
    async with network_to(Path(str(make_url(server).query["host"])) / ".s.PGSQL.5432") as network:
        yield network


async def run_all(broker: InMemoryBroker, engine: AsyncEngine, handle: Any, **options: Any) -> None:
    """To the end, of what there is; no connection is left in use."""
    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store, **options) as consumer:
        await consumer.run(store.handler(handle))
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_first_position_that_is_not_written_at_once(
    broker: InMemoryBroker, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers wait for it, and hold meanwhile nothing that writing it needs."""
    fill(broker, range(20))
    fold, refused = Statements.fold, list[int]()

    async def locked(statements: Statements, *given: Any) -> None:
        if len(refused) < 2:
            refused.append(1)
            raise OperationalError("INSERT", {}, Exception("database is locked"))
        await fold(statements, *given)

    monkeypatch.setattr(Statements, "fold", locked)
    await run_all(broker, engine, save)
    assert len(refused) == 2
    assert sorted(await rows(engine)) == list(range(20))


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("place", ["BEGIN", "ROLLBACK", "COMMIT"])
async def test_a_network_that_is_silent(
    broker: InMemoryBroker,
    engine: AsyncEngine,
    network: Network,
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """No answer comes, and nothing says so: what waits for one gives up, closes its connection, and the record runs
    again."""
    for name, value in (("opened._BEGIN", 0.5), ("opened._END", 0.5)):
        monkeypatch.setattr(f"aioparallel.stores.sql.{name}", value)
    url = engine.url.set(query={}).set(host="127.0.0.1", port=network.port)
    through = create_async_engine(url, pool_size=3, max_overflow=0)
    fill(broker, range(0, 12, 2))
    runs = 0

    async def handle(record: Record, connection: AsyncConnection) -> None:
        nonlocal runs
        await save(record, connection)
        runs += 1
        if runs == 3 and place != "COMMIT":
            network.silence()
            if place == "ROLLBACK":
                raise ValueError("and no way to roll it back")

    async def silence() -> None:
        network.silence()

    if place == "COMMIT":
        ends.offsets, ends.before = [3], silence
    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.02))
    await run_all(broker, through, handle, max_concurrency=2, handler_timeout=3.0, failures=failures)
    await through.dispose()
    assert sorted(await rows(engine)) == list(range(0, 12, 2))


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_a_commit_that_is_given_up_leaves_no_connection_in_use(
    broker: InMemoryBroker, engine: AsyncEngine, network: Network, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline strikes while COMMIT is not answered: its connection is closed, not given to the next record."""
    monkeypatch.setattr(store_module, "_FINISHING", 0.2)
    url = engine.url.set(query={}).set(host="127.0.0.1", port=network.port)
    through = create_async_engine(url, pool_size=3, max_overflow=0)
    fill(broker, range(0, 12, 2))

    async def silence() -> None:
        network.silence()

    ends.offsets, ends.before = [3], silence
    await run_all(broker, through, save, max_concurrency=2, handler_timeout=0.5, failures=ONCE)
    await through.dispose()
    assert sorted(await rows(engine)) == list(range(0, 12, 2))
    assert broker.records("dead") == []


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("place", ["handler", "COMMIT"])
async def test_a_connection_that_is_lost_is_no_failure_of_a_record(
    broker: InMemoryBroker, engine: AsyncEngine, ends: Ends, place: str
) -> None:
    """The server goes down while a handler uses it, or before COMMIT."""
    fill(broker, range(0, 12, 2))
    lost = list[int]()

    async def lose() -> None:
        lost.append(1)
        async with engine.connect() as another:
            await another.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
                )
            )

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await save(record, connection)
        if record.value == b"6" and place == "handler" and not lost:
            await lose()
            await connection.execute(text("SELECT 1"))

    if place == "COMMIT":
        ends.offsets, ends.before = [3], lose
    await run_all(broker, engine, handle, failures=ONCE)
    assert lost
    assert sorted(await rows(engine)) == list(range(0, 12, 2))
    assert broker.records("dead") == []


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_transactions_that_conflict_are_begun_again(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """All handlers count in one row, and the engine's level lets only one of them at a time."""
    strict = create_async_engine(engine.url, pool_size=21, isolation_level="REPEATABLE READ")
    fill(broker, range(40), key=lambda n: b"%d" % n)

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await connection.execute(text("UPDATE results SET value = value + 1"))

    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO results VALUES ('all', 0)"))
    await run_all(broker, strict, handle, failures=ONCE)
    await strict.dispose()
    assert await rows(engine) == [40]
    assert broker.records("dead") == []


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_a_file_that_another_process_reads(
    broker: InMemoryBroker, engine: AsyncEngine, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COMMIT has to wait for it, and waits no longer than the engine's time-out."""
    hasty = create_async_engine(engine.url, connect_args={"timeout": 0.1})
    fill(broker, range(0, 12, 2))
    reader = sqlite3.connect(str(engine.url.database), isolation_level=None)

    async def read() -> None:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM results").fetchone()
        asyncio.get_running_loop().call_later(0.5, reader.rollback)

    ends.offsets, ends.before = [3], read
    with closing(reader):
        await run_all(broker, hasty, save, failures=ONCE)
    await hasty.dispose()
    assert sorted(await rows(engine)) == list(range(0, 12, 2))
    assert broker.records("dead") == []


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


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_tables_that_many_make_at_once(engine: AsyncEngine) -> None:
    """Members that start together, each with an engine of its own."""
    engines = [create_async_engine(engine.url) for _ in range(8)]
    await asyncio.gather(*[SqlStore(one).create_tables() for one in engines])
    await asyncio.gather(*[one.dispose() for one in engines])
    assert await rows(engine, "SELECT value FROM aioparallel_version") == [1]
