"""An engine that was used in another event loop before."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from aioparallel.persistence.sql import SqlStore, StoreNotReady
from aioparallel.testing.memory import InMemoryBroker
from tests.support.sql_stores import consumer_of


def test_an_engine_of_another_loop(broker: InMemoryBroker, server: str) -> None:
    """Is told in words, before anything is read."""
    engine = create_async_engine(server, pool_size=21)
    store = SqlStore(engine)

    async def open_it() -> None:
        with pytest.raises(StoreNotReady, match="of another event loop"):
            async with consumer_of(broker, store):
                pass

    with asyncio.Runner() as one, asyncio.Runner() as other:
        one.run(store.create_tables())
        try:
            other.run(open_it())
        finally:
            one.run(engine.dispose())
