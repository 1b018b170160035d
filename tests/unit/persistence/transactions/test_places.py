"""Outputs whose place in the cluster goes, or does not answer, while the consumer runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aioparallel import FailurePolicy, Outgoing, ParallelConsumer, Record, RecordStopped, RetryPolicy, Transactions
from aioparallel.observe.health import ProblemKind
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryTransactionalProducer
from tests.support.waiting import until


@pytest.fixture
def broker() -> InMemoryBroker:
    """Records name the topic that their copy goes to."""
    broker = InMemoryBroker(nodes=2)
    broker.create_topic("in", 2)
    for topic in ("a", "b", "dead"):
        broker.create_topic(topic)
    return broker


def consumer_of(broker: InMemoryBroker, **options: Any) -> ParallelConsumer[Any, Any]:
    """Of group "g"."""
    return ParallelConsumer(
        "in",
        group_id="g",
        client=InMemoryClient(broker, "g", isolation_level="read_committed"),
        producer=InMemoryTransactionalProducer(broker, "g"),
        commits=Transactions(),
        **options,
    )


async def copy(record: Record) -> Outgoing:
    """To the topic that it names."""
    return Outgoing((record.value or b"").decode(), record.value, record.key)


async def test_a_topic_that_is_deleted_holds_up_nobody_for_long(broker: InMemoryBroker) -> None:
    """What waits for it is put away within one transaction; what comes for it later fails before it is complete, as
    with any topic that is not there. Other partitions go on. (All of them stood still, for good, and nobody was told
    why.)"""
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead")
    consumer = consumer_of(broker, failures=failures)
    async with asyncio.timeout(120), consumer:
        running = asyncio.ensure_future(consumer.run(copy))
        broker.append("in", b"a", partition=0)
        await until(lambda: len(broker.records("a")) == 1)
        broker.delete_topic("a")
        broker.append("in", b"a", partition=0)
        for _ in range(10):
            broker.append("in", b"b", partition=1)
        await until(lambda: len(broker.records("b")) == 10, 15)
        assert len(broker.records("dead")) == 1
        broker.append("in", b"a", partition=0)
        await until(lambda: len(broker.records("dead")) == 2, 15)
        stats = consumer.stats()
        assert stats.transactions is not None
        assert (stats.transactions.refused, stats.transactions.aborted_for) == (1, {"an output is refused": 1})
        assert stats.dead_lettered == 2
        consumer.stop()
        await running


async def test_a_topic_that_is_deleted_ends_the_run_where_nothing_takes_its_records(broker: InMemoryBroker) -> None:
    """With the topic's name, and what to do."""
    consumer = consumer_of(broker)
    async with asyncio.timeout(120), consumer:
        running = asyncio.ensure_future(consumer.run(copy))
        broker.append("in", b"a", partition=0)
        await until(lambda: len(broker.records("a")) == 1)
        broker.delete_topic("a")
        broker.append("in", b"a", partition=0)
        with pytest.raises(RecordStopped, match=r"in-0 offset 1: .*to a-0: topic not found.*dead_letter"):
            await running


@pytest.mark.parametrize(
    ("stop", "start"),
    [(InMemoryBroker.hang, InMemoryBroker.unhang), (InMemoryBroker.stop_node, InMemoryBroker.start_node)],
)
async def test_a_broker_that_does_not_answer_is_told_with_its_partition(
    broker: InMemoryBroker, stop: Callable[[InMemoryBroker, int], None], start: Callable[[InMemoryBroker, int], None]
) -> None:
    """One transaction after the other is aborted; ``health()`` says which partition has waited for what, also between
    two of them."""
    consumer = consumer_of(broker)
    async with asyncio.timeout(600), consumer:
        running = asyncio.ensure_future(consumer.run(copy))
        for topic in ("a", "b"):
            broker.append("in", topic.encode(), partition=0)
        await until(lambda: broker.records("a") and broker.records("b"))
        leader = broker.leader(TopicPartition("a", 0))
        assert leader is not None
        stop(broker, leader)
        broker.append("in", b"a", partition=0)
        problems: list[str] = []

        def told() -> bool:
            found = [one.message for one in consumer.health().problems if one.kind is ProblemKind.TRANSACTIONS_ABORTED]
            problems[:] = found
            return bool(found)

        await until(told, 60)
        assert "a-0" in problems[0]
        start(broker, leader)
        await until(lambda: len(broker.records("a")) == 2, 60)
        await until(lambda: not told())
        consumer.stop()
        await running
