"""Failures and outputs on Apache Kafka: small runs of what ``make load-failures`` does at full size."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from aioparallel import FailurePolicy, Outgoing, ParallelConsumer, Record, RetryPolicy
from aioparallel.delivery.letters import read_letter
from aioparallel.errors import TopicNotFound
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.topics import fill_numbered, number_of, read_all

pytestmark = pytest.mark.real

RECORDS, KEYS, PARTITIONS = 5_000, 100, 4


def fails_twice(number: int) -> bool:
    return number % 10 == 3


def poison(number: int) -> bool:
    return number % 250 == 13


async def test_each_record_ends_once_as_output_or_as_dead_letter(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """Good ones are produced once, in the order of their key; poison ones are dead letters once, in theirs; everything
    is committed."""
    servers = local_kafka.bootstrap_servers
    source, target, dead_letters = [await kafka_topic(PARTITIONS) for _ in range(3)]
    fill_numbered(servers, source, RECORDS, KEYS, PARTITIONS)
    order = OrderChecker()

    async def handle(record: Record) -> Outgoing:
        number = number_of(record)
        with order.handling(record):
            await asyncio.sleep(0.001)
            if poison(number) or (fails_twice(number) and record.attempt <= 2):
                raise ValueError(f"number {number}")
        return Outgoing(target, record.value, record.key)

    consumer = ParallelConsumer(
        source,
        bootstrap_servers=servers,
        group_id=f"{source}-g",
        until="end",
        failures=FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=3), dead_letter=dead_letters),
    )
    async with consumer:
        await consumer.run(handle)
        stats = consumer.stats()
    poisonous = sum(map(poison, range(RECORDS)))
    assert not order.violations
    assert (stats.succeeded, stats.dead_lettered, stats.lag) == (RECORDS - poisonous, poisonous, 0)
    assert_numbers(await read_all(servers, target), {n for n in range(RECORDS) if not poison(n)})
    letters = await read_all(servers, dead_letters)
    assert_numbers(letters, {n for n in range(RECORDS) if poison(n)})
    for letter in letters:
        story = read_letter(letter)
        assert story is not None
        assert (story.origin.topic, story.attempts, story.last.type) == (source, 3, "ValueError")
        assert story.last.message == f"number {number_of(letter)}"


def assert_numbers(records: list[Record], expected: set[int], most: int = 1) -> None:
    """Each expected number there, at most ``most`` times, and each key's in order by first occurrence."""
    counts = Counter(map(number_of, records))
    assert set(counts) == expected
    assert max(counts.values(), default=0) <= most
    by_key: dict[bytes | None, list[int]] = {}
    for record in records:
        numbers = by_key.setdefault(record.key, [])
        if number_of(record) not in numbers:
            numbers.append(number_of(record))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_a_broker_that_dies_while_outputs_are_on_their_way_loses_none() -> None:
    """Killed in the middle and brought back: every output is there, each key's in order."""
    with LocalKafka() as kafka:
        servers = kafka.bootstrap_servers
        await kafka.create_topic("source", PARTITIONS)
        await kafka.create_topic("target", PARTITIONS)
        fill_numbered(servers, "source", RECORDS, KEYS, PARTITIONS)
        restarting = threading.Thread(target=kafka.restart)

        async def handle(record: Record) -> Outgoing:
            if number_of(record) == RECORDS // 2:
                kafka.kill()
                restarting.start()
            await asyncio.sleep(0.001)
            return Outgoing("target", record.value, record.key)

        consumer = ParallelConsumer("source", bootstrap_servers=servers, group_id="g", until="end")
        async with asyncio.timeout(120), consumer:
            await consumer.run(handle)
            assert consumer.stats().failed_attempts == 0
        restarting.join()
        assert_numbers(await read_all(servers, "target"), set(range(RECORDS)), most=2)


async def test_topics_of_the_failure_policy_must_exist(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """They are looked up when the consumer is opened, and not created."""
    topic = await kafka_topic()
    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=local_kafka.bootstrap_servers,
        group_id="g",
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=f"{topic}.dlq"),
    )
    with pytest.raises(TopicNotFound, match=rf"{topic}\.dlq"):
        async with consumer:
            pass


async def test_a_record_goes_through_retry_topics(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The same consumer reads it again after each delay, with its history, and it ends well or as a dead letter."""
    servers = local_kafka.bootstrap_servers
    topic, first, second, dead_letters = [await kafka_topic() for _ in range(4)]
    fill_numbered(servers, topic, 3, 1, 1)
    calls: list[tuple[int, str, int]] = []

    async def handle(record: Record) -> None:
        number = number_of(record)
        calls.append((number, record.topic, record.attempt))
        if number == 0 or (number == 1 and record.topic != second):
            raise ValueError(f"number {number}")

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"{topic}-g",
        failures=FailurePolicy(
            retry=RetryPolicy(max_attempts=1), retry_topics={first: 0.2, second: 0.5}, dead_letter=dead_letters
        ),
    )
    async with asyncio.timeout(120), consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        while len(calls) < 7:
            await asyncio.sleep(0.01)
        consumer.stop()
        await running
    assert [call for call in calls if call[0] == 0] == [(0, topic, 1), (0, first, 2), (0, second, 3)]
    assert [call for call in calls if call[0] == 1] == [(1, topic, 1), (1, first, 2), (1, second, 3)]
    (letter,) = await read_all(servers, dead_letters)
    story = read_letter(letter)
    assert story is not None
    assert (story.origin.topic, story.origin.offset, story.attempts) == (topic, 0, 3)
