"""Writes flights to PostgreSQL, 500 in a statement.

In a clone of the repository, in two terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic flights:8 --topic flights.dlq
    python -m examples.fill_flights 20000       # real ones
    python -m examples.batch_to_database        # until the end of the topic; prints rows and rate

It starts a PostgreSQL of its own, which is deleted afterwards. To look at the rows with ``psql``, pass one that stays:
``--database postgresql://...``, yours or that of ``python -m examples.postgres``.

What happens to flights:

==========================  =======================================================================================
all of a batch are valid    one statement, one commit in the database; then their offsets may be committed
one of them is invalid      the statement changes nothing; they run one by one, and only the invalid one is given up
the database is down        retried for ever with growing delays; nothing is lost or given up
killed at any time          uncommitted flights come again and overwrite themselves: ON CONFLICT DO UPDATE
==========================  =======================================================================================

Two of the first 20,000 are invalid: they left more than 1,000 minutes late, which violates the table's CHECK.
``aioparallel dlq list flights.dlq`` shows those that were given up, and why.
"""

import argparse
import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import asyncpg

from aioparallel import Batch, FailurePolicy, ParallelConsumer, Record, Reject, batches, resource
from examples.postgres import postgres

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")
STATEMENTS = 4  # at once, each on its own connection

BAD_ROW = asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, UnicodeDecodeError


async def save(batch: Batch[Record]) -> None:
    """Save all flights of a batch, or none."""
    try:
        flights = [(record.value or b"").decode() for record in batch]
        await resource("database", asyncpg.Pool).execute(SAVE, flights)
    except BAD_ROW as error:
        problem, *_values = str(error).splitlines()
        raise Reject(problem) from error  # it may be any of them: each is tried alone before it is given up


# The database parses the JSON, so nothing is decoded here; it is as fast as columns with unnest().
# DISTINCT: a flight that is in the batch twice would be an error; its last one counts. ORDER BY also locks rows in one
# order, so that two statements with the same flights cannot deadlock.
SAVE = """
    INSERT INTO flights
    SELECT DISTINCT ON (time_hour, carrier, flight) flight.*
    FROM unnest($1::json[]) WITH ORDINALITY AS record (value, number),
         json_populate_record(NULL::flights, record.value) AS flight
    ORDER BY time_hour, carrier, flight, number DESC
    ON CONFLICT (time_hour, carrier, flight) DO UPDATE SET
        tailnum = EXCLUDED.tailnum, origin = EXCLUDED.origin, dest = EXCLUDED.dest,
        dep_delay = EXCLUDED.dep_delay, arr_delay = EXCLUDED.arr_delay, distance = EXCLUDED.distance
"""

TABLE = """
    CREATE TABLE IF NOT EXISTS flights (
        time_hour timestamptz, carrier text, flight text, tailnum text, origin text NOT NULL, dest text NOT NULL,
        dep_delay integer CHECK (dep_delay < 1000), arr_delay integer, distance integer,
        PRIMARY KEY (time_hour, carrier, flight)
    )
"""


@asynccontextmanager
async def database(address: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool that is opened and closed with the consumer."""
    async with asyncpg.create_pool(address, min_size=STATEMENTS, max_size=STATEMENTS, command_timeout=60) as pool:
        await pool.execute(TABLE)
        yield pool


def saving(address: str, **options: Any) -> ParallelConsumer:
    """The consumer for a database."""
    return ParallelConsumer(
        "flights",
        group_id="flights-to-database",
        max_concurrency=STATEMENTS,  # batches
        failures=FailurePolicy(dead_letter="flights.dlq"),
        resources={"database": partial(database, address)},
        until="end",
        **options,
    )


async def run(address: str) -> None:
    """Run until the end of the topic, or Ctrl-C."""
    consumer = saving(address, bootstrap_servers=SERVERS)
    async with consumer:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, consumer.stop)
        telling = asyncio.create_task(tell(consumer))
        began = time.perf_counter()
        await consumer.run(batches(save, size=500, linger=0.05))
        seconds = time.perf_counter() - began
        telling.cancel()
        found = consumer.stats()
    print(f"{found.succeeded:,} flights saved in {seconds:.2f} s, {found.succeeded / seconds:,.0f} a second")
    print(f"{found.dead_lettered} given up: aioparallel dlq list flights.dlq")


async def tell(consumer: ParallelConsumer) -> None:
    """Print a line each second."""
    while True:
        await asyncio.sleep(1)
        found = consumer.stats()
        print(f"{found.succeeded:,} flights saved, {found.lag} to go", flush=True)


def main() -> None:
    """Use the given database, or start a temporary one."""
    parser = argparse.ArgumentParser(description="Writes flights to PostgreSQL.")
    parser.add_argument("--database", help="postgresql://..., instead of one that is started")
    given = parser.parse_args().database
    with nullcontext(given) if given else postgres() as address, suppress(KeyboardInterrupt):
        asyncio.run(run(address))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    main()
