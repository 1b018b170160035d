"""Records as large as their topic takes, put away on Apache Kafka: they end, and their values come back."""

from __future__ import annotations

import asyncio
import random

import pytest
from aiokafka import AIOKafkaProducer

from aioparallel import FailurePolicy, Record, RetryPolicy, Transactions
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.config.policies import TooLargeLetters
from aioparallel.delivery.letters import read_letter
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.command_line import Ran, invoke
from tests.support.kafka.consuming import consume, consumer_of
from tests.support.kafka.reading import committed, read_all
from tests.support.waiting import until

pytestmark = pytest.mark.real

SIZE = 1_048_500
"""Bytes of a value: with its key and the batch around it 12 less than brokers take."""
VALUE = random.Random(44).randbytes(SIZE)
ONCE = RetryPolicy(max_attempts=1)


async def write(servers: str, topic: str, *values: bytes) -> None:
    """One after the other, with a key and a header."""
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", max_request_size=2_000_000) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, b"k", 0)


async def refuse(record: Record) -> None:
    """Each."""
    raise ValueError("no such order")


async def until_committed(servers: str, group: str, offset: int) -> None:
    """The end of a transaction is in the offsets' log a moment after it was answered."""

    async def is_it() -> bool:
        found = (await committed(servers, group)).get(0)
        return found is not None and found.offset == offset

    await until(is_it)


async def dlq(servers: str, command: str, topic: str, *options: str) -> Ran:
    """Run the command, in a thread."""
    where = {"AIOPARALLEL_BOOTSTRAP_SERVERS": servers}
    return await asyncio.to_thread(
        invoke, "dlq", command, topic, "--group", f"{topic}-marks", *options, environment=where
    )


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in transactions"])
async def test_a_record_as_large_as_its_topic_takes_ends_and_comes_back(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, together: bool
) -> None:
    """Its letter lacks its value, its offset is committed; show and replay read the value from the source. When
    that is gone they say so."""
    servers = local_kafka.bootstrap_servers
    topic, letters = await kafka_topic(), await kafka_topic()
    await write(servers, topic, VALUE, b"small")
    group, commits = f"{topic}-group", Transactions() if together else None
    policy = FailurePolicy(retry=ONCE, dead_letter=letters)
    stats = await consume(
        consumer_of(servers, topic, group_id=group, failures=policy, commits=commits, until="end"), refuse
    )
    assert (stats.dead_lettered, stats.cut_letters) == (2, 1)
    await until_committed(servers, group, 2)
    large, small = await read_all(servers, letters, is_committed=True)
    assert (large.key, large.value, small.value) == (b"k", b"", b"small")
    letter = read_letter(large)
    assert letter is not None
    assert letter.left_out is not None
    assert (letter.left_out.value, letter.origin[:3]) == (SIZE, (topic, 0, 0))

    shown = await dlq(servers, "show", letters, "--partition", "0", "--offset", "0")
    assert "not in it   all of the value's 1,048,500 bytes, read from its origin" in shown.stdout
    assert "value  (1,048,500 bytes)" in shown.stdout
    replayed = await dlq(servers, "replay", letters, "--limit", "1", "--yes")
    assert replayed.exit_code == 0, replayed.output
    assert "Replayed 1, failed 0" in replayed.stderr
    found: list[bytes | None] = []

    async def take(record: Record) -> None:
        found.append(record.value)

    await consume(consumer_of(servers, topic, group_id=group, commits=commits, until="end"), take)
    assert found == [VALUE]

    async with Admin(servers) as admin:
        await admin.delete_records({TopicPartition(topic, 0): 1})
    shown = await dlq(servers, "show", letters, "--all", "--partition", "0", "--offset", "0")
    assert f"cannot be read: the record is gone: {topic}-0 holds the offsets 1 to " in shown.stdout
    raw = await dlq(servers, "show", letters, "--all", "--partition", "0", "--offset", "0", "--raw")
    assert raw.exit_code != 0
    assert "lacks its value" in raw.stderr
    replayed = await dlq(servers, "replay", letters, "--to", topic, "--yes", "--no-mark")
    assert replayed.exit_code == 0, "the other one was never settled, and is whole"


@pytest.mark.parametrize("how", ["truncate", "hold"])
async def test_it_is_truncated_or_held_where_that_is_asked_for(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, how: TooLargeLetters
) -> None:
    """Half of the value stands there; or nothing does, and a problem says so."""
    servers = local_kafka.bootstrap_servers
    topic, letters = await kafka_topic(), await kafka_topic()
    await write(servers, topic, VALUE)
    policy = FailurePolicy(retry=ONCE, dead_letter=letters, dead_letter_too_large=how)
    consumer = consumer_of(servers, topic, failures=policy)
    async with consumer:
        running = asyncio.create_task(consumer.run(refuse))
        await until(lambda: consumer.health().running)
        if how == "hold":
            await until(lambda: any(one.kind == "dead_letter_failed" for one in consumer.health().problems))
        else:
            await until(lambda: consumer.stats().dead_lettered == 1)
        consumer.stop(drain=False)
        await running
    found = await read_all(servers, letters)
    assert [record.value for record in found] == ([] if how == "hold" else [VALUE[: SIZE // 2]])


async def test_a_queue_puts_it_away_as_well(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Its copy would have the count of its redeliveries, and the queue takes no record larger than it is."""
    servers, queue = local_kafka.bootstrap_servers, await kafka_topic()
    await local_kafka.create_topic(f"{queue}-markers")
    await local_kafka.create_topic(f"{queue}__undelivered")
    await write(servers, queue, VALUE)
    consumer = KmqConsumer[bytes, bytes](queue, bootstrap_servers=servers, group_id=queue, lease=1.0)
    async with consumer:
        running = asyncio.create_task(consumer.run(refuse))
        found: list[Record] = []

        async def is_there() -> bool:
            found[:] = await read_all(servers, f"{queue}__undelivered")
            return bool(found)

        await until(is_there)
        consumer.stop()
        await running
    letter = read_letter(found[0])
    assert letter is not None
    assert letter.left_out is not None
    assert letter.left_out.value == SIZE
