"""Dead letters that come back are handled, whatever way they take."""

from __future__ import annotations

from aioparallel.cli.dlq.replaying import Destination
from aioparallel.config.policies import Deduplicate, FailurePolicy, RetryPolicy
from aioparallel.records.record import Record, TopicPartition
from tests.support.memory.consuming import committed
from tests.support.memory.deduplicating import SEEN, Handled, broker_of, consuming, deduplicating, place, write
from tests.support.waiting import until


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
    async with consuming(deduplicating(broker, failures=policy), handle):
        for times in (1, 2, 3):
            await until(lambda: len(broker.records("t.dlq")) == times, 20)  # noqa: B023 - waited for at once
            letter = broker.records("t.dlq")[-1]
            again = Destination(None, same_partition=False, exists={TopicPartition("t", 0)}).outgoing(letter)
            assert not isinstance(again, str)
            broker.append("t", again.value, key=again.key, partition=0, headers=tuple(again.headers))
        await until(lambda: len(broker.records("t.dlq")) == 4, 20)
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


async def test_a_letter_that_is_replayed_is_handled_and_its_copies_are_not() -> None:
    """A dead letter was not handled: it may come back, as the command line sends it or as somebody else does."""
    broker = broker_of()
    broker.create_topic("t.retry", 1)
    broker.create_topic("t.dlq", 1)
    write(broker, 1, 3)
    fails, handled = True, Handled()

    async def handle(record: Record) -> None:
        if fails and record.value == b"3":
            raise ValueError("not yet")
        await handled(record)

    # Through a retry topic: for the first topic the record was seen.
    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"t.retry": 0.1}, dead_letter="t.dlq")
    async with consuming(deduplicating(broker, failures=policy), handle) as consumer:
        await until(lambda: committed(broker) == 2 and committed(broker, TopicPartition("t.retry", 0)) == 1)
    assert len(broker.records("t.dlq")) == 1
    fails = False
    broker.append("t", b"3", key=b"k3", partition=0, headers=(*place(3), ("aioparallel.replayed", b"t.dlq-0 offset 0")))
    write(broker, *range(3))
    broker.append("t", b"3", key=b"k3", partition=0, headers=(*place(3), ("aioparallel.replayed", b"t.dlq-0 offset 0")))
    async with deduplicating(broker, failures=policy, until="end") as consumer:
        await consumer.run(handle)
    assert sorted(handled.sources) == [0, 1, 2, 3]


async def test_a_dead_letter_sent_back_by_others_is_handled() -> None:
    """Without a word of ours in its headers: it was never handled."""
    broker = broker_of()
    broker.create_topic("t.dlq", 1)
    write(broker, 1, 2, 3)
    fails, handled = True, Handled()

    async def handle(record: Record) -> None:
        if fails and record.value == b"2":
            raise ValueError("not yet")
        await handled(record)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="t.dlq")
    async with deduplicating(broker, failures=policy, until="end") as consumer:
        await consumer.run(handle)
    fails = False
    write(broker, 1, 2, 3)
    async with deduplicating(broker, failures=policy, until="end") as consumer:
        await consumer.run(handle)
    assert sorted(handled.sources) == [1, 2, 3]


async def test_a_copy_of_what_waits_in_a_retry_topic_is_left_out() -> None:
    """It goes on there itself, and ends once."""
    broker = broker_of()
    broker.create_topic("t.retry", 1)
    write(broker, 1, 2, 3, 2, 1, 2)
    handled = Handled()

    async def handle(record: Record) -> None:
        if record.topic == "t" and record.value == b"2":
            raise ValueError("later")
        await handled(record)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"t.retry": 0.5})
    async with consuming(deduplicating(broker, failures=policy), handle):
        await until(lambda: committed(broker) == 6 and committed(broker, TopicPartition("t.retry", 0)) == 1)
        write(broker, 2)
        await until(lambda: committed(broker) == 7)
    assert sorted(handled.sources) == [1, 2, 3]
    assert len(broker.records("t.retry")) == 1
