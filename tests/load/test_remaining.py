"""``groups show`` says how many records are left, and exactly these run, at large sizes: ``make load-metrics``."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aioparallel.persistence.sql import SqlStore
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import EventKind, EventTail
from aioparallel.testing.processes import Child
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.integration.test_groups import objects
from tests.support.children.account import Account
from tests.support.children.job import Job
from tests.support.kafka.filling import Message, fill, fill_numbered
from tests.support.kafka.reading import read_all
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]

INCOMPLETE = (0, 1, 5, 40, 300, 2_000, 10_000, 30_000, 60_000, 100_000)
"""About so many offsets of the maps are incomplete when the consumer is killed."""


@pytest.mark.parametrize("incomplete", INCOMPLETE)
async def test_remaining_is_what_then_runs(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Callable[[str], None], incomplete: int
) -> None:
    """A consumer with failing records at random places is killed at a random moment. What is remaining is what the next
    one begins, in each partition. Nothing is committed in between."""
    rng = random.Random(incomplete)
    count, partitions = (
        max(5_000, 2 * incomplete),
        rng.choice([1, 3, 8]) if 1 < incomplete < 60_000 else 8 if incomplete > 1 else 1,
    )
    formats = rng.choice(["all", "java"])
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=partitions)
    await asyncio.to_thread(fill_numbered, servers, topic, count, keys=count, size=20)
    account = Account(await read_all(servers, topic))
    group = f"{topic}-group"
    job = Job(
        bootstrap_servers=servers,
        topic=topic,
        group_id=group,
        failing=incomplete / count if incomplete > 1 else 0.0,
        stuck=count // partitions // 3 if incomplete == 1 else None,
        options={
            "max_concurrency": 500,
            "max_parked": 300_000,
            "commit_interval": 0.2,
            "offset_map_formats": formats,
            "session_timeout": 1.5,
            "heartbeat_interval": 0.4,
            "stuck_after": 600,
        },
    )
    account.follow(tmp_path / "first.events")
    begun, end = 0, 0.0
    kill_at = rng.choice([count, rng.randrange(count // 2, count)]) if incomplete else count

    def enough() -> bool:
        nonlocal begun, end
        begun += len(account.read())
        if begun >= kill_at and not end:
            end = time.monotonic() + rng.choice([0.0, 0.1, 3.0]) * (kill_at < count) + 3.0 * (kill_at == count)
        return bool(end) and time.monotonic() >= end

    await job.run(tmp_path, "first", enough)
    account.read()
    whole, *found = await objects(servers, "show", group)
    counted, *_ = await objects(servers, "show", group, "--count")
    account.follow(tmp_path / "last.events")
    again = Job(
        bootstrap_servers=servers, topic=topic, group_id=group, options={"until": "end", "max_concurrency": 500}
    )
    await again.run(tmp_path, "last")
    ran = set(account.read())
    used = sorted({str(one["map_format"]) for one in found})
    within = sum(one["incomplete"] for one in found)
    tell(
        f"{count:,} records on {partitions} partitions, killed after {begun:,} calls, maps {formats} "
        f"{'/'.join(used)}: lag {whole['lag']:,}, {within:,} incomplete in maps; "
        f"remaining {whole['remaining']:,} ({whole['remaining_is']}), ran {len(ran):,}"
    )
    assert whole["remaining"] == counted["remaining"] == len(ran)
    assert {one["partition"]: one["remaining"] for one in found} == {
        number: sum(partition == number for partition, _ in ran) for number in range(partitions)
    }
    whole, *_ = await objects(servers, "show", group, "--max-remaining", "0")
    assert (whole["remaining"], whole["lag"]) == (0, 0)


async def test_remaining_of_a_queue_is_what_then_runs(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """A member of a queue is killed in the middle of 20,000 records, when some are open and some not read. What is
    remaining with ``--kmq`` runs in the next one, when the leases are over."""
    count, servers, queue = 20_000, local_kafka.bootstrap_servers, await kafka_topic(partitions=4)
    await local_kafka.create_topic(f"{queue}-markers", 4)
    await local_kafka.create_topic(f"{queue}__undelivered")
    await asyncio.to_thread(fill, servers, queue, [Message(b"%d" % n, b"%d" % n) for n in range(count)])
    module, group = "tests.support.children.queue", f"{queue}-workers"

    def member(name: str) -> Child:
        given = "member", servers, queue, "3.0", "0.3", str(tmp_path / f"{name}.events")
        return Child.of_module(name, module, *given, log=tmp_path / f"{name}.log")

    def numbers(name: str, kind: EventKind) -> list[int]:
        return [event.offset for event in EventTail(tmp_path / f"{name}.events").new() if event.kind is kind]

    def begun(name: str) -> int:
        found = tmp_path / f"{name}.events"
        return len(set(numbers(name, EventKind.BEGAN))) if found.exists() else 0

    async with member("first") as child:
        await until(lambda: begun("first") > count // 2)
        await child.kill()
    whole, *found = await objects(servers, "show", group, "--kmq", queue)
    given = "tracker", servers, queue
    tracker = Child.of_module("tracker", module, *given, log=tmp_path / "tracker.log")
    async with member("last"), tracker:
        await until(lambda: begun("last") >= whole["remaining"], what=lambda: f"{begun('last')} of {whole}")
        await asyncio.sleep(10)  # nothing else may run
    opened = sum(one["open"] for one in found)
    tell(
        f"a queue of {count:,}, killed after {begun('first'):,}: {opened:,} open; "
        f"remaining {whole['remaining']:,}, ran {begun('last'):,}"
    )
    assert whole["remaining"] == begun("last")


async def rows(engine: AsyncEngine) -> tuple[int, int]:
    """Results in the table, and different ones."""
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT count(*), count(DISTINCT number) FROM results"))
        count, different = found.one()
        return count, different


async def test_remaining_of_a_database_is_what_is_then_written(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Results and positions are committed together, so after a kill exactly the remaining records have no result."""
    count, servers, topic = 2_000, local_kafka.bootstrap_servers, await kafka_topic(partitions=4)
    await asyncio.to_thread(fill_numbered, servers, topic, count, keys=500)
    url, group = f"sqlite+aiosqlite:///{tmp_path}/results.db", f"{topic}-group"
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE results (key TEXT, number INTEGER, member TEXT)"))
    await SqlStore(engine).create_tables()
    given = servers, topic, group, url, "10"

    async def written(least: int) -> bool:
        return (await rows(engine))[0] >= least

    for name, least in (("first", count // 3), ("second", count * 2 // 3)):
        child = Child.of_module(name, "tests.support.children.sql", *given, log=tmp_path / f"{name}.log")
        async with child:
            await until(lambda least=least: written(least))  # type: ignore[misc]
            await child.kill()
        whole, *_ = await objects(servers, "show", group, "--database", url)
        before, _ = await rows(engine)
        tell(f"results of {before:,} of {count:,} records; remaining {whole['remaining']:,}, lag {whole['lag']:,}")
        assert whole["remaining"] == count - before
    async with Child.of_module("last", "tests.support.children.sql", *given, log=tmp_path / "last.log"):
        await until(lambda: written(count))
    assert await rows(engine) == (count, count)
    await engine.dispose()
