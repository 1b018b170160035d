"""Topics of the failure policy on Apache Kafka."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaProducer

from aioparallel import FailurePolicy, Record, RetryPolicy
from aioparallel.delivery.letters import Letter, read_letter, write_letter
from aioparallel.records.errors import TopicNotFound
from aioparallel.records.record import Failure, Origin
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import fill_numbered, number_of
from tests.support.kafka.reading import read_all
from tests.support.waiting import until

pytestmark = pytest.mark.real


async def test_topics_of_the_failure_policy_must_exist(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """They are looked up when the consumer is opened, and not created."""
    topic = await kafka_topic()
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=f"{topic}.dlq")
    with pytest.raises(TopicNotFound, match=rf"{topic}\.dlq"):
        async with consumer_of(local_kafka.bootstrap_servers, topic, failures=failures):
            pass


async def test_a_record_goes_through_retry_topics(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The same consumer reads it again after each delay, with its history, and it ends well or as a dead letter."""
    servers = local_kafka.bootstrap_servers
    topic, first, second, dead_letters = [await kafka_topic() for _ in range(4)]
    fill_numbered(servers, topic, 3, keys=1)
    calls: list[tuple[int, str, int]] = []

    async def handle(record: Record) -> None:
        number = number_of(record)
        calls.append((number, record.topic, record.attempt))
        if number == 0 or (number == 1 and record.topic != second):
            raise ValueError(f"number {number}")

    retry_topics, once = {first: 0.2, second: 0.5}, RetryPolicy(max_attempts=1)
    failures = FailurePolicy(retry=once, retry_topics=retry_topics, dead_letter=dead_letters)
    async with consuming(consumer_of(servers, topic, failures=failures), handle):
        await until(lambda: len(calls) == 7, what=lambda: str(calls))
    assert [call for call in calls if call[0] == 0] == [(0, topic, 1), (0, first, 2), (0, second, 3)]
    assert [call for call in calls if call[0] == 1] == [(1, topic, 1), (1, first, 2), (1, second, 3)]
    (letter,) = await read_all(servers, dead_letters)
    story = read_letter(letter)
    assert story is not None
    assert (story.origin.topic, story.origin.offset, story.attempts) == (topic, 0, 3)


@pytest.mark.parametrize("ahead", [120.0, pytest.param(-120.0, marks=pytest.mark.slow)])
async def test_a_retry_topic_whose_writer_has_a_wrong_clock(
    ahead: float, local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """Its records wait for the delay, by the clock of their reader."""
    servers, delay = local_kafka.bootstrap_servers, 3.0
    topic, again, dead_letters = [await kafka_topic() for _ in range(3)]
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={again: delay}, dead_letter=dead_letters)
    handled: list[float] = []

    async def handle(record: Record) -> None:
        handled.append(time.monotonic())

    consumer = consumer_of(servers, topic, failures=failures)
    async with consuming(consumer, handle):
        await until(lambda: consumer.health().ready)
        await asyncio.sleep(1.5)  # an answer has told that the topic is empty, and a look has seen that
        wrong = time.time() + ahead
        failure = Failure(wrong, "a.B", "no")
        letter = Letter(Origin(topic, 0, 7, -1), "g", 1, failure, failure, "", wrong + delay)
        began = time.monotonic()
        headers = [*write_letter((), letter)]
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for _ in range(3):
                await producer.send_and_wait(again, b"v", b"k", timestamp_ms=int(wrong * 1_000), headers=headers)
        await until(lambda: len(handled) == 3)
    assert all(delay - 1.2 < at - began < delay + 2 for at in handled)
