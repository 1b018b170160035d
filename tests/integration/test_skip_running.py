"""``skip`` in a group that runs, from the command line, on Apache Kafka: nothing but the one record changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.clients.aiokafka.group_admin import GroupAdmin
from aioparallel.control import OffsetsEndpoint
from aioparallel.group.client import Committed
from aioparallel.offsets import OffsetMap, decode_offset_map, encode_offset_map
from aioparallel.offsets.editing import difference
from aioparallel.offsets.encoding import format_of
from aioparallel.persistence.sql.reading import stored_positions
from aioparallel.persistence.sql.schema import Schema
from aioparallel.records.record import TopicPartition
from aioparallel.stores.sql import SqlStore
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.command_line import Ran, invoke
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = pytest.mark.real

TOKEN = "a-secret-of-the-tests"
LATER = FailurePolicy(retry=RetryPolicy(first_delay=3600, max_delay=3600))


async def skip(servers: str, group: str, *arguments: str) -> Ran:
    environment = {"AIOPARALLEL_BOOTSTRAP_SERVERS": servers, "AIOPARALLEL_OFFSETS_TOKEN": TOKEN}
    return await asyncio.to_thread(invoke, "offsets", "skip", group, *arguments, environment=environment)


@asynccontextmanager
async def member(
    servers: str, topic: str, group: str, handler: Any, **options: Any
) -> AsyncIterator[tuple[ParallelConsumer[Any, Any], str]]:
    """A consumer that runs, and the address of its endpoint."""
    endpoint = OffsetsEndpoint(0, TOKEN)
    consumer = ParallelConsumer(
        topic, bootstrap_servers=servers, group_id=group, failures=LATER, extensions=[endpoint], **options
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.health().ready)
        yield consumer, f"http://127.0.0.1:{endpoint.port}"
        consumer.stop()
        await running


def failing(stuck: Collection[int]) -> Callable[[Record], Awaitable[None]]:
    """A handler that fails for the records with these numbers as value."""

    async def handle(record: Record) -> None:
        if int(record.value or b"0") in stuck:
            raise ValueError

    return handle


def known(position: Committed) -> OffsetMap:
    return decode_offset_map(position.offset, position.metadata)


async def stored(servers: str, group: str, topic: str) -> Committed:
    async with GroupAdmin(servers) as admin:
        return (await admin.committed(group))[TopicPartition(topic, 0)]


async def what_runs(servers: str, topic: str, group: str, **options: Any) -> set[int]:
    """Run a consumer to the end of the log; what it has handled. Each record once."""
    ran: set[int] = set()

    async def handle(record: Record) -> None:
        assert record.offset not in ran
        ran.add(record.offset)

    async with ParallelConsumer(topic, bootstrap_servers=servers, group_id=group, until="end", **options) as consumer:
        await consumer.run(handle)
    return ran


async def test_only_the_stuck_record_is_skipped(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """2,000 records are done above it, and another one is stuck among them. What is done stays done, also after a
    restart; without ``--via`` the command names it."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group, place = f"{topic}-group", f"{topic}:0:37"
    fill(servers, topic, [Message(b"%d" % n, b"%d" % n) for n in range(2_040)])
    async with member(servers, topic, group, failing({37, 1_200})) as (consumer, url):
        await until(lambda: consumer.stats().succeeded == 2_038)
        await consumer.commit_now()
        before = await stored(servers, group, topic)
        assert (before.offset, format_of(before.metadata)) == (37, "RunLength")
        ran = await skip(servers, group, place, "--execute")
        assert (ran.exit_code, "Stop all members first" in ran.stderr, "--via" in ran.stderr) == (1, True, True)
        ran = await skip(servers, group, place, "--via", url)
        assert (ran.exit_code, f"{place}: waits for its next attempt -> would be skipped" in ran.stderr) == (0, True)
        assert await stored(servers, group, topic) == before
        ran = await skip(servers, group, place, "--via", url, "--execute")
        assert (ran.exit_code, "-> skipped" in ran.stderr) == (0, True), ran.output
        after = await stored(servers, group, topic)
        assert difference(known(before), known(after)) == ([], [range(37, 38)])
        assert (after.offset, format_of(after.metadata)) == (1_200, "RunLength")
    assert await what_runs(servers, topic, group) == {1_200}


async def test_a_dense_map_changes_in_one_offset(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Half of 40,000 records are complete, in a pattern that no Java format can hold. The record is not fetched yet."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    fill(servers, topic, [Message(b"%d" % n, b"%d" % n) for n in range(40_000)])
    missing = [n for n in range(39_999) if random.Random(n).random() < 0.5]
    text = encode_offset_map(missing[0], 39_999, missing, format="Dense")
    async with GroupAdmin(servers) as admin:
        position = {TopicPartition(topic, 0): Committed(missing[0], text)}
        assert set((await admin.commit(group, position)).values()) == {0}
    skipped = missing[len(missing) // 2]
    handled: set[int] = set()
    first, go = asyncio.Event(), asyncio.Event()

    async def handle(record: Record) -> None:
        first.set()
        await go.wait()
        assert record.offset not in handled
        handled.add(record.offset)

    async with member(servers, topic, group, handle, max_buffered=200, max_concurrency=10) as (consumer, url):
        await first.wait()
        ran = await skip(servers, group, f"{topic}:0:{skipped}", "--via", url, "--execute")
        assert (ran.exit_code, "not fetched yet -> skipped" in ran.stderr) == (0, True), ran.output
        after = await stored(servers, group, topic)
        assert format_of(after.metadata) == "Dense"
        assert difference(OffsetMap(missing[0], 39_999, tuple(missing)), known(after)) == (
            [],
            [range(skipped, skipped + 1)],
        )
        go.set()
        await until(lambda: consumer.stats().succeeded == len(missing) - 1)
    assert handled == set(missing) - {skipped}
    assert (await stored(servers, group, topic)).offset == 40_000


@pytest.mark.slow
async def test_positions_in_a_database_change_in_one_offset(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """The rows of records that are done, and the map, stay as they are."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group, url = f"{topic}-group", f"sqlite+aiosqlite:///{tmp_path}/results.db"
    assert (await asyncio.to_thread(invoke, "store", "init", url)).exit_code == 0
    fill(servers, topic, [Message(b"%d" % n, b"%d" % n) for n in range(2_040)])
    engine = create_async_engine(url)
    place = TopicPartition(topic, 0)

    async def position() -> OffsetMap:
        return known((await stored_positions(engine, Schema("aioparallel_", None), group))[place])

    def store_and_handler(stuck: Collection[int]) -> tuple[SqlStore, Any]:
        store, plain = SqlStore(engine), failing(stuck)

        async def handle(record: Record, connection: AsyncConnection) -> None:
            await plain(record)
            handled.append(record.offset)

        return store, store.handler(handle)

    handled: list[int] = []
    store, handler = store_and_handler({37, 1_200})
    async with member(servers, topic, group, handler, commits=store) as (consumer, at):
        await until(lambda: consumer.stats().succeeded == 2_038, 120)
        await consumer.commit_now()
        before = await position()
        ran = await skip(servers, group, f"{topic}:0:37", "--via", at, "--execute")
        assert (ran.exit_code, "-> skipped" in ran.stderr) == (0, True), ran.output
        assert difference(before, await position()) == ([], [range(37, 38)])
    handled.clear()
    store, handler = store_and_handler(())
    consumer = ParallelConsumer(topic, bootstrap_servers=servers, group_id=group, until="end", commits=store)
    async with consumer:
        await consumer.run(handler)
    assert handled == [1_200]
    await engine.dispose()
