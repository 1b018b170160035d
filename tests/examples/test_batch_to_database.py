"""examples/batch_to_database.py: flights in PostgreSQL, each once, whatever happens on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from aioparallel import Batch, Record, Reject, batches
from aioparallel.handlers.resources import reach
from aioparallel.testing import EmbeddedBroker
from aioparallel.testing.processes.child import Child
from examples.batch_to_database import TABLE, database, save, saving
from examples.flights.flights import Flight, read_flights
from examples.flights_pipeline.filling import fill
from examples.postgres import postgres
from tests.support.kafka.reading import read_all
from tests.support.newcomer import Newcomer
from tests.support.waiting import DEADLINE, until

pytestmark = pytest.mark.timeout(60)

COUNT: Final = 10_000
BAD: Final = 2
"""Of the first 10,000 flights left more than 1,000 minutes late."""
LOCKED: Final = 5_000
"""The number of a flight whose row somebody else holds."""

Row = tuple[object, ...]


def row_of(flight: Flight) -> Row:
    """As it is to stand in the table."""
    found = json.loads(flight.value)
    names = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")
    return datetime.fromisoformat(found["time_hour"]), *(found[name] for name in names)


def is_bad(row: Row) -> bool:
    """Whether the table's CHECK refuses it."""
    delay = row[6]
    return isinstance(delay, int) and delay >= 1_000


@cache
def flights() -> list[Row]:
    """All of them. Read once, and not by processes that run other tests."""
    return [row_of(flight) for flight in read_flights(COUNT)]


def good() -> set[Row]:
    """Those that the table takes."""
    return {row for row in flights() if not is_bad(row)}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """PostgreSQL's address."""
    with postgres() as address:
        yield address


@pytest.fixture
async def table(server: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection, and the table empty."""
    connection = await asyncpg.connect(server)
    await connection.execute(f"DROP TABLE IF EXISTS flights; {TABLE}")
    yield connection
    await connection.close()


@pytest.fixture
async def broker() -> AsyncIterator[str]:
    """A broker's address, with the flights on it."""
    async with EmbeddedBroker() as broker:
        await broker.create_topic("flights", partitions=8)
        await broker.create_topic("flights.dlq", partitions=1)
        await fill(broker.bootstrap_servers, "flights", COUNT, lambda _done, _note: None)
        yield broker.bootstrap_servers


async def rows(table: asyncpg.Connection) -> list[Row]:
    """All of them."""
    return [tuple(row) for row in await table.fetch("SELECT * FROM flights")]


async def letters(servers: str) -> list[Row]:
    """Flights among the dead letters."""
    found = await read_all(servers, "flights.dlq")
    return [row_of(Flight(record.key, record.value or b"")) for record in found]


async def has_rows(table: asyncpg.Connection, least: int) -> bool:
    """Whether that many are committed."""
    return bool(await table.fetchval("SELECT count(*) >= $1 FROM flights", least))


@asynccontextmanager
async def other_holds(server: str, row: Row) -> AsyncIterator[None]:
    """Somebody else has written this row and not committed it: whoever wants to write it too waits."""
    connection = await asyncpg.connect(server)
    transaction = connection.transaction()
    await transaction.start()
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await connection.execute(f"INSERT INTO flights VALUES ({places})", *row)
    try:
        yield
    finally:
        await transaction.rollback()
        await connection.close()


async def test_as_its_comment_says(tmp_path: Path) -> None:
    """20,000 flights but two are saved, with rate; those two are dead letters; it ends by itself."""
    async with Newcomer("batch_to_database", tmp_path) as newcomer:
        program = newcomer.terminals["examples.batch_to_database"]
        said = [line async for line in program.lines()]
        await program.ended(DEADLINE)
        assert said[-2].startswith("19,998 flights saved in ")
        assert said[-1].startswith("2 given up")
        assert len(await newcomer.read("flights.dlq", BAD)) == BAD


async def test_each_flight_is_saved_once(broker: str, server: str, table: asyncpg.Connection) -> None:
    """Every good flight is a row, as it stood in its record; the bad ones, and nothing else, are dead letters."""
    consumer = saving(server, bootstrap_servers=broker)
    async with consumer:
        await consumer.run(batches(save, size=500, linger=0.05))
    found = await rows(table)
    assert len(found) == len(good()) == COUNT - BAD
    assert set(found) == good()
    assert sorted(map(str, await letters(broker))) == sorted(str(row) for row in flights() if is_bad(row))


async def test_killed_on_its_way(broker: str, server: str, table: asyncpg.Connection, tmp_path: Path) -> None:
    """Killed with a batch in the database, another one on its way and others not begun: the next process saves what is
    missing, and there is no gap."""
    arguments = (broker, server)
    async with other_holds(server, flights()[LOCKED]):
        log = tmp_path / "killed.log"
        async with Child.of_module("saving", "tests.support.children.saving", *arguments, log=log) as child:
            await until(lambda: has_rows(table, 2_000), what="2,000 rows")
            assert child.running
            await child.kill()
    assert set(await rows(table)) < good()
    log = tmp_path / "second.log"
    async with Child.of_module("saving", "tests.support.children.saving", *arguments, log=log) as child:
        await child.ended(DEADLINE)
    found = await rows(table)
    assert len(found) == len(good())
    assert set(found) == good()
    assert {str(row) for row in await letters(broker)} == {str(row) for row in flights() if is_bad(row)}


def batch_of(*values: bytes) -> Batch[Record]:
    """Records with these values."""
    return Batch.of([Record("flights", 0, offset, b"N1", value) for offset, value in enumerate(values)])


async def test_a_flight_twice_in_a_batch(server: str, table: asyncpg.Connection) -> None:
    """The last one counts; so it does in batches one after the other."""
    [flight] = read_flights(1)
    late, later = ({**json.loads(flight.value), "dep_delay": delay} for delay in (30, 60))
    async with database(server) as pool:
        reach({"database": pool})
        for values in ([flight.value, json.dumps(late).encode()], [json.dumps(later).encode()]):
            await save(batch_of(*values))
            assert [row[6] for row in await rows(table)] == [json.loads(values[-1])["dep_delay"]]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"no JSON", "invalid input syntax for type json"),
        (b"", "invalid input syntax for type json"),
        (b"{}", "null value in column"),
        (b'{"time_hour": "yesterday evening"}', "invalid input syntax for type timestamp"),
        (b"\xff", "can't decode byte 0xff"),
    ],
)
async def test_a_bad_flight(server: str, table: asyncpg.Connection, bad: bytes, problem: str) -> None:
    """Its batch is rejected with what is wrong, and changes nothing."""
    [flight] = read_flights(1)
    async with database(server) as pool:
        reach({"database": pool})
        with pytest.raises(Reject, match=problem):
            await save(batch_of(flight.value, bad))
    assert await rows(table) == []
