"""Members that keep a state of each key, killed, joining and leaving, on Apache Kafka. All: ``make load-state``."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aioparallel import ParallelConsumer, Record
from aioparallel.group.client import Committed, Fetched, Span
from aioparallel.offsets import decode_offset_map
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.processes.child import Child
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.keeping_state import sums
from tests.support.inside import client_of
from tests.support.kafka.filling import Message, fill, number_of, numbered
from tests.support.kafka.reading import committed, read_all
from tests.support.members.restless import Restless
from tests.support.waiting import until

pytestmark = pytest.mark.real

MODULE = "tests.support.children.keeping_state"
PARTITIONS, KEYS = 8, 1_000
COMPACTED = {"cleanup.policy": "compact"}
Small = pytest.param(20_000, 1.5, 3, id="small")
Large = pytest.param(200_000, 4.0, 1_000, id="large", marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])
Tell = Callable[[str], None]


def spread(records: int, keys: int, size: int = 0) -> Iterator[Message]:
    """Numbered records, record ``n`` in partition ``n % 8`` at offset ``n // 8``."""
    assert keys % PARTITIONS == 0
    for n, message in enumerate(numbered(records, keys, size)):
        yield message._replace(partition=n % PARTITIONS)


def totals_at(position: Committed, partition: int, keys: int) -> Mapping[bytes, int]:
    """The sums of a partition's keys, of the records that are complete by that position."""
    found: defaultdict[bytes, int] = defaultdict(int)
    said = decode_offset_map(*position[:2])
    for offset in range(max(said.base_offset, said.highest_succeeded + 1)):
        if said.is_complete(offset):
            number = offset * PARTITIONS + partition
            found[b"k%d" % (number % keys)] += number
    return found


async def topics_of(kafka: LocalKafka, source: str) -> None:
    """The two of its state."""
    for kind in ("state", "snapshots"):
        await kafka.create_topic(f"{source}-{kind}", PARTITIONS, COMPACTED)


def reader(servers: str, source: str, **given: Any) -> ParallelConsumer[Any, Any]:
    """Of the same group, for its states."""
    return ParallelConsumer(source, bootstrap_servers=servers, group_id=f"{source}-group", state=sums(source), **given)


async def never(record: Record) -> None:
    """Nothing is left to be handled, or nothing starts."""
    raise AssertionError(record)


def check_outputs(outputs: list[Record], records: int, keys: int) -> None:
    """Each record has one output, with the sum of its key before it."""
    found = {}
    for output in outputs:
        number, before = map(int, (output.value or b"").split())
        assert number not in found, f"{number} stands there twice"
        found[number] = before
    assert found.keys() == set(range(records))
    for number, before in found.items():
        earlier = range(number % keys, number, keys)
        assert before == sum(earlier), f"{number}: the state was {before}, and the sum before it is {sum(earlier)}"


@pytest.mark.parametrize(("records", "pause", "kills"), [Small, Large])
async def test_sums_are_exact_through_kills(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell, records: int, pause: float, kills: int
) -> None:
    """One member is killed again and again, another one joins and leaves, both with transactions: each output has the
    sum of its key before it, once, and the states at the end are the totals of the input."""
    servers = local_kafka.bootstrap_servers
    source, target = await kafka_topic(partitions=PARTITIONS), await kafka_topic(partitions=PARTITIONS)
    await topics_of(local_kafka, source)
    group = f"{source}-group"
    fill(servers, source, spread(records, KEYS, 100))

    async def is_done() -> bool:
        return sum([one.offset for one in (await committed(servers, group)).values()]) >= records

    at = time.monotonic()
    given = (servers, source, target, group, "40", "together=1", "after=2000")
    async with Restless(MODULE, given, tmp_path, kills) as members:
        while not await is_done():
            assert time.monotonic() - at < 1_200
            await asyncio.sleep(members.pause(pause))
            await members.trouble()
        await members.end()
    took = time.monotonic() - at
    check_outputs(await read_all(servers, target, is_committed=True), records, KEYS)
    states: dict[bytes, int] = {}
    async with reader(servers, source) as consumer:
        running = asyncio.create_task(consumer.run(never))
        # Those of the one that has left and may return come last.
        await until(lambda: consumer.health().joined and len(consumer.stats().partitions) == PARTITIONS)
        for number in range(PARTITIONS):
            states |= consumer.states(TopicPartition(source, number))
        stats = consumer.stats().state
        consumer.stop()
        await running
    assert states == {b"k%d" % key: sum(range(key, records, KEYS)) for key in range(KEYS)}
    assert stats is not None
    tell(
        f"{records:,} records in {took:.0f} s, one member killed {members.killed} times, another one left "
        f"{members.left} times: each output has the sum before it, once; the states are the totals; "
        f"{stats.replayed:,} records read again for that"
    )


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_a_million_keys(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell) -> None:
    """A member with a million keys is killed in the middle of five million updates. Whoever comes next has the state of
    the committed position, reads a part of the log for it, and is there within a minute."""
    servers, keys, records = local_kafka.bootstrap_servers, 1_000_000, 5_000_000
    source, target = await kafka_topic(partitions=PARTITIONS), await kafka_topic()
    await topics_of(local_kafka, source)
    await asyncio.to_thread(fill, servers, source, spread(records, keys, 100))
    given = (servers, source, target, f"{source}-group", "silent")
    began = time.monotonic()

    async def complete() -> int:
        return sum([one.offset for one in (await committed(servers, f"{source}-group")).values()])

    async with Child.of_module("member", MODULE, *given, log=tmp_path / "member.log") as child:
        assert await child.line(60) == "ready"
        while await complete() < records * 0.9:
            assert child.running, child.last_words()
            await asyncio.sleep(1)
        await child.kill()
    rate = await complete() / (time.monotonic() - began)
    consumer = reader(servers, source)
    client = client_of(consumer)
    read = client.read
    count = size = 0

    async def counting(spans: Mapping[TopicPartition, Span | list[Span]]) -> AsyncGenerator[Fetched, None]:
        nonlocal count, size
        async for fetched in read(spans):
            count += len(fetched.records)
            size += sum(len(record.key or b"") + len(record.value or b"") for record in fetched.records)
            yield fetched

    client.read = counting  # type: ignore[method-assign, assignment]
    consumer.pause()
    async with consumer:
        running = asyncio.create_task(consumer.run(never))
        began = time.monotonic()
        await until(lambda: bool(consumer.stats().state) if consumer._engine else False)
        await until(lambda: consumer.stats().state.restoring != {}, 60)  # type: ignore[union-attr]
        joined = time.monotonic()
        await until(lambda: consumer.health().joined, 120)
        took = time.monotonic() - joined
        for partition, position in (await committed(servers, f"{source}-group")).items():
            states = consumer.states(TopicPartition(source, partition))
            assert states == totals_at(position, partition, keys), partition
        stats = consumer.stats().state
        consumer.stop()
        await running
    assert stats is not None
    replay = sum(
        len(one.key or b"") + len(one.value or b"") for one in itertools.islice(spread(keys, keys, 100), 1_000)
    )
    whole = await complete() * replay / 1_000
    tell(
        f"{stats.keys:,} keys, {await complete():,} updates ({rate:,.0f}/s while the state was kept): restored in "
        f"{took:.1f} s, equal; {count:,} records and {size / 1e6:,.0f} MB read for it, {stats.replayed:,} of them "
        f"updates; all updates are {whole / 1e6:,.0f} MB"
    )
    assert took < 60
    assert size < whole / 2


def test_the_totals_of_a_position_are_those_of_its_records() -> None:
    """The yardstick of the test above."""
    position = Committed(2, "")
    assert totals_at(position, 1, 8) == {b"k1": 1 + 9}
    assert number_of(Record("t", 0, 0, b"k", b"17 x")) == 17
