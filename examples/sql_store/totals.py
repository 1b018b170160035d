"""Counts flights and minutes of delay by carrier, in PostgreSQL, each flight once.

In a clone of the repository, in two terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic flights:8
    python -m examples.fill_flights 20000       # real ones
    python -m examples.sql_store.totals         # until the end of the topic; prints the totals

It starts a PostgreSQL of its own, which is deleted afterwards. With one that stays (``python -m examples.postgres``)
and ``--database postgresql://...`` it may be killed at any time and started again: ``minutes = minutes + 5`` must not
be repeated, and is not, as the position is written in the same transaction.
"""

import argparse
import asyncio
import json
import logging
import os
from collections import Counter
from contextlib import nullcontext, suppress

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from aioparallel import Batch, ParallelConsumer, Record, batches
from aioparallel.stores.sql import SqlStore
from examples.postgres import postgres

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")
TRANSACTIONS = 4  # at once, each on its own connection

TABLE = "CREATE TABLE IF NOT EXISTS carriers (carrier text PRIMARY KEY, flights integer, minutes integer)"
ADD = text("""
    INSERT INTO carriers VALUES (:carrier, :flights, :minutes)
    ON CONFLICT (carrier) DO UPDATE
    SET flights = carriers.flights + excluded.flights, minutes = carriers.minutes + excluded.minutes
""")


async def add(batch: Batch[Record], connection: AsyncConnection) -> None:
    """One transaction for some hundred flights: their totals, and that they are done."""
    flights: Counter[str] = Counter()
    minutes: Counter[str] = Counter()
    for record in batch:
        flight = json.loads(record.value or b"{}")
        flights[flight["carrier"]] += 1
        minutes[flight["carrier"]] += flight["arr_delay"] or 0
    # In one order, so that two transactions with the same carriers cannot deadlock.
    for carrier in sorted(flights):
        values = {"carrier": carrier, "flights": flights[carrier], "minutes": minutes[carrier]}
        await connection.execute(ADD, values)


async def run(engine: AsyncEngine) -> None:
    """Run until the end of the topic."""
    store = SqlStore(engine)
    await store.create_tables()
    async with engine.begin() as connection:
        await connection.execute(text(TABLE))
    consumer = ParallelConsumer[bytes | None, bytes](
        "flights",
        bootstrap_servers=SERVERS,
        group_id="totals",
        commits=store,
        max_concurrency=TRANSACTIONS,
        until="end",
        session_timeout=10.0,
    )
    async with consumer:
        await consumer.run(batches(store.handler(add), size=200, linger=0.05))
    async with engine.connect() as connection:
        for carrier, flights, minutes in await connection.execute(text("SELECT * FROM carriers ORDER BY carrier")):
            print(f"{carrier:3} {flights:7,} flights {minutes:9,} minutes late")


async def main(address: str) -> None:
    """Run with a database."""
    engine = create_async_engine(address.replace("postgresql://", "postgresql+asyncpg://"), pool_size=TRANSACTIONS + 1)
    try:
        await run(engine)
    finally:
        await engine.dispose()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(description="Counts flights by carrier in PostgreSQL, each once.")
    parser.add_argument("--database", help="postgresql://..., instead of one that is started")
    given = parser.parse_args().database
    with nullcontext(given) if given else postgres() as found, suppress(KeyboardInterrupt):
        asyncio.run(main(found))
