"""Consumers that keep their positions in a database, and what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.handlers.batches import Batch
from aioparallel.persistence.sql import SqlStore, opened
from aioparallel.persistence.sql.statements import Owned
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer

__all__ = [
    "ONCE",
    "POSITIONS",
    "T0",
    "Ends",
    "consumer_of",
    "fill",
    "rows",
    "rows_are",
    "run",
    "run_all",
    "save",
    "save_batch",
]

T0 = TopicPartition("in", 0)
POSITIONS = (
    "SELECT number, next_offset, offset_map, epoch FROM aioparallel_position JOIN aioparallel_partition "
    "ON partition_id = id ORDER BY number"
)

ONCE = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead")
"""A failure is seen."""


def fill(broker: InMemoryBroker, numbers: range, *, key: Callable[[int], bytes] = lambda n: b"%d" % (n % 7)) -> None:
    """Records with these values."""
    for number in numbers:
        broker.append("in", b"%d" % number, key=key(number), partition=number % 2)


def consumer_of(broker: InMemoryBroker, store: SqlStore, **options: Any) -> ParallelConsumer[Any, Any]:
    """Of group "g"."""
    given = {"until": "end", "max_concurrency": 20, "commit_interval": 0.1, **options}
    client = InMemoryClient(broker, "g", heartbeat_interval=0.05)
    return ParallelConsumer(
        "in", group_id="g", client=client, producer=InMemoryProducer(broker), commits=store, **given
    )


async def save(record: Record, connection: AsyncConnection) -> None:
    """A row for each record."""
    await connection.execute(
        text("INSERT INTO results VALUES (:key, :value)"),
        {"key": (record.key or b"").decode(), "value": int(record.value or b"")},
    )


async def save_batch(batch: Batch[Record], connection: AsyncConnection) -> None:
    """The same, many at once."""
    for record in batch:
        await save(record, connection)


async def run(broker: InMemoryBroker, engine: AsyncEngine, handle: Any = save, **options: Any) -> SqlStore:
    """To the end."""
    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store, **options) as consumer:
        await consumer.run(store.handler(handle))
    return store


async def run_all(broker: InMemoryBroker, engine: AsyncEngine, handle: Any, **options: Any) -> None:
    """To the end, of what there is; no connection is left in use."""
    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store, **options) as consumer:
        await consumer.run(store.handler(handle))
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def rows(engine: AsyncEngine, statement: str = "SELECT value FROM results") -> list[Any]:
    """The stored rows; of single columns the values."""
    async with engine.connect() as connection:
        found = (await connection.execute(text(statement))).all()
    return [one[0] if len(one) == 1 else tuple(one) for one in found]


async def rows_are(engine: AsyncEngine, count: int) -> bool:
    """Whether there are so many."""
    return len(await rows(engine)) >= count


class Ends:
    """In the place of how transactions end: what is to happen to the next one that one of these records is in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[], Awaitable[None]] | None = None
        self.carried_out = True
        self.error: Exception | None = None
        self._asked: list[Any] = []
        for kind in (opened._OfAsyncpg, opened._OfSqlalchemy):
            monkeypatch.setattr(kind, "add_done", self._noting(kind.add_done))
            monkeypatch.setattr(kind, "commit", self._ending(kind.commit))
        self.offsets: Collection[int] = ()

    def _noting(self, add_done: Any) -> Any:
        async def noting(transaction: Any, owned: Owned, offsets: Sequence[int]) -> bool:
            if set(offsets) & set(self.offsets):
                self._asked.append(transaction)
            return bool(await add_done(transaction, owned, offsets))

        return noting

    def _ending(self, commit: Any) -> Any:
        async def ending(transaction: Any) -> None:
            if transaction not in self._asked:
                await commit(transaction)
                return
            self.offsets = ()
            if self.before is not None:
                await self.before()
            await (commit(transaction) if self.carried_out else transaction.roll_back())
            if self.error is not None:
                raise self.error

        return ending
