"""What users of other consumers have reported of groups that come together anew, tried on this one.
``docs/testing.md`` names the threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.integration.test_field_reports import member, plain, unique
from tests.support.kafka.consuming import consuming
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed, read_all
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

PARTITIONS = 4


@contextlib.asynccontextmanager
async def positions_of(kafka: LocalKafka, group: str) -> AsyncIterator[defaultdict[int, list[int]]]:
    """What the group has committed in each partition, asked for again and again."""
    found: defaultdict[int, list[int]] = defaultdict(list)

    async def look() -> None:
        while True:
            for partition, one in (await committed(kafka.bootstrap_servers, group)).items():
                found[partition].append(one.offset)

    looking = asyncio.create_task(look())
    try:
        yield found
    finally:
        looking.cancel()
        await asyncio.wait([looking])


async def test_rebalances_without_new_records_move_no_position(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """One record of each partition never ends, nothing is written, and members come and go: what is committed stays
    at these, no position is reset, and no other record runs again."""
    topic, group = await kafka_topic(PARTITIONS), unique()
    fill(local_kafka.bootstrap_servers, topic, plain(80, partitions=PARTITIONS))
    calls: Counter[tuple[int, int]] = Counter()

    async def handle(record: Record) -> None:
        calls[record.partition, record.offset] += 1
        if record.offset == 5:
            raise ValueError("never")

    def one() -> ParallelConsumer[Any, Any]:
        return member(local_kafka, topic, group, failures=FailurePolicy(retry=RetryPolicy(first_delay=3600)))

    async def a_guest() -> None:
        second = one()
        async with consuming(second, handle):
            await until(lambda: second.stats().parked == first.stats().parked == 2)

    first = one()
    async with consuming(first, handle):
        await until(lambda: first.stats().parked == PARTITIONS and first.stats().succeeded == 76)
        await first.commit_now()
        async with positions_of(local_kafka, group) as positions:
            for _ in range(3):
                await a_guest()
                await until(lambda: first.stats().parked == PARTITIONS)
            await until(lambda: len(positions) == PARTITIONS)
        assert {offset for found in positions.values() for offset in found} == {5}
        assert first.stats().offset_resets == 0
    again = {place for place, count in calls.items() if count > 1}  # of those that have moved
    assert again
    assert again <= {(n, 5) for n in range(PARTITIONS)}


@pytest.mark.slow
async def test_commits_while_the_group_comes_together(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Records come all the time, each end is committed at once, and members come and go: each joins within seconds,
    all partitions are read after each rebalance, no position goes back, and nothing is lost."""
    topic, group = await kafka_topic(PARTITIONS), unique()
    runs: Counter[tuple[int, int]] = Counter()
    written = 0

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.005)
        runs[record.partition, record.offset] += 1

    async def write() -> None:
        nonlocal written
        while True:
            messages = [Message(b"%d" % n, b"x", partition=n % PARTITIONS) for n in range(40)]
            written += await asyncio.to_thread(fill, local_kafka.bootstrap_servers, topic, messages)

    def one() -> ParallelConsumer[Any, Any]:
        return member(local_kafka, topic, group, commit_interval=0.01, max_concurrency=20)

    async def a_guest() -> None:
        second = one()
        async with consuming(second, handle):
            took = await until(lambda: second.stats().succeeded > 100, what=lambda: str(second.stats()))
            assert took < SLACK
            seen = sum(runs.values())
            await until(lambda: sum(runs.values()) > seen + 200)

    async def all_are_read() -> None:
        before = [max(offset for partition, offset in runs if partition == n) for n in range(PARTITIONS)]
        await until(lambda: all((n, before[n] + 20) in runs for n in range(PARTITIONS)), what=lambda: str(before))

    async with consuming(one(), handle), positions_of(local_kafka, group) as positions:
        writing = asyncio.create_task(write())
        for _ in range(2):
            await a_guest()
            await all_are_read()
        writing.cancel()
        await asyncio.wait([writing])
        # What the thread had begun is written to its end.
        ends = await until_written(local_kafka, topic)
        await until(lambda: len(runs) == sum(ends.values()), what=lambda: f"{len(runs)} of {ends}")
    assert set(runs) == {(n, offset) for n, end in ends.items() for offset in range(end)}
    assert all(found == sorted(found) for found in positions.values())


async def until_written(kafka: LocalKafka, topic: str) -> dict[int, int]:
    """How many records each partition has when nobody writes any more."""
    count = -1
    while True:
        records = await read_all(kafka.bootstrap_servers, topic)
        if len(records) == count:
            return dict(Counter(record.partition for record in records))
        count = len(records)


async def test_a_revoke_cuts_handlers_short_and_drops_none_of_their_records(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """Handlers do not end within the drain timeout and many more records are buffered: what was cut short has not
    failed, what was not begun is not complete, and all of it runs at the next owner."""
    topic, dead, group = await kafka_topic(PARTITIONS), await kafka_topic(), unique()
    fill(local_kafka.bootstrap_servers, topic, plain(400, partitions=PARTITIONS))
    begun: list[tuple[int, int]] = []
    ended: Counter[tuple[int, int]] = Counter()
    release = asyncio.Event()

    async def hangs(record: Record) -> None:
        begun.append((record.partition, record.offset))
        await release.wait()
        ended[record.partition, record.offset] += 1

    async def handle(record: Record) -> None:
        ended[record.partition, record.offset] += 1

    def one() -> ParallelConsumer[Any, Any]:
        failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=dead)
        return member(local_kafka, topic, group, failures=failures, max_concurrency=40, drain_timeout=0.3)

    first = one()
    async with consuming(first, hangs):
        await until(lambda: first.stats().in_flight == 40 and first.stats().buffered > 100)
        async with consuming(one(), handle):
            await until(lambda: len(ended) == 200, what=lambda: str(first.stats()))
            release.set()
            await until(lambda: len(ended) == 400, what=lambda: str(first.stats()))
        assert first.stats().dead_lettered == 0
    assert set(ended) == {(n % PARTITIONS, n // PARTITIONS) for n in range(400)}
    assert set(ended.values()) == {1}


async def test_a_stop_while_the_broker_hangs(mortal_kafka: LocalKafka) -> None:
    """Leaving gives up what is not answered, each step within its deadline; who comes next runs no record again that
    was committed."""
    servers, topic, group = mortal_kafka.bootstrap_servers, unique(), unique()
    await mortal_kafka.create_topic(topic, PARTITIONS)
    fill(servers, topic, plain(40, partitions=PARTITIONS))
    ended: Counter[tuple[int, int]] = Counter()

    async def handle(record: Record) -> None:
        ended[record.partition, record.offset] += 1

    consumer = member(mortal_kafka, topic, group)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(consuming(consumer, handle))
        await until(lambda: len(ended) == 40)
        await consumer.commit_now()
        async with mortal_kafka.down(hang=True):
            began = asyncio.get_running_loop().time()
            await stack.aclose()
            assert asyncio.get_running_loop().time() - began < 10 + SLACK
    fill(servers, topic, plain(4, partitions=PARTITIONS))
    async with consuming(member(mortal_kafka, topic, group), handle):
        await until(lambda: len(ended) == 44)
    assert set(ended.values()) == {1}
