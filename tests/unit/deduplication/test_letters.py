"""Dead letters that come back are handled, whatever way they take."""

from __future__ import annotations

import asyncio

from aioparallel.cli.dlq.replaying import Destination
from aioparallel.policies import Deduplicate, FailurePolicy, RetryPolicy
from aioparallel.records import Record, TopicPartition
from tests.unit.engine.memory import committed, until

from .world import SEEN, broker_of, deduplicating, place, write


async def test_a_replayed_letter_passes_all_retry_topics_again() -> None:
    """The first time it was seen in each of them; it fails once more, and none leaves it out."""
    broker, tried = broker_of(), []
    topics = ("t.1", "t.2", "t.3")
    for topic in (*topics, "t.dlq"):
        broker.create_topic(topic, 1)
    write(broker, 1)

    async def handle(record: Record) -> None:
        tried.append(record.topic)
        raise ValueError("not yet")

    policy = FailurePolicy(
        retry=RetryPolicy(max_attempts=1), retry_topics=dict.fromkeys(topics, 0.1), dead_letter="t.dlq"
    )
    async with asyncio.timeout(600), deduplicating(broker, failures=policy) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        for times in (1, 2, 3):
            await until(lambda: len(broker.records("t.dlq")) == times, 20)  # noqa: B023 - waited for at once
            letter = broker.records("t.dlq")[-1]
            again = Destination(None, same_partition=False, exists={TopicPartition("t", 0)}).outgoing(letter)
            assert not isinstance(again, str)
            broker.append("t", again.value, key=again.key, partition=0, headers=tuple(again.headers))
        await until(lambda: len(broker.records("t.dlq")) == 4, 20)
        consumer.stop()
        await running
    assert tried == ["t", *topics] * 4


async def test_by_key_a_replayed_letter_is_handled() -> None:
    """Though its key has been seen further since."""
    broker, handled = broker_of(), []

    async def handle(record: Record) -> None:
        handled.append(record.value)

    write(broker, 1, 2, 3, key=b"k")
    broker.append("t", b"again", key=b"k", partition=0, headers=(*place(1), ("aioparallel.replayed", b"t.dlq-0 0")))
    broker.append("t", b"again", key=b"k", partition=0, headers=(*place(1), ("aioparallel.replayed", b"t.dlq-0 0")))
    async with deduplicating(broker, deduplicate=Deduplicate(SEEN, by="key"), until="end") as consumer:
        await consumer.run(handle)
    assert handled == [b"1", b"2", b"3", b"again"]
    assert committed(broker) == 5
