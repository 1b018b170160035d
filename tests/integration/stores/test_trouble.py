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

from aioparallel import FailurePolicy, Record, RetryPolicy
from aioparallel.observe.health import ProblemKind
from aioparallel.persistence.sql import SqlStore, StoreNotReady
from aioparallel.persistence.sql import store as store_module
from aioparallel.persistence.sql.opened import Opening
from aioparallel.persistence.sql.schema import Schema
from aioparallel.persistence.sql.statements import Statements
from aioparallel.records.errors import PositionOutsideLog
from aioparallel.testing.memory import InMemoryBroker
from tests.support.network import Network, network_to
from tests.support.sql_stores import ONCE, Ends, consumer_of, fill, rows, run_all, save
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def network(server: str) -> AsyncIterator[Network]:
    """To the PostgreSQL server."""
    async with network_to(Path(str(make_url(server).query["host"])) / ".s.PGSQL.5432") as network:
        yield network


def through_network(engine: AsyncEngine, network: Network, **options: Any) -> AsyncEngine:
    """To the same database."""
    url = engine.url.set(query={}).set(host="127.0.0.1", port=network.port)
    return create_async_engine(url, pool_size=3, max_overflow=0, **options)


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
        monkeypatch.setattr(f"aioparallel.persistence.sql.{name}", value)
    through = through_network(engine, network)
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
    through = through_network(engine, network)
    fill(broker, range(0, 12, 2))

    async def silence() -> None:
        network.silence()

    ends.offsets, ends.before = [3], silence
    options = {"max_concurrency": 2, "handler_timeout": 0.5, "commit_interval": 30.0}
    await run_all(broker, through, save, failures=FailurePolicy(retry=RetryPolicy(first_delay=0.02)), **options)
    await through.dispose()
    assert sorted(await rows(engine)) == list(range(0, 12, 2))


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
async def test_tables_that_many_make_at_once(engine: AsyncEngine) -> None:
    """Members that start together, each with an engine of its own."""
    engines = [create_async_engine(engine.url) for _ in range(8)]
    await asyncio.gather(*[SqlStore(one).create_tables() for one in engines])
    await asyncio.gather(*[one.dispose() for one in engines])
    assert await rows(engine, "SELECT value FROM aioparallel_version") == [1]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_a_connection_that_was_given_back_is_not_closed(engine: AsyncEngine) -> None:
    """It is another one's by now."""
    one = create_async_engine(engine.url, pool_size=1, max_overflow=0)
    opening = Opening(one, Schema(), 2_000)
    connection = await opening.engine.connect()
    transaction = await opening.open(connection)
    await transaction.roll_back()
    await connection.close()
    async with one.connect() as another:
        await transaction.close()
        assert (await another.execute(text("SELECT 1"))).scalar() == 1
    await one.dispose()


# -- what is told ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_a_server_that_only_reads(
    broker: InMemoryBroker, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a failover to a standby: no record is to blame, health says so for as long, and one line does."""
    fill(broker, range(200), key=lambda n: b"%d" % n)

    async def read_only(is_it: str) -> None:
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text(f"ALTER SYSTEM SET default_transaction_read_only = {is_it}"))
            await connection.execute(text("SELECT pg_reload_conf()"))

    store = SqlStore(engine)
    await store.create_tables()
    consumer = consumer_of(broker, store, until=None, failures=ONCE)
    async with asyncio.timeout(60), consumer:
        task = asyncio.create_task(consumer.run(store.handler(save)))
        await until(lambda: consumer.health().joined)
        await until(lambda: consumer.stats().succeeded == 200)
        try:
            await read_only("on")
            fill(broker, range(200, 400), key=lambda n: b"%d" % n)
            await until(lambda: ProblemKind.DATABASE_AWAY in {one.kind for one in consumer.health().problems})
            assert not consumer.health().ready
        finally:
            await read_only("off")
        await until(lambda: consumer.stats().succeeded == 400)
        await until(lambda: not consumer.health().problems)
        assert consumer.health().ready
        consumer.stop()
        await task
    assert broker.records("dead") == []
    assert sorted(await rows(engine)) == list(range(400))
    lines = [line for line in caplog.records if getattr(line, "action", "") == "database_away"]
    assert len([line for line in lines if line.levelname == "WARNING"]) < 5


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_a_pool_that_looks_at_its_connections_in_a_silent_network(
    broker: InMemoryBroker, engine: AsyncEngine, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for ever; handlers do not."""
    monkeypatch.setattr("aioparallel.persistence.sql.kept_connections._CONNECTING", 0.5)
    through = through_network(engine, network, pool_pre_ping=True)
    fill(broker, range(0, 12, 2))
    failed = False

    async def handle(record: Record, connection: AsyncConnection) -> None:
        nonlocal failed
        await save(record, connection)
        if record.value == b"4" and not failed:
            failed = True
            asyncio.get_running_loop().call_later(0.1, network.silence)  # when it is in the pool again
            raise ValueError

    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.3))
    # No fold meanwhile: it has its own time-out, and locks that the server keeps for a while.
    await run_all(broker, through, handle, max_concurrency=1, commit_interval=30.0, failures=failures)
    await through.dispose()
    assert sorted(await rows(engine)) == list(range(0, 12, 2))


async def test_a_database_that_does_not_answer_at_the_start(broker: InMemoryBroker) -> None:
    """Is told as what it is, not as a broker."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as nobody:
        port = nobody.sockets[0].getsockname()[1]
        engine = create_async_engine(f"postgresql+asyncpg://u:secret@127.0.0.1:{port}/x", pool_size=21)
        with pytest.raises(StoreNotReady, match=rf"no database answered at .*u:\*\*\*@127.0.0.1:{port}"):
            async with asyncio.timeout(60), consumer_of(broker, SqlStore(engine), connect_timeout=1.0):
                """It does not start."""
        await engine.dispose()


# -- whose records they are -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_records_of_another_member_wait_for_it(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """However little patience there is: they are not this member's to put away."""
    fill(broker, range(20))
    store = SqlStore(engine)
    await store.create_tables()
    taken = False

    async def handle(record: Record, connection: AsyncConnection) -> None:
        nonlocal taken
        await save(record, connection)
        if record.value == b"4" and not taken:
            taken = True
            async with engine.begin() as another:
                await another.execute(text("UPDATE aioparallel_partition SET epoch = epoch + 1"))

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1, max_wait=0.1), dead_letter="dead")
    options = {"failures": policy, "max_concurrency": 1, "commit_interval": 1.0}
    async with asyncio.timeout(60), consumer_of(broker, store, **options) as consumer:
        await consumer.run(store.handler(handle))
    assert taken
    assert broker.records("dead") == []
    assert sorted(await rows(engine)) == list(range(20))


async def test_a_log_that_ends_before_the_position_ends_the_run(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Also one that would read to its end, and has nothing to read."""
    fill(broker, range(20))
    await run_all(broker, engine, save)
    broker.delete_topic("in")
    broker.create_topic("in", 2)
    fill(broker, range(4))
    with pytest.raises(PositionOutsideLog, match=r"in-\d: position 10 is outside the log"):
        await run_all(broker, engine, save)


async def test_a_table_that_is_altered_while_it_is_written(broker: InMemoryBroker, server: str) -> None:
    """Statements that were prepared before are no good any more: no failure of the records that meet them."""
    engine = create_async_engine(server, pool_size=21)
    try:
        async with engine.begin() as connection:
            for command in (
                "DROP SCHEMA public CASCADE",
                "CREATE SCHEMA public",
                "CREATE TABLE results (value INTEGER)",
            ):
                await connection.execute(text(command))
        fill(broker, range(200))
        seen: list[int] = []

        async def read_and_write(record: Record, connection: AsyncConnection) -> None:
            number = int(record.value or b"")
            await connection.execute(text("SELECT * FROM results WHERE value = :value"), {"value": number})
            await connection.execute(text("INSERT INTO results (value) VALUES (:value)"), {"value": number})
            seen.append(number)
            if len(seen) in (40, 80, 120):
                altering.append(asyncio.create_task(alter(len(seen))))

        async def alter(count: int) -> None:
            async with engine.begin() as connection:
                await connection.execute(text(f"ALTER TABLE results ADD COLUMN added_{count} INTEGER"))

        altering: list[asyncio.Task[None]] = []
        await run_all(broker, engine, read_and_write, failures=ONCE, max_concurrency=10)
        await asyncio.gather(*altering)
        assert len(altering) == 3
        assert not broker.records("dead")
        assert sorted(await rows(engine, "SELECT value FROM results")) == list(range(200))
    finally:
        await engine.dispose()
