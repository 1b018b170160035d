"""Positions and results in one database transaction, on PostgreSQL and SQLite; the brokers are in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, StaticPool

from aioparallel import (
    ConfigurationError,
    FailurePolicy,
    NoOffsetMap,
    Outgoing,
    ParallelConsumer,
    PositionOutsideLog,
    Record,
    Reject,
    RetryLater,
    RetryPolicy,
)
from aioparallel.handlers.batches import Batch, batches
from aioparallel.persistence.sql import SqlStore, StoreNotReady, schema_statements
from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.sql_stores import POSITIONS, T0, consumer_of, fill, rows, rows_are, run, save, save_batch
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


async def test_results_and_positions_are_there(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Each record once; the positions are folded, and the group is told for those who look at lag."""
    fill(broker, range(200))
    await run(broker, engine)
    assert sorted(await rows(engine)) == list(range(200))
    assert await rows(engine, POSITIONS) == [(0, 100, "", 1), (1, 100, "", 1)]
    assert await rows(engine, "SELECT * FROM aioparallel_done") == []
    assert {partition.partition: found.offset for partition, found in broker.group("g").offsets.items()} == {
        0: 100,
        1: 100,
    }


async def test_what_the_group_was_not_told_is_told_again(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """A commit to Kafka may be lost, or have the epoch of before a rebalance. Nothing more comes, so that no later one
    follows: lag tools, and members that wait for the others' ends, would see the old offset for ever."""
    fill(broker, range(20))
    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store, until=None) as consumer:
        broker.faults.always(Request.COMMIT, Fault(error=ErrorCode.STALE_MEMBER_EPOCH))
        running = asyncio.create_task(consumer.run(store.handler(save)))
        await until(lambda: [one.committed for one in consumer.stats().partitions] == [10, 10])
        broker.faults.heal()
        await until(lambda: [one.offset for one in broker.group("g").offsets.values()] == [10, 10])
        consumer.stop()
        await running


async def test_what_fails_writes_nothing(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Neither a row nor a position; it is tried again, and put away in the end."""
    fill(broker, range(20))

    async def handle(record: Record, connection: AsyncConnection) -> Outgoing | None:
        await save(record, connection)
        number = int(record.value or b"")
        if number == 3:
            raise Reject("no")
        if number % 5 == 0 and record.attempt < 3:
            raise ValueError("later")
        return Outgoing("out", record.value) if number % 2 else None

    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.02, multiplier=1), dead_letter="dead")
    await run(broker, engine, handle, failures=failures)
    assert sorted(await rows(engine)) == [number for number in range(20) if number != 3]
    assert [record.value for record in broker.records("dead")] == [b"3"]
    assert {record.value for record in broker.records("out")} == {b"%d" % n for n in range(1, 20, 2) if n != 3}
    assert [one[:3] for one in await rows(engine, POSITIONS)] == [(0, 10, ""), (1, 10, "")]


async def test_what_is_done_is_found_without_a_fold(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """A member is gone before it folds anything: whoever takes over runs only what is not done. One that is stuck
    keeps its place."""
    fill(broker, range(40), key=lambda number: b"%d" % number)
    store = SqlStore(engine)
    await store.create_tables()

    async def some(record: Record, connection: AsyncConnection) -> None:
        if int(record.value or b"") in (4, 5, 30):
            raise RetryLater(60)
        await save(record, connection)

    consumer = consumer_of(broker, store, until=None, commit_interval=30.0, drain_timeout=0.1)
    async with asyncio.timeout(60):
        await consumer.__aenter__()
        running = asyncio.ensure_future(consumer.run(store.handler(some)))
        await until(lambda: rows_are(engine, 37))
        partitions = store._partitions
        assert partitions is not None

        async def lost(*given: object) -> dict[Any, Any]:
            return {}

        partitions.commit = lost  # type: ignore[method-assign, assignment]
        running.cancel()
        await asyncio.wait([running])
        await consumer.__aexit__(None, None, None)
    assert len(await rows(engine, "SELECT * FROM aioparallel_done")) == 37
    runs: Counter[int] = Counter()

    async def rest(record: Record, connection: AsyncConnection) -> None:
        runs[int(record.value or b"")] += 1
        await save(record, connection)

    await run(broker, engine, rest)
    assert runs == {4: 1, 5: 1, 30: 1}
    assert sorted(await rows(engine)) == list(range(40))
    assert await rows(engine, POSITIONS) == [(0, 20, "", 2), (1, 20, "", 2)]


async def test_what_is_done_is_folded_at_a_take_over(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Where all of a partition is done there is nothing to say later; its position says it at once."""
    fill(broker, range(4))
    await run(broker, engine)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE aioparallel_position SET next_offset = 0"))
        await connection.execute(
            text(
                "INSERT INTO aioparallel_done SELECT partition_id, n FROM aioparallel_position, (SELECT 0 AS n UNION "
                "SELECT 1) AS numbers"
            )
        )
    await run(broker, engine)
    assert sorted(await rows(engine)) == list(range(4))
    assert await rows(engine, POSITIONS) == [(0, 2, "", 2), (1, 2, "", 2)]
    assert await rows(engine, "SELECT * FROM aioparallel_done") == []


async def test_an_older_epoch_writes_nothing(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """The partition is taken over while a handler is in its transaction: what it has written is rolled back, and it
    is no failure of its record."""
    fill(broker, range(2))
    store = SqlStore(engine)
    await store.create_tables()
    fenced: list[int] = []

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await save(record, connection)
        if not fenced and record.partition == 0:
            fenced.append(record.attempt)
            owned = store._partitions.taken[T0].owned  # type: ignore[union-attr]
            # As a take-over does; in the same transaction, so that SQLite can do it, too.
            await connection.execute(
                text("UPDATE aioparallel_partition SET epoch = epoch + 1 WHERE id = :id"), {"id": owned.id}
            )

    consumer = consumer_of(broker, store, failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead"))
    async with asyncio.timeout(60), consumer:
        await consumer.run(store.handler(handle))
    assert sorted(await rows(engine)) == [0, 1]
    assert broker.records("dead") == []
    assert consumer.stats().failed_attempts == 0


async def test_whoever_is_shut_out_by_mistake_joins_again(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Somebody has raised the epoch, and the group knows nothing of it: the member joins again, and takes over."""
    fill(broker, range(4))
    store = SqlStore(engine)
    await store.create_tables()
    consumer = consumer_of(broker, store, until=None)
    async with asyncio.timeout(60), consumer:
        running = asyncio.ensure_future(consumer.run(store.handler(save)))
        await until(lambda: rows_are(engine, 4))
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE aioparallel_partition SET epoch = epoch + 1"))
        fill(broker, range(4, 8))
        await until(lambda: rows_are(engine, 8))
        consumer.stop()
        await running
    assert sorted(await rows(engine)) == list(range(8))
    assert consumer.stats().failed_attempts == 0


async def test_connections_that_the_server_has_closed(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Between two records: the next ones are made anew, and no record has failed."""
    if engine.dialect.name == "sqlite":
        return
    fill(broker, range(40))
    store = SqlStore(engine)
    await store.create_tables()
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead")
    consumer = consumer_of(broker, store, until=None, failures=failures)
    async with asyncio.timeout(60), consumer:
        running = asyncio.ensure_future(consumer.run(store.handler(save)))
        await until(lambda: rows_are(engine, 40))
        async with engine.begin() as connection:
            await connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )
            )
        fill(broker, range(40, 80))
        await until(lambda: rows_are(engine, 80))
        consumer.stop()
        await running
    assert sorted(await rows(engine)) == list(range(80))
    assert broker.records("dead") == []
    assert await rows(engine, "SELECT state FROM pg_stat_activity WHERE state LIKE 'idle in%'") == []


async def test_the_engines_isolation_level_is_kept(broker: InMemoryBroker, server: str, engine: AsyncEngine) -> None:
    """For what handlers write."""
    if engine.dialect.name == "sqlite":
        return
    strict = create_async_engine(server, pool_size=21, isolation_level="SERIALIZABLE")
    fill(broker, range(2))
    levels: list[object] = []

    async def handle(_record: Record, connection: AsyncConnection) -> None:
        levels.append((await connection.execute(text("SHOW transaction_isolation"))).scalar())

    await run(broker, strict, handle, failures=FailurePolicy(retry=RetryPolicy(first_delay=0.02)))
    await strict.dispose()
    assert set(levels) == {"serializable"}


async def test_batches_share_a_transaction(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """All of a batch, or nothing."""
    fill(broker, range(300))
    sizes: list[int] = []

    async def handle(batch: Batch[Record], connection: AsyncConnection) -> None:
        sizes.append(len(batch))
        await save_batch(batch, connection)
        if any(record.value == b"100" and record.attempt == 1 for record in batch):
            raise ValueError("once")

    store = SqlStore(engine)
    await store.create_tables()
    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.02))
    async with asyncio.timeout(60), consumer_of(broker, store, failures=failures) as consumer:
        await consumer.run(batches(store.handler(handle), size=50, linger=0.05))
    assert sorted(await rows(engine)) == list(range(300))
    assert max(sizes) > 10
    assert [one[:3] for one in await rows(engine, POSITIONS)] == [(0, 150, ""), (1, 150, "")]


async def test_what_stands_behind_a_failed_one_is_not_written_with_its_batch(
    broker: InMemoryBroker, engine: AsyncEngine
) -> None:
    """It runs again, and its rows are in the same transaction: so nothing of that is committed."""
    fill(broker, range(10), key=lambda number: b"k%d" % (number % 2))

    async def handle(batch: Batch[Record], connection: AsyncConnection) -> None:
        for record in batch:
            if record.value == b"2" and record.attempt == 1:
                batch.fail(record, ValueError("once"))
            else:
                await save(record, connection)

    store = SqlStore(engine)
    await store.create_tables()
    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.02))
    async with asyncio.timeout(60), consumer_of(broker, store, failures=failures) as consumer:
        await consumer.run(batches(store.handler(handle), size=10, linger=0.2))
    assert sorted(await rows(engine)) == list(range(10))


async def told(
    broker: InMemoryBroker, engine: AsyncEngine, ends: Callable[[AsyncConnection], Awaitable[object]]
) -> None:
    """A handler that ends its transaction so is told that the store does that; nothing says that its record is
    complete."""
    fill(broker, range(1))
    errors: list[str] = []

    async def put_away(_record: Record, error: Exception) -> None:
        errors.append(str(error))

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await save(record, connection)
        await ends(connection)

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    await run(broker, engine, handle, failures=failures)
    assert ["has ended its transaction itself" in error for error in errors] == [True]
    assert await rows(engine, "SELECT * FROM aioparallel_done") == []


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_handler_that_ends_the_transaction_is_told(
    broker: InMemoryBroker, engine: AsyncEngine, is_committed: bool
) -> None:
    """By SQLAlchemy's own methods."""
    await told(broker, engine, lambda connection: connection.commit() if is_committed else connection.rollback())


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_a_handler_that_ends_it_below_sqlalchemy_is_told(
    broker: InMemoryBroker, engine: AsyncEngine, statement: str
) -> None:
    """As SQL."""
    if engine.dialect.name == "sqlite":
        return
    await told(broker, engine, lambda connection: connection.execute(text(statement)))


async def test_a_log_that_was_truncated_ends_the_run(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """What is complete by the table may be other records now."""
    fill(broker, range(20))
    await run(broker, engine)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE aioparallel_position SET next_offset = 50"))
    with pytest.raises(PositionOutsideLog, match=r"in-\d: position 50 is outside the log"):
        await run(broker, engine, until=None)


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_sqlite_in_autocommit_is_refused(engine: AsyncEngine) -> None:
    """However it was asked for: nothing would be one transaction."""
    for other in (
        engine.execution_options(isolation_level="AUTOCOMMIT"),
        create_async_engine(engine.url, isolation_level="AUTOCOMMIT"),
    ):
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            SqlStore(other)


async def test_outputs_of_batches_leave_before_their_transaction_ends(
    broker: InMemoryBroker, engine: AsyncEngine
) -> None:
    """Those of single records, and those of the batch as a whole; each stands in its topic once, as the rows do."""
    fill(broker, range(40))

    async def each(batch: Batch[Record], connection: AsyncConnection) -> dict[Record, Outgoing]:
        await save_batch(batch, connection)
        return {record: Outgoing("out", record.value, record.key) for record in batch}

    async def whole(batch: Batch[Record], connection: AsyncConnection) -> Outgoing:
        await save_batch(batch, connection)
        return Outgoing("out", b" ".join(record.value or b"" for record in batch))

    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store) as consumer:
        await consumer.run(batches(store.handler(each), size=5))
    assert sorted(int(record.value or b"") for record in broker.records("out")) == list(range(40))
    fill(broker, range(40, 60))
    store = SqlStore(engine)
    async with asyncio.timeout(60), consumer_of(broker, store) as consumer:
        await consumer.run(batches(store.handler(whole), size=5))
    later = b" ".join(record.value or b"" for record in broker.records("out")[40:])
    assert sorted(map(int, later.split())) == list(range(40, 60))
    assert sorted(await rows(engine)) == list(range(60))


async def test_sqlite_of_one_connection_is_refused() -> None:
    """Folds would commit what handlers have not ended."""
    with pytest.raises(ConfigurationError, match="use a file for SQLite"):
        SqlStore(create_async_engine("sqlite+aiosqlite://"))


async def test_savepoints_are_the_handlers_own(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """What is rolled back to one is not there, what came before it is."""
    fill(broker, range(6))

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await save(record, connection)
        with contextlib.suppress(ValueError):
            async with connection.begin_nested():
                await connection.execute(text("INSERT INTO results VALUES ('no', -1)"))
                raise ValueError

    await run(broker, engine, handle)
    assert sorted(await rows(engine)) == list(range(6))


async def test_an_error_that_a_handler_has_swallowed(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """On PostgreSQL the transaction has failed with its statement: nothing of it is taken for complete."""
    if engine.dialect.name == "sqlite":
        return  # where the other statements stand
    fill(broker, range(2))
    runs: Counter[int] = Counter()

    async def handle(record: Record, connection: AsyncConnection) -> None:
        runs[record.partition] += 1
        await save(record, connection)
        if runs[record.partition] == 1:
            with contextlib.suppress(Exception):
                await connection.execute(text("SELECT nonsense"))

    await run(broker, engine, handle, failures=FailurePolicy(retry=RetryPolicy(first_delay=0.02)))
    assert sorted(await rows(engine)) == [0, 1]
    assert runs == {0: 2, 1: 2}


async def test_a_users_own_constraint_is_a_failure_of_the_record(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """And no sign that it is complete."""
    async with engine.begin() as connection:
        await connection.execute(text("CREATE UNIQUE INDEX once ON results (key)"))
    fill(broker, range(4), key=lambda number: b"same" if number in (1, 3) else b"%d" % number)
    errors: list[Exception] = []

    async def put_away(_record: Record, error: Exception) -> None:
        errors.append(error)

    await run(broker, engine, failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away))
    assert sorted(await rows(engine)) == [0, 1, 2]
    assert [type(error) for error in errors] == [IntegrityError]


async def test_tables_that_are_not_there(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Are told before anything is read, with what makes them; another version, too."""
    store = SqlStore(engine)
    with pytest.raises(StoreNotReady, match="aioparallel store init"):
        async with consumer_of(broker, store):
            pass
    await store.create_tables()
    await store.create_tables()
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE aioparallel_version SET value = 7"))
    with pytest.raises(StoreNotReady, match="of version 7, and this needs 1"):
        async with consumer_of(broker, SqlStore(engine)):
            pass


async def test_a_map_that_cannot_be_read_ends_the_run(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """Without it results would be written twice."""
    fill(broker, range(4))
    await run(broker, engine)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE aioparallel_position SET offset_map = 'what?'"))
    with pytest.raises(NoOffsetMap):
        await run(broker, engine)


async def test_options(broker: InMemoryBroker, server: str) -> None:
    """What cannot be is refused when it is made."""
    engine = create_async_engine(server, pool_size=5, max_overflow=5)
    with pytest.raises(ConfigurationError, match="at most 10: lower it to 9"):
        consumer_of(broker, SqlStore(engine), max_concurrency=10)
    store = SqlStore(engine)
    consumer = consumer_of(broker, store, max_concurrency=8)
    consumer.max_concurrency = 9
    with pytest.raises(ConfigurationError, match="at most 10: lower it to 9"):
        consumer.max_concurrency = 10
    assert consumer.max_concurrency == 9
    with pytest.raises(ConfigurationError, match="another consumer's already"):
        consumer_of(broker, store, max_concurrency=9)
    with pytest.raises(ConfigurationError, match="ASCII letters"):
        SqlStore(engine, prefix="x; drop")
    with pytest.raises(ConfigurationError, match="at most 50"):
        SqlStore(engine, prefix=51 * "x")
    with pytest.raises(ConfigurationError, match="schema='a:b'"):
        SqlStore(engine, schema="a:b")
    for unlimited in ({"pool_size": 0}, {"max_overflow": -1}, {"poolclass": NullPool}):
        consumer_of(broker, SqlStore(create_async_engine(server, **unlimited)), max_concurrency=1_000)
    with pytest.raises(ConfigurationError, match="has a single connection"):
        SqlStore(create_async_engine(server, poolclass=StaticPool))
    with pytest.raises(ConfigurationError, match="must have one of READ COMMITTED, REPEATABLE READ, SERIALIZABLE"):
        SqlStore(create_async_engine(server, isolation_level="REPEATABLE_READ"))
    with pytest.raises(ConfigurationError, match="must be an AsyncEngine"):
        SqlStore("postgresql://")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="an Extension with a commit_strategy"):
        ParallelConsumer("in", group_id="g", commits="yes")  # type: ignore[arg-type]
    assert len(schema_statements("postgresql")) == len(schema_statements("sqlite")) == 6
    with pytest.raises(ConfigurationError, match="must be one of postgresql, sqlite"):
        schema_statements("oracle")


async def test_new_partitions_are_those_above_the_positions_of_the_store(
    broker: InMemoryBroker, engine: AsyncEngine
) -> None:
    """With "latest" their first records are handled, whatever the group's own offsets say; a position that is missing
    below others is no new partition's."""
    fill(broker, range(20))

    async def resume(*, expected: int) -> None:
        store = SqlStore(engine)
        await store.create_tables()
        async with asyncio.timeout(60), consumer_of(broker, store, until=None, auto_offset_reset="latest") as consumer:
            running = asyncio.create_task(consumer.run(store.handler(save)))
            await until(lambda: rows_have(expected))
            consumer.stop()
            await running

    async def rows_have(expected: int) -> bool:
        return len(await rows(engine, POSITIONS)) == expected and len(await rows(engine)) == 5 * max(0, expected - 2)

    await resume(expected=2)
    broker.group("g").offsets.clear()
    broker.add_partitions("in", 3)
    for number in range(5):
        broker.append("in", b"%d" % number, partition=2)
    await resume(expected=3)
    assert sorted(await rows(engine)) == [0, 1, 2, 3, 4]
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "DELETE FROM aioparallel_position WHERE partition_id IN (SELECT id FROM aioparallel_partition "
                "WHERE number = 1)"
            )
        )
    fill(broker, range(100, 120))
    store = SqlStore(engine)
    async with asyncio.timeout(60), consumer_of(broker, store, auto_offset_reset="latest") as consumer:
        await consumer.run(store.handler(save))
    assert sorted(await rows(engine)) == [0, 1, 2, 3, 4, *range(100, 120, 2)]
