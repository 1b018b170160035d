"""What users of other consumers have reported of records that fail, tried on this one. ``docs/testing.md`` names the
threads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioparallel import Batch, FailurePolicy, Outgoing, ProduceFailed, Record, RetryPolicy, Transactions, batches
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.integration.test_field_reports import member, offsets, plain, unique
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.kafka.filling import Message, fill, fill_numbered, number_of
from tests.support.kafka.reading import committed, read_all
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

HOUR = FailurePolicy(retry=RetryPolicy(first_delay=3600))


async def test_one_key_in_five_never_succeeds(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The others are handled to the last record and committed by the offset map; a restart runs none of them again."""
    topic, group = await kafka_topic(3), unique()
    fill_numbered(local_kafka.bootstrap_servers, topic, 10_000, keys=5)
    seen: list[int] = []

    async def handle(record: Record) -> None:
        if record.key == b"k3":
            raise ValueError("invalid")
        seen.append(number_of(record))

    consumer = member(local_kafka, topic, group, failures=HOUR)
    async with consuming(consumer, handle):
        await until(lambda: len(seen) == 8_000, what=lambda: str(consumer.stats()))
        await consumer.commit_now()
    assert sorted(seen) == [number for number in range(10_000) if number % 5 != 3]
    again: list[int] = []

    async def note(record: Record) -> None:
        again.append(number_of(record))

    await consume(member(local_kafka, topic, group, until="end"), note)
    assert again == list(range(3, 10_000, 5))


async def test_a_bad_record_fails_no_batch_for_ever(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A batch that fails comes again one by one: the bad record alone runs out of attempts."""
    topic, dead, group = await kafka_topic(), await kafka_topic(), unique()
    fill(local_kafka.bootstrap_servers, topic, plain(60))
    saved: list[int] = []

    async def save(batch: Batch[Record]) -> None:
        if any(record.offset == 20 for record in batch):
            raise ValueError("the whole batch")
        saved.extend(record.offset for record in batch)

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=3, first_delay=0.05), dead_letter=dead)
    consumer = member(local_kafka, topic, group, failures=failures, max_concurrency=3, until="end")
    stats = await consume(consumer, batches(save, size=3))
    assert sorted(saved) == [offset for offset in range(60) if offset != 20]
    assert (stats.dead_lettered, stats.lag) == (1, 0)
    assert [record.value for record in await read_all(local_kafka.bootstrap_servers, dead)] == [b"20"]


async def test_a_dead_letter_function_that_fails_calls_no_handler_again(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """It alone is called again, the other records go on, and its record is committed when it has succeeded."""
    topic, group = await kafka_topic(), unique()
    fill(local_kafka.bootstrap_servers, topic, plain(50))
    calls: Counter[int] = Counter()
    letters: list[int] = []
    broken = True

    async def handle(record: Record) -> None:
        calls[record.offset] += 1
        if record.offset == 7:
            raise ValueError("always")

    async def put_away(record: Record, _: Exception) -> None:
        letters.append(record.offset)
        if broken:
            raise OSError("no place for letters")

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=2, first_delay=0.05), dead_letter=put_away)
    consumer = member(local_kafka, topic, group, failures=failures)
    async with consuming(consumer, handle):
        await until(lambda: len(letters) >= 2 and consumer.stats().succeeded == 49, what=lambda: str(consumer.stats()))
        assert calls.pop(7) == 2
        assert set(calls.values()) == {1}
        await consumer.commit_now()
        assert (await committed(local_kafka.bootstrap_servers, group))[0].offset == 7
        broken = False

        async def taken() -> bool:
            return await offsets(local_kafka, group) == {topic: 50}

        await until(taken, what=lambda: str(consumer.stats()))
    assert calls[7] == 0
    assert set(letters) == {7}


async def test_endless_retries_hold_up_no_stop(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A batch handler that fails each time, without an end of its patience and with hardly a pause."""
    topic, group = await kafka_topic(), unique()
    fill(local_kafka.bootstrap_servers, topic, plain(20))
    calls = 0

    async def fails(_: Batch[Record]) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("always")

    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.001, max_delay=0.001))
    async with consuming(member(local_kafka, topic, group, failures=failures), batches(fails, size=5)):
        await until(lambda: calls > 100)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < SLACK
    assert (await committed(local_kafka.bootstrap_servers, group))[0].offset == 0


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in transactions"])
async def test_an_output_without_a_key_for_a_compacted_topic(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, together: bool
) -> None:
    """No broker takes it, whenever it is sent: its record is a dead letter at once, and nothing waits for it."""
    topic, dead, target = await kafka_topic(), await kafka_topic(), unique()
    await local_kafka.create_topic(target, 1, {"cleanup.policy": "compact"})
    fill(local_kafka.bootstrap_servers, topic, plain(100))

    async def handle(record: Record) -> Outgoing:
        return Outgoing(target, record.value, None if record.offset == 30 else record.key)

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=dead)
    given: dict[str, Any] = {"commits": Transactions()} if together else {}
    servers = local_kafka.bootstrap_servers
    consumer = consumer_of(servers, topic, failures=failures, until="end", **given)
    began = asyncio.get_running_loop().time()
    stats = await consume(consumer, handle)
    assert asyncio.get_running_loop().time() - began < SLACK
    assert (stats.succeeded, stats.dead_lettered, stats.lag) == (99, 1, 0)
    (letter,) = await read_all(local_kafka.bootstrap_servers, dead, is_committed=True)
    assert letter.value == b"30"
    assert ProduceFailed.__name__.encode() in dict(letter.headers)["aioparallel.error.type"]  # type: ignore[operator]
    written = [record.value for record in await read_all(local_kafka.bootstrap_servers, target, is_committed=True)]
    assert sorted(written, key=lambda value: int(value or b"")) == [b"%d" % n for n in range(100) if n != 30]


async def test_outputs_of_an_attempt_that_fails_are_not_there(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A handler gives an output and raises then; the next attempt gives it again. One of them is read."""
    topic, target = await kafka_topic(), await kafka_topic()
    fill(local_kafka.bootstrap_servers, topic, [Message(b"%d" % n, b"%d" % n) for n in range(40)])
    attempts: Counter[int] = Counter()

    async def handle(record: Record) -> AsyncIterator[Outgoing]:
        attempts[record.offset] += 1
        yield Outgoing(target, record.value, record.key)
        if attempts[record.offset] == 1 and record.offset % 2:
            raise ValueError("the first time")

    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.01))
    servers = local_kafka.bootstrap_servers
    consumer = consumer_of(servers, topic, failures=failures, commits=Transactions(), until="end")
    await consume(consumer, handle)
    written = [record.value for record in await read_all(local_kafka.bootstrap_servers, target, is_committed=True)]
    assert sorted(written, key=lambda value: int(value or b"")) == [b"%d" % n for n in range(40)]
    assert set(attempts.values()) == {1, 2}
