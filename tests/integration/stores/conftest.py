"""Databases: a PostgreSQL server of these tests' own, and SQLite files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aioparallel.testing.memory import InMemoryBroker
from examples.postgres import postgres
from tests.support.sql_stores import Ends

TABLE = "CREATE TABLE results (key TEXT, value INTEGER)"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a PostgreSQL server."""
    with postgres() as address:
        yield address.replace("postgresql://", "postgresql+asyncpg://")


@pytest_asyncio.fixture(params=["postgresql", "sqlite"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """Of each kind, with an empty table of results."""
    if request.param == "sqlite":
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'results.db'}")
    else:
        address: str = request.getfixturevalue("server")
        engine = create_async_engine(address, pool_size=21, pool_pre_ping=True)
        async with engine.begin() as connection:
            for command in ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public"):
                await connection.execute(text(command))
    async with engine.begin() as connection:
        await connection.execute(text(TABLE))
    yield engine
    await engine.dispose()


@pytest.fixture
def broker() -> InMemoryBroker:
    """Topic "in" with two partitions, "out" and "dead" with one."""
    broker = InMemoryBroker()
    broker.create_topic("in", 2)
    broker.create_topic("out")
    broker.create_topic("dead")
    return broker


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """As it is, before the test says otherwise."""
    return Ends(monkeypatch)
