"""Records that fail, on Apache Kafka: what becomes of them; the others do not notice. ``make load-failures``."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.delivery.letters import read_letter
from aioparallel.testing import LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.topics import fill_numbered, number_of, on_uvloop, read_all

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(300)]

RECORDS, KEYS, PARTITIONS = 100_000, 1_000, 8
HANDLER = 0.02


class Run(NamedTuple):
    """What one run has done."""

    healthy_seconds: float
    """From the first handler to the end of the last record of a key that never fails."""
    seconds: float
    succeeded: Counter[int]


def fails_twice(number: int) -> bool:
    """All records of a tenth of the keys."""
    return number % KEYS % 10 == 3


def poison(number: int) -> bool:
    """One in a thousand, all of keys that fail anyway."""
    return number % KEYS == 13


async def consume(servers: str, topic: str, dead_letters: str, *, failing: bool) -> Run:
    begun = healthy = 0.0
    succeeded: Counter[int] = Counter()
    order = OrderChecker()

    async def handle(record: Record) -> None:
        nonlocal begun, healthy
        begun = begun or time.perf_counter()
        number = number_of(record)
        with order.handling(record):
            await asyncio.sleep(HANDLER)
            if failing and (poison(number) or (fails_twice(number) and record.attempt <= 2)):
                raise ValueError(f"number {number}")
        succeeded[number] += 1
        if not fails_twice(number):
            healthy = time.perf_counter()

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"g-{uuid.uuid4().hex}",
        until="end",
        max_concurrency=500,
        max_buffered=50_000,
        failures=FailurePolicy(
            retry=RetryPolicy(first_delay=0.02, max_delay=0.05, max_attempts=4), dead_letter=dead_letters
        ),
    )
    async with consumer:
        await consumer.run(handle)
    assert not order.violations
    return Run(healthy - begun, time.perf_counter() - begun, succeeded)


async def test_poison_goes_to_the_dead_letters_and_healthy_keys_keep_their_rate(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Callable[[str], None]
) -> None:
    """Of 100,000 records 10 % fail twice and 0.1 % always: the good ones succeed once each, the others are dead letters
    once each in the order of their key, and keys that do not fail keep 90 % or more of their rate without failures."""
    servers = local_kafka.bootstrap_servers
    topic, dead_letters = await kafka_topic(PARTITIONS), await kafka_topic(2)
    fill_numbered(servers, topic, RECORDS, KEYS, PARTITIONS)
    healthy = sum(not fails_twice(n) for n in range(RECORDS))
    rates: dict[bool, list[float]] = {True: [], False: []}
    checked: set[tuple[int, int]] = set()
    for _ in range(3):
        for failing in (False, True):
            run = await asyncio.to_thread(on_uvloop, consume(servers, topic, dead_letters, failing=failing))
            rates[failing].append(healthy / run.healthy_seconds)
            expected = {n for n in range(RECORDS) if not (failing and poison(n))}
            assert set(run.succeeded) == expected
            assert set(run.succeeded.values()) == {1}
            tell(f"failing={failing}: healthy {rates[failing][-1]:,.0f}/s, all {RECORDS / run.seconds:,.0f}/s")
        letters = await read_all(servers, dead_letters)
        check_letters([one for one in letters if (one.partition, one.offset) not in checked])
        checked.update((one.partition, one.offset) for one in letters)
    ratio = sorted(rates[True])[1] / sorted(rates[False])[1]
    tell(f"healthy keys beside failing ones: {ratio:.3f} of their rate; {len(checked)} dead letters in three runs")
    assert ratio >= 0.9


def check_letters(letters: list[Record]) -> None:
    """Each poison record once, in the order of its key, with its origin and story."""
    numbers = [number_of(letter) for letter in letters]
    assert sorted(numbers) == [n for n in range(RECORDS) if poison(n)]
    last: dict[bytes | None, int] = {}
    for letter, number in zip(letters, numbers, strict=True):
        assert last.get(letter.key, -1) < number
        last[letter.key] = number
        story = read_letter(letter)
        assert story is not None
        assert (story.attempts, story.last.message) == (4, f"number {number}")


async def test_a_dead_letter_topic_that_cannot_be_written_for_twenty_seconds(tell: Callable[[str], None]) -> None:
    """With the broker of the dead letters gone for 20 s nothing is lost, nothing committed past what is pending."""
    with LocalKafka() as kafka, LocalKafka() as other:
        servers = kafka.bootstrap_servers
        await kafka.create_topic("source", PARTITIONS)
        await other.create_topic("dlq", 2)
        fill_numbered(servers, "source", 20_000, KEYS, PARTITIONS)
        await two_clusters(servers, other, tell)


async def two_clusters(servers: str, other: LocalKafka, tell: Callable[[str], None]) -> None:
    from aioparallel.clients import AiokafkaProducer  # noqa: PLC0415

    poisonous = [n for n in range(20_000) if poison(n)]

    async def handle(record: Record) -> None:
        if poison(number_of(record)):
            raise ValueError(f"number {number_of(record)}")

    producer = AiokafkaProducer(other.bootstrap_servers, delivery_timeout=5, consumer_options={}, producer_options={})
    consumer = ParallelConsumer(
        "source",
        bootstrap_servers=servers,
        group_id="g",
        producer=producer,
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dlq"),
    )
    async with consumer:
        await asyncio.to_thread(other.kill)
        running = asyncio.ensure_future(consumer.run(handle))
        down_since = time.monotonic()
        while time.monotonic() - down_since < 20:
            await asyncio.sleep(1)
            if consumer._engine is None:
                continue
            await consumer.commit_now()
            stats = consumer.stats()
            assert stats.dead_lettered == 0
            for part in stats.partitions:
                if part.incompletes:
                    assert part.committed is not None
                    assert part.committed < part.position
        pending = consumer.stats()
        assert pending.producing == 1  # one key, and it waits
        assert {problem.kind for problem in consumer.health().problems} == {"dead_letter_failed"}
        thread = threading.Thread(target=other.restart)
        thread.start()
        async with asyncio.timeout(90):
            while (stats := consumer.stats()).lag != 0 or stats.dead_lettered < len(poisonous):
                await asyncio.sleep(0.2)
        thread.join()
        recovered = time.monotonic() - down_since - 20
        consumer.stop()
        await running
    letters = await read_all(other.bootstrap_servers, "dlq")
    numbers = [number_of(letter) for letter in letters]
    assert list(dict.fromkeys(numbers)) == poisonous
    tell(
        f"20 s without the dead-letter topic: {pending.succeeded} others succeeded, {len(poisonous)} letters after it "
        f"was back ({recovered:.1f} s), {len(numbers) - len(poisonous)} of them twice"
    )
