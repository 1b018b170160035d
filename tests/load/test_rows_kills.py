"""kill -9 of Spark's driver at ten random moments: streams from topics of one to six partitions, with and without
explode, to a sink and to topics. A service that honours idempotency keys has every row once, and so has a consumer
that deduplicates. ``make load-rows``."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import pytest

from aioparallel import Deduplicate, Record
from aioparallel.testing import LocalKafka
from tests.support.kafka.consuming import consume, consumer_of
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all

from .rows_programs import PARTITIONS, PARTS, Driver, Stream, calls_in

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(1_800)]

RECORDS: Final = 600
KILLS: Final = 10
MOST_CALLS: Final = 600
"""A driver is killed when it has made so many calls since its start, at most."""
DEADLINE: Final = 240.0
"""Seconds in which a driver makes so many, and in which the last one comes to the end."""
_LOOKS: Final = 0.02

Tell = Callable[[str], None]


def calls(directory: Path) -> int:
    """Of all handlers so far."""
    return sum(file.read_bytes().count(b"\n") for file in directory.glob("*.calls"))


async def life(servers: str, directory: Path, calls_before_death: int) -> int:
    """Start the driver, and kill it in mid-run; how many processes it had."""
    began = calls(directory)
    async with Driver(servers, directory, "killed") as driver:
        deadline = time.monotonic() + DEADLINE
        while calls(directory) - began < calls_before_death:
            await asyncio.sleep(_LOOKS)
            driver.check()
            assert time.monotonic() < deadline, f"{calls(directory) - began} calls in {DEADLINE:g} s"
        return await driver.kill_all()


def wanted_of(stream: Stream) -> Counter[str]:
    """All rows, and how many there are of each."""
    return Counter(f"{n} {part}" for n in range(RECORDS) for part in (PARTS if stream.is_exploded else (0,)))


def check_sink(stream: Stream, directory: Path) -> tuple[int, int]:
    """What the service has: the first call of each key, and none of the others. How many calls, and keys."""
    found = calls_in(directory / f"{stream.name}.calls")
    kept: dict[str, str] = {}
    for key, row in found:
        assert kept.setdefault(key, row) == row, f"{key} named {kept[key]} and {row}"
    wanted = wanted_of(stream)
    assert Counter(kept.values()) == wanted, f"{stream}: {len(kept)} of {wanted.total()} rows"
    return len(found), len(kept)


async def check_topic(servers: str, stream: Stream, by: Literal["record", "key"]) -> tuple[int, int]:
    """What a consumer without copies handles. How many records are in the topic, and how many it has handled."""
    work, handled = f"work-{stream.name}", Counter[str]()
    written = await read_all(servers, work)

    async def handle(record: Record) -> None:
        handled[(record.value or b"").decode()] += 1

    consumer = consumer_of(servers, work, deduplicate=Deduplicate("seen", by=by), until="end")
    stats = await consume(consumer, handle)
    wanted = wanted_of(stream)
    assert handled == wanted, f"{stream}, by {by}: {handled.total()} of {wanted.total()} rows"
    assert stats.copies == len(written) - wanted.total()
    return len(written), handled.total()


async def test_ten_kills(tmp_path: Path, tell: Tell) -> None:
    """Each row once, by each of the ways, though many came twice."""
    began, seed = time.monotonic(), int(os.environ.get("SEED", "0")) or random.randrange(1_000_000)
    rng = random.Random(seed)
    tell(f"SEED={seed}")
    with LocalKafka() as kafka:
        servers = kafka.bootstrap_servers
        for partitions in PARTITIONS:
            await kafka.create_topic(f"raw-{partitions}", partitions)
            fill(servers, f"raw-{partitions}", (Message(b"k%d" % (n % 50), b"%d" % n) for n in range(RECORDS)))
        for stream in Stream.every():
            await kafka.create_topic(f"work-{stream.name}", stream.partitions)
        await kafka.create_topic("seen", max(PARTITIONS), {"cleanup.policy": "compact"})
        for number in range(1, KILLS + 1):
            after = rng.randrange(1, MOST_CALLS)
            processes = await life(servers, tmp_path, after)
            tell(f"kill {number}: {processes} processes, {after} calls after its start, {calls(tmp_path):,} in all")
        async with Driver(servers, tmp_path, "end") as driver:
            await driver.ended(DEADLINE)
            assert driver.exit_code == 0, driver.last_words()
        tell(f"all is done after {time.monotonic() - began:.0f} s")
        twice = 0
        for stream in Stream.every():
            made, rows = check_sink(stream, tmp_path)
            by_record, handled = await check_topic(servers, stream, "record")
            await check_topic(servers, stream, "key")
            twice += made - rows + by_record - handled
            tell(f"{stream.name}: {made:,} calls for {rows:,} rows; {by_record:,} records for {handled:,} rows")
        assert twice
    tell(f"{time.monotonic() - began:.0f} s in all")
