"""A topic into PostgreSQL, 500 flights in a statement: a plain aiokafka loop and batches, checked, in turn.

``python -m benchmarks.database [--records 100000] [--rounds 3]``, with Java 17 for Apache Kafka; four minutes at most.

Both run the handler's statement of ``examples/batch_to_database.py`` in one process on uvloop, and each commit of the
database is synced to disk. The plain loop awaits one statement after the other and commits the offsets of each. Batches
run four statements at once, or one, which shows their overhead. After each round all rows are compared with the records
by count and checksum.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import asyncpg
from aiokafka import AIOKafkaConsumer

from aioparallel import Ordering, ParallelConsumer, batches
from aioparallel.event_loop.loop import quick_collections
from aioparallel.records.errors import AioparallelError
from aioparallel.testing import LocalKafka
from aioparallel.testing.filling import Message, fill
from benchmarks import standalone
from benchmarks.kept import GOALS, Row, Tables
from examples.batch_to_database import SAVE, STATEMENTS, TABLE, database, save
from examples.flights.flights import FLIGHTS, read_flights

TOPIC: Final = "flights"
PARTITIONS: Final = 8
SIZE: Final = 500
"""Flights in a statement."""
GOAL: Final = 0.7
"""Part of the plain loop's rate."""
TIMEOUT: Final = 240.0
"""Seconds for the whole run."""

# Without the table's CHECK: five flights of the year violate it, which would end the plain loop.
UNCHECKED: Final = "ALTER TABLE flights DROP CONSTRAINT IF EXISTS flights_dep_delay_check"
# Independent of the order of rows.
CHECKSUM: Final = """
    SELECT count(*), coalesce(sum(hashtextextended(flights::text, 0)::numeric), 0) FROM flights
"""


class Place(NamedTuple):
    """Where the records are, and where the rows go."""

    servers: str
    address: str
    records: int


class Problem(AioparallelError):
    """The database does not have the records of the topic."""


async def plain(place: Place, group: str) -> None:
    """Lists of 500, one statement after the other, with a commit of offsets after each."""
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=place.servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    saved = 0
    async with database(place.address) as pool, consumer:
        while saved < place.records:
            found = await consumer.getmany(timeout_ms=1_000, max_records=SIZE)
            flights = [record.value.decode() for records in found.values() for record in records]
            if flights:
                await pool.execute(SAVE, flights)
                await consumer.commit()
                saved += len(flights)


async def batched(place: Place, group: str, ordering: Ordering, statements: int = STATEMENTS) -> None:
    """ParallelConsumer as in the example."""
    consumer = ParallelConsumer(
        TOPIC,
        bootstrap_servers=place.servers,
        group_id=group,
        ordering=ordering,
        max_concurrency=statements,
        resources={"database": partial(database, place.address)},
        until="end",
    )
    async with consumer:
        await consumer.run(batches(save, size=SIZE, linger=0.05))


CONTESTANTS: Final[dict[str, Callable[[Place, str], Awaitable[None]]]] = {
    "aiokafka getmany, a statement at a time": plain,
    "batches, by key": partial(batched, ordering=Ordering.KEY),
    "batches, by key, a statement at a time": partial(batched, ordering=Ordering.KEY, statements=1),
    "batches, unordered": partial(batched, ordering=Ordering.UNORDERED),
}


def messages(records: int) -> Iterator[tuple[int, Message]]:
    """Flights with their partitions: by key; those without one in turn."""
    turns = itertools.count()
    for key, value in read_flights(records):
        partition = (next(turns) if key is None else hash_of(key)) % PARTITIONS
        yield partition, {"key": key, "value": value}


def hash_of(key: bytes) -> int:
    """A hash that is the same in each process."""
    return int.from_bytes(key, "big") % 2**31 % 8_191


async def emptied(connection: asyncpg.Connection) -> None:
    """Recreate the table before a round, and write out what the round before has left."""
    await connection.execute(f"DROP TABLE IF EXISTS flights; {TABLE}; {UNCHECKED}")
    await connection.execute("CHECKPOINT")


async def expected(connection: asyncpg.Connection, records: int) -> tuple[int, int]:
    """Count and checksum of the correct rows, by inserting them directly."""
    await emptied(connection)
    flights = read_flights(records)
    while some := list(itertools.islice(flights, 5_000)):
        await connection.execute(SAVE, [flight.value.decode() for flight in some])
    return await seen(connection)


async def seen(connection: asyncpg.Connection) -> tuple[int, int]:
    """Count and checksum of the existing rows."""
    count, checksum = await connection.fetchrow(CHECKSUM)
    return count, int(checksum)


async def contest(place: Place, rounds: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Rates by contestant. A first round does not count. Raises Problem."""
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    async with asyncpg.create_pool(place.address, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        right = await expected(connection, place.records)
        for number in range(rounds + 1):
            for name in [*CONTESTANTS][:: 1 if number % 2 else -1]:
                await emptied(connection)
                began = time.perf_counter()
                await CONTESTANTS[name](place, f"round-{number}-{name}")
                rate = place.records / (time.perf_counter() - began)
                if (found := await seen(connection)) != right:
                    raise Problem(f"{name}: {found} rows and checksum instead of {right}")
                say(f"round {number}, {name}: {rate:,.0f} rows/s")
                if number:
                    rates[name].append(rate)
    return rates


def tables_of(rates: dict[str, list[float]]) -> Tables:
    """Medians and their parts of the plain loop's rate, then the goal."""
    medians = {name: statistics.median(found) for name, found in rates.items()}
    plainly, *ours = medians.values()
    rows: list[Row] = [
        {"": name, **standalone.median("rows/s", found), "of the plain loop": medians[name] / plainly}
        for name, found in rates.items()
    ]
    goal = standalone.goal(
        f"statements of {SIZE} flights: the slowest of ours / a plain loop", min(ours) / plainly, GOAL
    )
    return {"Rows a second": rows, GOALS: [goal]}


async def measure(asked: argparse.Namespace, address: str) -> Tables:
    """Measure on a new Apache Kafka. Raises AioparallelError, or TimeoutError if it takes too long."""
    say = partial(print, flush=True)
    async with asyncio.timeout(TIMEOUT), LocalKafka(heap="1g", report=say) as kafka:
        await kafka.create_topic(TOPIC, PARTITIONS)
        await asyncio.to_thread(fill, kafka.bootstrap_servers, TOPIC, messages(asked.records))
        return tables_of(await contest(Place(kafka.bootstrap_servers, address, asked.records), asked.rounds, say))


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("database", __doc__)
    parser.add_argument("--records", type=int, default=100_000, help=f"flights, at most {FLIGHTS:,} (100,000)")
    parser.add_argument("--rounds", type=int, default=3, help="that count, after one that does not (3)")
    asked = parser.parse_args()
    if not (1 <= asked.records <= FLIGHTS and asked.rounds >= 1):
        parser.error(f"--records from 1 to {FLIGHTS}, --rounds from 1")
    quick_collections(STATEMENTS)
    return standalone.run_with_postgres("database", parser, asked, measure, durable=True)


if __name__ == "__main__":
    sys.exit(main())
