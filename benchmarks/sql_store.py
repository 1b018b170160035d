"""A topic into PostgreSQL with its positions: SqlStore compared with the same statements through asyncpg, in turn.

``python -m benchmarks.sql_store [--records 200000] [--rounds 3]``, with Java 17 for Apache Kafka; four minutes.

All write the same rows in the same transactions, with the same statement that checks the epoch and stores the offsets,
with as many transactions at once, in one process on uvloop. The store also reads Apache Kafka, keeps the order of keys
and folds its positions. asyncpg alone has its rows in memory: once as its documentation shows it, with
``async with pool.acquire() as connection, connection.transaction()``, and once as bare as possible, with a permanent
connection for each worker. Rates are from the first row to the last. After each round the rows are counted and summed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from aioparallel import ParallelConsumer, Record, batches
from aioparallel.event_loop.loop import quick_collections
from aioparallel.handlers.batches import Batch
from aioparallel.persistence.sql import SqlStore
from aioparallel.persistence.sql.opened import Opening
from aioparallel.persistence.sql.schema import Schema
from aioparallel.records.errors import AioparallelError
from aioparallel.testing import LocalKafka
from aioparallel.testing.filling import Message, fill
from benchmarks import kept, standalone

TOPIC: Final = "numbers"
PARTITIONS: Final = 8
CONCURRENCY: Final = 20
SIZE: Final = 100
KEYS: Final = 20_000
SINGLE: Final = 0.15
"""Part of the records for contestants that write each in a transaction of its own."""
GOAL: Final = 0.6
TIMEOUT: Final = 600.0

INSERT: Final = "INSERT INTO results (key, value) VALUES ($1, $2)"
TABLE: Final = "DROP TABLE IF EXISTS results; CREATE TABLE results (key TEXT, value BIGINT)"
CHECK: Final = "SELECT count(*), coalesce(sum(value), 0)::bigint FROM results"
Row = tuple[str, int]


class Place(NamedTuple):
    """Where the records are, and where the rows go."""

    servers: str
    address: str
    records: int

    def engine(self) -> AsyncEngine:
        """An engine with enough connections for the handlers."""
        return create_async_engine(
            self.address.replace("postgresql://", "postgresql+asyncpg://"), pool_size=CONCURRENCY + 1
        )


class Span:
    """The time from the first row to the last."""

    def __init__(self) -> None:
        self.began = 0.0
        self.ended = 0.0

    def begin(self) -> None:
        """Call it before a row is written."""
        self.began = self.began or time.perf_counter()

    def end(self) -> None:
        """Call it after a transaction."""
        self.ended = time.perf_counter()


class Problem(AioparallelError):
    """The database does not have the records of the topic."""


async def _alone(place: Place, size: int, *, bare: bool) -> float:
    engine = place.engine()
    add_done = Opening(engine, Schema(), 2_000)._add_done
    rows = [(str(number % KEYS), number) for number in range(place.records)]
    parts = iter([(place_, rows[place_ : place_ + size]) for place_ in range(0, len(rows), size)])
    span = Span()

    async def write(connection: asyncpg.Connection, first: int, part: Sequence[Row]) -> None:
        if size == 1:
            await connection.execute(INSERT, *part[0])
        else:
            await connection.executemany(INSERT, part)
        # Each transaction has records of one partition, which has its own rows in the store's tables.
        offsets = list(range(first, first + len(part)))
        told = await connection.execute(add_done, first // size % PARTITIONS + 1, 1, offsets)
        if told != f"INSERT 0 {len(part)}":
            raise Problem("asyncpg alone: the rows of its records are not there")

    async def work(pool: asyncpg.Pool) -> None:
        if not bare:
            for first, part in parts:
                async with pool.acquire() as connection, connection.transaction():
                    await write(connection, first, part)
            return
        async with pool.acquire() as connection:
            for first, part in parts:
                await connection.execute("BEGIN")
                await write(connection, first, part)
                await connection.execute("COMMIT")

    async with asyncpg.create_pool(place.address, min_size=CONCURRENCY, max_size=CONCURRENCY) as pool:
        await pool.executemany(
            "INSERT INTO aioparallel_partition (group_id, topic, number, epoch) VALUES ('alone', 'numbers', $1, 1)",
            [(number,) for number in range(PARTITIONS)],
        )
        span.begin()
        await asyncio.gather(*[work(pool) for _ in range(CONCURRENCY)])
        span.end()
    await engine.dispose()
    return place.records / (span.ended - span.began)


def _row(record: Record) -> Row:
    return (record.key or b"").decode(), int(record.value or b"")


async def _with_driver(rows: Sequence[Row], connection: AsyncConnection) -> None:
    driver: Any = (await connection.get_raw_connection()).driver_connection
    if len(rows) == 1:
        await driver.execute(INSERT, *rows[0])
    else:
        await driver.executemany(INSERT, rows)


async def _with_sqlalchemy(rows: Sequence[Row], connection: AsyncConnection) -> None:
    statement = text("INSERT INTO results (key, value) VALUES (:key, :value)")
    await connection.execute(statement, [{"key": key, "value": value} for key, value in rows])


async def _store(place: Place, write: Callable[[Sequence[Row], AsyncConnection], Awaitable[None]], size: int) -> float:
    engine, span = place.engine(), Span()
    store = SqlStore(engine)

    async def save(record: Record, connection: AsyncConnection) -> None:
        span.begin()
        await write([_row(record)], connection)

    async def save_batch(batch: Batch[Record], connection: AsyncConnection) -> None:
        span.begin()
        await write([_row(record) for record in batch], connection)

    handler = store.handler(save if size == 1 else save_batch)

    async def timed(item: Any) -> None:
        await handler(item)
        span.end()

    consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
        TOPIC if size > 1 else f"{TOPIC}-single",
        bootstrap_servers=place.servers,
        group_id=f"g{time.time_ns()}",
        max_concurrency=CONCURRENCY,
        commits=store,
        until="end",
    )
    async with consumer:
        await consumer.run(timed if size == 1 else batches(timed, size=size, linger=0.02))
    await engine.dispose()
    return place.records / (span.ended - span.began)


CONTESTANTS: Final[dict[str, dict[str, Callable[[Place], Awaitable[float]]]]] = {
    "a transaction for each record": {
        "asyncpg alone, with its pool": partial(_alone, size=1, bare=False),
        "asyncpg alone, bare": partial(_alone, size=1, bare=True),
        "SqlStore, statements of the driver": partial(_store, write=_with_driver, size=1),
        "SqlStore, statements of SQLAlchemy": partial(_store, write=_with_sqlalchemy, size=1),
    },
    f"batches of {SIZE}": {
        "asyncpg alone, with its pool": partial(_alone, size=SIZE, bare=False),
        "asyncpg alone, bare": partial(_alone, size=SIZE, bare=True),
        "SqlStore, statements of the driver": partial(_store, write=_with_driver, size=SIZE),
        "SqlStore, statements of SQLAlchemy": partial(_store, write=_with_sqlalchemy, size=SIZE),
    },
}


def _messages(records: int) -> Iterator[tuple[int, Message]]:
    for number in range(records):
        yield number % KEYS % PARTITIONS, {"key": b"%d" % (number % KEYS), "value": b"%d" % number}


async def _round(place: Place, contestant: Callable[[Place], Awaitable[float]], name: str) -> float:
    """Run on empty tables. Raises Problem unless each row exists once."""
    connection: asyncpg.Connection = await asyncpg.connect(place.address)
    try:
        await connection.execute(TABLE)
        await connection.execute("DROP TABLE IF EXISTS aioparallel_partition, aioparallel_position, aioparallel_done")
        engine = place.engine()
        await SqlStore(engine).create_tables()
        await engine.dispose()
        await connection.execute("CHECKPOINT")
        rate = await contestant(place)
        found = tuple(await connection.fetchrow(CHECK))
    finally:
        await connection.close()
    right = place.records, place.records * (place.records - 1) // 2
    if found != right:
        raise Problem(f"{name}: {found} rows and sum instead of {right}")
    return rate


async def contest(place: Place, rounds: int, say: Callable[[str], None]) -> dict[str, dict[str, list[float]]]:
    """Rates by kind and contestant. A first round does not count."""
    rates = {what: {name: list[float]() for name in them} for what, them in CONTESTANTS.items()}
    for number in range(rounds + 1):
        for what, them in CONTESTANTS.items():
            few = place._replace(records=_single(place.records)) if "each" in what else place
            for name in [*them][:: 1 if number % 2 else -1]:
                rate = await _round(few, them[name], name)
                say(f"round {number}, {what}, {name}: {rate:,.0f} rows/s")
                if number:
                    rates[what][name].append(rate)
    return rates


def _single(records: int) -> int:
    return max(1, round(records * SINGLE))


def tables_of(rates: dict[str, dict[str, list[float]]]) -> kept.Tables:
    """Medians and their parts of both ways of asyncpg, then the goals."""
    rows: list[kept.Row] = []
    goals: list[kept.Row] = []
    for what, them in rates.items():
        medians = {name: statistics.median(found) for name, found in them.items()}
        pooled, bare, driver, *_ = medians.values()
        for name, found in them.items():
            of = {"of asyncpg with its pool": medians[name] / pooled, "of it bare": medians[name] / bare}
            rows.append({"": what, "way": name, **standalone.median("rows/s", found), **of})
        goals.append(standalone.goal(f"{what}: the driver's statements / asyncpg with its pool", driver / pooled, GOAL))
    return {"Rows a second": rows, kept.GOALS: goals}


async def measure(asked: argparse.Namespace, address: str) -> kept.Tables:
    """Measure on a new Apache Kafka. Raises AioparallelError, or TimeoutError if it takes too long."""
    say = partial(print, flush=True)
    async with asyncio.timeout(TIMEOUT), LocalKafka(heap="1g", report=say) as kafka:
        for topic, count in ((TOPIC, asked.records), (f"{TOPIC}-single", _single(asked.records))):
            await kafka.create_topic(topic, PARTITIONS)
            await asyncio.to_thread(fill, kafka.bootstrap_servers, topic, _messages(count))
        place = Place(kafka.bootstrap_servers, address, asked.records)
        return tables_of(await contest(place, asked.rounds, say))


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("sql_store", __doc__)
    parser.add_argument("--records", type=int, default=200_000, help="in the topic for batches (200,000)")
    parser.add_argument("--rounds", type=int, default=3, help="that count, after one that does not (3)")
    parser.add_argument("--durable", action="store_true", help="each COMMIT synced to the disk")
    asked = parser.parse_args()
    if not (asked.records >= 1 and asked.rounds >= 1):
        parser.error("--records and --rounds from 1")
    quick_collections(CONCURRENCY)
    return standalone.run_with_postgres("sql_store", parser, asked, measure, durable=asked.durable)


if __name__ == "__main__":
    sys.exit(main())
