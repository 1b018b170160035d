"""A database that is busy, slow or away, and what handlers do to their connections: nothing stands still, and nothing
is written twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from aioparallel.stores.sql import SqlStore
from aioparallel.stores.sql.statements import Statements
from aioparallel.testing.memory import InMemoryBroker
from tests.support.sql_stores import consumer_of, fill, rows, save

pytestmark = pytest.mark.asyncio


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
    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store) as consumer:
        await consumer.run(store.handler(save))
    assert len(refused) == 2
    assert sorted(await rows(engine)) == list(range(20))
