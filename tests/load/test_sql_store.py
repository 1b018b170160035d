"""Members that write into PostgreSQL with their positions, killed, frozen, joining and leaving, and the server
restarted. All of it: ``make load-sql``."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aioparallel.persistence.sql import SqlStore
from aioparallel.testing import LocalKafka
from aioparallel.testing.processes.child import Child
from aioparallel.testing.pytest_plugin import TopicMaker
from examples.postgres import PostgresServer, postgres_server
from tests.support.kafka.filling import fill, fill_numbered, numbered
from tests.support.members.freezing import feed_until_frozen
from tests.support.members.restless import Restless
from tests.support.waiting import until

pytestmark = pytest.mark.real

MODULE = "tests.support.children.sql"
PARTITIONS, KEYS = 8, 1_000
PLACES = (
    "epoch",
    *[pytest.param(one, marks=pytest.mark.slow) for one in ("folding", "first", "commit", "committing", "taking")],
)
TABLE = "CREATE TABLE results (id BIGINT GENERATED ALWAYS AS IDENTITY, key TEXT, number INTEGER, member TEXT)"
TAKE_OVER = 6.0 + 10.0
"""Seconds: the session of the frozen one, and what its transaction may hold up, with a busy machine's margin."""
Small = pytest.param(6_000, 2.0, 2, 1, id="small", marks=pytest.mark.slow)
Large = pytest.param(100_000, 4.0, 1_000, 2, id="large", marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])
Tell = Callable[[str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that loses nothing it has acknowledged when it is killed."""
    with postgres_server(durable=True) as server:
        yield server


def url(server: PostgresServer) -> str:
    """As SQLAlchemy takes it."""
    return server.address.replace("postgresql://", "postgresql+asyncpg://")


@pytest_asyncio.fixture
async def engine(server: PostgresServer) -> AsyncIterator[AsyncEngine]:
    """With fresh tables."""
    engine = create_async_engine(url(server), pool_pre_ping=True)
    async with engine.begin() as connection:
        for command in ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", TABLE):
            await connection.execute(text(command))
    await SqlStore(engine).create_tables()
    yield engine
    await engine.dispose()


async def count(engine: AsyncEngine) -> int:
    """Rows of results; -1: the server does not answer."""
    try:
        async with engine.connect() as connection:
            return int((await connection.execute(text("SELECT count(*) FROM results"))).scalar_one())
    except (SQLAlchemyError, OSError):
        return -1


async def check(engine: AsyncEngine, records: int, topic: str) -> None:
    """Each record's row is there once, those of a key in order; positions are at the end, nothing is beside them."""
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT key, number FROM results ORDER BY id"))).all()
        assert len(rows) == records
        assert sum(number for _, number in rows) == sum(range(records))
        last: dict[str, int] = {}
        for key, number in rows:
            assert last.get(key, -1) < number, (key, last[key], number)
            last[key] = number
    assert await _is_folded(engine, records, topic)


async def _is_folded(engine: AsyncEngine, records: int, topic: str) -> bool:
    """Whether positions are at the end, and nothing is beside them."""
    async with engine.connect() as connection:
        left = (await connection.execute(text("SELECT count(*) FROM aioparallel_done"))).scalar_one()
        folded = await connection.execute(
            text(
                "SELECT sum(next_offset) FROM aioparallel_position JOIN aioparallel_partition ON id = partition_id "
                "WHERE topic = :topic"
            ),
            {"topic": topic},
        )
        return (folded.scalar_one(), left) == (records, 0)


async def _watch(engine: AsyncEngine, backwards: list[object]) -> None:
    """Look at the positions again and again: none goes back."""
    seen: dict[int, int] = {}
    while True:
        try:
            async with engine.connect() as connection:
                found = await connection.execute(text("SELECT partition_id, next_offset FROM aioparallel_position"))
                for key, offset in found:
                    if offset < seen.get(key, 0):
                        backwards.append((key, seen[key], offset))
                    seen[key] = offset
        except (SQLAlchemyError, OSError):
            pass  # it restarts
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("records", "pause", "kills", "restarts"), [Small, Large])
async def test_kills_repeat_and_lose_nothing(
    local_kafka: LocalKafka,
    kafka_topic: TopicMaker,
    server: PostgresServer,
    engine: AsyncEngine,
    tmp_path: Path,
    tell: Tell,
    records: int,
    pause: float,
    kills: int,
    restarts: int,
) -> None:
    """One member is killed again and again, another one joins and leaves, and the database restarts in the middle:
    counts and sums are exactly right, the rows of a key in order, positions never backwards."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    await asyncio.to_thread(fill_numbered, servers, topic, records, KEYS)
    backwards: list[object] = []
    watching = asyncio.create_task(_watch(engine, backwards))
    restarted = 0
    at = time.monotonic()
    given = (servers, topic, f"{topic}-group", url(server), "10")
    async with Restless(MODULE, given, tmp_path, kills) as members:
        while (found := await count(engine)) < records:
            assert time.monotonic() - at < 1_200
            await asyncio.sleep(members.pause(pause))
            if restarted < restarts and found > records * (restarted + 1) / (restarts + 1):
                await asyncio.to_thread(server.restart)
                restarted += 1
            else:
                await members.trouble()
        # The partitions of one that was killed last are taken over when its session is over.
        await until(lambda: _is_folded(engine, records, topic), TAKE_OVER + 30)
        await members.end()
    took = time.monotonic() - at
    watching.cancel()
    await check(engine, records, topic)
    assert backwards == []
    tell(
        f"{records:,} records in {took:.0f} s, one member killed {members.killed} times, another one left "
        f"{members.left} times, the database restarted {restarted} times: each row there once, in the order of its "
        "key, positions never backwards"
    )


@pytest.mark.parametrize("place", PLACES)
async def test_zombies_write_nothing_twice(
    local_kafka: LocalKafka,
    kafka_topic: TopicMaker,
    server: PostgresServer,
    engine: AsyncEngine,
    tmp_path: Path,
    tell: Tell,
    place: str,
) -> None:
    """A member is frozen for longer than its session in a transaction; another one takes over within the bound, and the
    first comes back: each row stands there once, in the order of its key."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=4)
    given = (servers, topic, f"{topic}-group", url(server))

    def member(name: str, *options: str) -> Child:
        return Child.of_module(name, MODULE, *given, *options, log=tmp_path / f"{place}-{name}.log")

    async with member("frozen", "20", f"freeze={place}") as frozen:
        _, written = await feed_until_frozen(frozen, servers, topic, 100)
        at = time.monotonic()
        async with member("heir", "2") as heir:
            await until(lambda: _has(engine, written), TAKE_OVER + 30)
            took = time.monotonic() - at
            frozen.resume()
            records = written + 2_000
            await asyncio.to_thread(fill, servers, topic, itertools.islice(numbered(records, 100), written, None))
            await until(lambda: _has(engine, records), 60)
            for child in (frozen, heir):
                assert child.running, child.last_words()
                child.terminate()
                await child.ended(60)
    await check(engine, records, topic)
    tell(
        f"frozen at {place!r}: all the rest written {took:.1f} s after that (session 6 s); {records:,} records once, "
        "in order"
    )


async def _has(engine: AsyncEngine, records: int) -> bool:
    return await count(engine) >= records
