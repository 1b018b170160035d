"""COMMITs without an answer, and what is done when nobody has heard of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aioparallel import FailurePolicy, Record, RetryPolicy
from aioparallel.handlers.batches import Batch, batches
from aioparallel.persistence.sql import SqlStore, doubt, taking
from aioparallel.persistence.sql import store as store_module
from aioparallel.testing.memory import InMemoryBroker
from tests.support.sql_stores import POSITIONS, T0, Ends, consumer_of, fill, rows, run, save, save_batch
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_commit_without_an_answer(
    broker: InMemoryBroker, engine: AsyncEngine, ends: Ends, carried_out: bool
) -> None:
    """It is found out whether it was carried out: its record runs again only if not."""
    fill(broker, range(0, 12, 2))
    ends.offsets, ends.carried_out, ends.error = [2], carried_out, ConnectionError("gone")
    runs: Counter[int] = Counter()

    async def handle(record: Record, connection: AsyncConnection) -> None:
        runs[int(record.value or b"")] += 1
        await save(record, connection)

    await run(broker, engine, handle, failures=FailurePolicy(retry=RetryPolicy(first_delay=0.02)))
    assert sorted(await rows(engine)) == list(range(0, 12, 2))
    assert runs == {**dict.fromkeys(range(0, 12, 2), 1), 4: 1 if carried_out else 2}
    assert [one[:3] for one in await rows(engine, POSITIONS)] == [(0, 6, ""), (1, 0, "")]


async def test_a_cancelled_commit_is_waited_for(broker: InMemoryBroker, engine: AsyncEngine, ends: Ends) -> None:
    """A deadline that strikes while the transaction ends changes nothing: the handler had returned."""
    broker.append("in", b"3")
    ends.offsets, ends.before = [0], partial(asyncio.sleep, 0.6)
    runs = 0

    async def handle(record: Record, connection: AsyncConnection) -> None:
        nonlocal runs
        runs += 1
        await save(record, connection)

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead")
    await run(broker, engine, handle, handler_timeout=0.4, failures=failures)
    assert (await rows(engine), runs, broker.records("dead")) == ([3], 1, [])


async def test_a_batch_of_which_some_are_complete_already(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """From another batch whose COMMIT was in doubt when it was given up: they are complete, and the others come
    again."""
    for number in (0, 2, 4, 6):
        broker.append("in", b"%d" % number, key=b"%d" % (number % 4), partition=0)
    store = SqlStore(engine)
    await store.create_tables()
    seen = False

    async def handle(batch: Batch[Record], connection: AsyncConnection) -> None:
        nonlocal seen
        if not seen:
            seen = True
            taken = store._partitions.taken[T0]  # type: ignore[union-attr]
            async with store._opening.engine.connect() as another:
                transaction = await store._opening.open(another)
                await save(batch[0], another)
                await transaction.add_done(taken.owned, [batch[0].offset])
                await transaction.commit()
            raise ValueError("given up")
        await save_batch(batch, connection)

    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.02))
    async with asyncio.timeout(60), consumer_of(broker, store, failures=failures) as consumer:
        await consumer.run(batches(store.handler(handle), size=4, linger=0.2, on_error="together"))
    assert sorted(await rows(engine)) == [0, 2, 4, 6]


async def test_a_large_batch_in_doubt_is_asked_about_at_once(
    broker: InMemoryBroker, engine: AsyncEngine, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not record by record, each in a transaction of its own."""
    for number in range(1_000):
        broker.append("in", b"%d" % number, key=b"%d" % number, partition=0)
    ends.offsets, ends.error = [500], ConnectionError("gone")
    asked = 0
    would_be_done = doubt._would_be_done

    async def counted(*given: Any) -> bool:
        nonlocal asked
        asked += 1
        return await would_be_done(*given)

    monkeypatch.setattr(doubt, "_would_be_done", counted)
    store = SqlStore(engine)
    await store.create_tables()
    async with asyncio.timeout(60), consumer_of(broker, store) as consumer:
        await consumer.run(batches(store.handler(save_batch), size=1_000, linger=0.5, on_error="together"))
    assert sorted(await rows(engine)) == list(range(1_000))
    assert asked == 1


async def test_a_commit_that_is_not_answered_in_time_is_no_failure(
    broker: InMemoryBroker, engine: AsyncEngine, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than its handler's deadline and what it gets beyond that: the record runs again, and finds out."""
    monkeypatch.setattr(store_module, "_FINISHING", 0.2)
    monkeypatch.setattr(store_module, "AWAY", 0.1)
    broker.append("in", b"3")
    is_over = asyncio.Event()
    would_be_done = doubt._would_be_done

    async def held(*given: Any) -> bool:
        await is_over.wait()
        return await would_be_done(*given)

    monkeypatch.setattr(doubt, "_would_be_done", held)
    ends.offsets, ends.error = [0], ConnectionError("gone")
    runs = 0

    async def handle(record: Record, connection: AsyncConnection) -> None:
        nonlocal runs
        runs += 1
        if runs == 2:
            is_over.set()
        await save(record, connection)

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead")
    await run(broker, engine, handle, handler_timeout=0.4, failures=failures)
    assert (await rows(engine), runs, broker.records("dead")) == ([3], 2, [])


async def test_rows_far_above_a_position_are_not_listed_up_to(
    broker: InMemoryBroker, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log has lost millions (compacted, or aborted transactions), and a member ends before it has folded: the next
    one starts within the usual time, and what is complete is not written again."""
    fill(broker, range(0, 10, 2))
    await run(broker, engine)
    log = broker._log(T0)
    assert log is not None
    log.end_offset += 5_000_000
    fill(broker, range(10, 20, 2))
    store = SqlStore(engine)

    async def lost(*_given: Any) -> dict[Any, Any]:
        return {}

    consumer = consumer_of(broker, store, until=None, commit_interval=30.0, drain_timeout=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(taking.Partitions, "commit", lost)
        async with consumer:
            running = asyncio.create_task(consumer.run(store.handler(save)))

            async def all_are() -> bool:
                return len(await rows(engine)) == 10

            await until(all_are)
            running.cancel()
            await asyncio.wait([running])
    assert len(await rows(engine, "SELECT * FROM aioparallel_done")) == 5
    loop = asyncio.get_running_loop()
    began = loop.time()
    await run(broker, engine)
    assert loop.time() - began < 10
    assert sorted(await rows(engine)) == list(range(0, 20, 2))
    assert (await rows(engine, POSITIONS))[0][1:3] == (5_000_010, "")
    assert await rows(engine, "SELECT * FROM aioparallel_done") == []


async def test_folds_have_their_turn_beside_long_handlers(broker: InMemoryBroker, engine: AsyncEngine) -> None:
    """SQLite has one writer: who folds waits for it in the same order as handlers do."""
    fill(broker, range(0, 200, 2))

    async def handle(record: Record, connection: AsyncConnection) -> None:
        await save(record, connection)
        await asyncio.sleep(0.05)

    store = SqlStore(engine)
    await store.create_tables()
    consumer = consumer_of(broker, store, until=None, commit_timeout=3.0)
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(store.handler(handle)))

        async def is_folded() -> bool:
            return any(one[1] for one in await rows(engine, POSITIONS))

        await until(is_folded)
        if engine.dialect.name == "sqlite":
            assert len(await rows(engine)) < 50
        await until(lambda: consumer.stats().succeeded == 100)
        assert consumer.stats().failed_commits == 0
        consumer.stop()
        await running
