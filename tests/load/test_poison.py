"""Records that fail, on Apache Kafka: what becomes of them, and of the others. The large size, and a dead-letter topic
that is gone: ``make load-failures``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aioparallel import FailurePolicy, Outgoing, Record, RetryPolicy
from aioparallel.clients import AiokafkaProducer
from aioparallel.delivery.letters import read_letter
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.kafka.filling import fill_numbered, number_of
from tests.support.kafka.reading import check_numbers, read_all
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PARTITIONS, KEYS = 4, 1_000


def fails_twice(number: int) -> bool:
    """All records of a tenth of the keys."""
    return number % 10 == 3


def poison(number: int) -> bool:
    """All records of one key in 250; it fails anyway."""
    return number % 250 == 13


@pytest.mark.parametrize("records", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_each_record_ends_once_as_output_or_as_dead_letter(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, records: int
) -> None:
    """Where 10 % fail twice and 0.4 % always: good ones are produced once, in the order of their key; poison ones are
    dead letters once, in theirs, with their origin and story; everything is committed."""
    servers = local_kafka.bootstrap_servers
    source, target, dead_letters = [await kafka_topic(PARTITIONS) for _ in range(3)]
    fill_numbered(servers, source, records, KEYS)
    order = OrderChecker()

    async def handle(record: Record) -> Outgoing:
        number = number_of(record)
        with order.handling(record):
            await asyncio.sleep(0.001)
            if poison(number) or (fails_twice(number) and record.attempt <= 2):
                raise ValueError(f"number {number}")
        return Outgoing(target, record.value, record.key)

    retry = RetryPolicy(first_delay=0.01, max_delay=0.05, max_attempts=3)
    consumer = consumer_of(
        servers, source, until="end", max_concurrency=500, failures=FailurePolicy(retry=retry, dead_letter=dead_letters)
    )
    stats = await consume(consumer, handle)
    order.check()
    poisonous = list(filter(poison, range(records)))
    assert (stats.dead_lettered, stats.succeeded, stats.lag) == (len(poisonous), records - len(poisonous), 0)
    check_numbers(await read_all(servers, target), [n for n in range(records) if not poison(n)])
    letters = await read_all(servers, dead_letters)
    check_numbers(letters, poisonous)
    for letter in letters:
        story = read_letter(letter)
        assert story is not None
        assert (story.origin.topic, story.attempts, story.last.type) == (source, 3, "ValueError")
        assert story.last.message == f"number {number_of(letter)}"


@pytest.mark.slow
async def test_a_dead_letter_topic_that_cannot_be_written_for_twenty_seconds(tell: Callable[[str], None]) -> None:
    """With the broker of the dead letters gone for 20 s nothing is lost, nothing committed past what is pending."""
    records = 20_000
    poisonous = [number for number in range(records) if poison(number)]

    async def handle(record: Record) -> None:
        if poison(number_of(record)):
            raise ValueError(f"number {number_of(record)}")

    async with LocalKafka(compile_once=True) as kafka, LocalKafka(compile_once=True) as other:
        await kafka.create_topic("source", PARTITIONS)
        await other.create_topic("dlq", 2)
        fill_numbered(kafka.bootstrap_servers, "source", records, KEYS)
        producer = AiokafkaProducer(
            other.bootstrap_servers, delivery_timeout=5, consumer_options={}, producer_options={}
        )
        failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dlq")
        consumer = consumer_of(kafka.bootstrap_servers, "source", producer=producer, failures=failures)
        async with consuming(consumer, handle):
            async with other.down():
                for _ in range(20):
                    await asyncio.sleep(1)
                    await consumer.commit_now()
                    stats = consumer.stats()
                    assert all(
                        part.committed is not None and part.committed < part.position
                        for part in stats.partitions
                        if part.incompletes
                    )
                assert stats.producing == len({number % KEYS for number in poisonous})  # each key waits
                assert {problem.kind for problem in consumer.health().problems} == {"dead_letter_failed"}
            took = await until(lambda: consumer.stats().lag == 0, what=lambda: str(consumer.stats()))
        letters = await read_all(other.bootstrap_servers, "dlq")
        twice = check_numbers(letters, poisonous, max_duplicates=None)
    tell(f"20 s without the dead-letter topic: {len(poisonous)} letters {took:.1f} s after it, {twice} of them twice")
