"""Partitions that stand still are told, whatever the cause, and only those."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

import pytest

from aioparallel import ParallelConsumer, Record
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Fetched
from aioparallel.group.stalls import Stalls
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from tests.support.memory.consuming import GROUP, T0, Seen, consumer_of, produce
from tests.support.waiting import until

T1 = TopicPartition("t", 1)


class Standing(InMemoryClient):
    """Gives nothing of partition 0, and says nothing about it, as long as it stands."""

    stands = True

    async def fetch(self, quotas: Mapping[TopicPartition, int], most: int = sys.maxsize) -> list[Fetched]:
        return await super().fetch({p: quota for p, quota in quotas.items() if p != T0 or not self.stands}, most)


def broker_of() -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("t", 2)
    for partition in range(2):
        produce(broker, [b"%d" % n for n in range(20)], partition)
    return broker


def told(consumer: ParallelConsumer, kind: ProblemKind) -> list[str]:
    return [one.message for one in consumer.health().problems if one.kind is kind]


async def test_a_partition_that_stands_still(caplog: pytest.LogCaptureFixture) -> None:
    """The other one goes on; it is a problem, and one line, until it goes on, too."""
    broker = broker_of()
    client, seen = Standing(broker, GROUP, heartbeat_interval=0.02), Seen()
    consumer = ParallelConsumer(
        "t", group_id=GROUP, client=client, producer=InMemoryProducer(broker), stalled_after=5, commit_interval=0.02
    )
    async with asyncio.timeout(600), consumer:
        task = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.ended) == 20)
        assert told(consumer, ProblemKind.STALLED) == []
        took = await until(lambda: told(consumer, ProblemKind.STALLED))
        assert 4 < took < 8
        (text,) = told(consumer, ProblemKind.STALLED)
        assert text.startswith("t-0: nothing was read at offset 0 for ")
        assert "20 offsets are left" in text
        await asyncio.sleep(10)
        client.stands = False
        client.wake()
        await until(lambda: len(seen.ended) == 40)
        await until(lambda: not told(consumer, ProblemKind.STALLED))
        consumer.stop()
        await task
    assert [getattr(one, "action", "") for one in caplog.records].count("stalled") == 1


@pytest.mark.parametrize("full", [True, False], ids=["the buffer is full", "there is nothing"])
async def test_what_waits_for_a_reason(full: bool) -> None:
    """Handlers that take long fill the buffer, so nothing is asked for; an idle partition has nothing to read."""
    broker = broker_of() if full else InMemoryBroker()
    if not full:
        broker.create_topic("t", 2)

    async def handle(record: Record) -> None:
        await asyncio.Event().wait()

    consumer = consumer_of(broker, stalled_after=2, max_concurrency=2, max_buffered=4, drain_timeout=0.1)
    async with asyncio.timeout(600), consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.health().joined)
        await asyncio.sleep(20)
        assert told(consumer, ProblemKind.STALLED) == []
        if not full:
            produce(broker, [b"k"])
            await asyncio.sleep(1)
            assert told(consumer, ProblemKind.STALLED) == []
        consumer.stop()
        await task


async def test_an_open_transaction_of_another_producer() -> None:
    """Records behind it are not read, and do not count as lag: that is told, with the offset at which it stands."""
    broker, seen = broker_of(), Seen()
    transaction = broker.begin_transaction()
    broker.append("t", b"open", partition=0, transaction=transaction)
    produce(broker, [b"%d" % n for n in range(500)], 0)
    consumer = consumer_of(broker, isolation_level="read_committed", stalled_after=5)
    async with asyncio.timeout(600), consumer:
        task = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.ended) == 40)
        await until(lambda: told(consumer, ProblemKind.OPEN_TRANSACTION))
        (text,) = told(consumer, ProblemKind.OPEN_TRANSACTION)
        assert text.startswith("t-0: a transaction of another producer has been open at offset 20 for ")
        assert "the 501 offsets from there on" in text
        broker.end_transaction(transaction, commit=True)
        await until(lambda: len(seen.ended) == 541)
        await until(lambda: not told(consumer, ProblemKind.OPEN_TRANSACTION))
        consumer.stop()
        await task


class Ends:
    """In the place of a client: where logs end."""

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self.ends = ends

    def end_offset_seen(self, partition: TopicPartition) -> int | None:
        return self.ends.get(partition)

    written_end_seen = end_offset_seen


def test_many_are_told_together() -> None:
    """The first five one by one."""
    assignments = [Assignment(TopicPartition("t", number)) for number in range(500)]
    stalls = Stalls(Ends({assignment.partition: 10 for assignment in assignments}), 60.0)  # type: ignore[arg-type]
    stalls.look(assignments, 0.0)
    assert list(stalls.problems(59.0)) == []
    stalls.look(assignments[:400], 60.0)
    found = list(stalls.problems(60.0))
    assert len(found) == 6
    assert found[-1] == Problem(ProblemKind.STALLED, "and 395 more partitions")
    assignments[0].ledger.register([], 3)
    stalls.look(assignments, 61.0)
    assert not [one for one in stalls.problems(61.0) if one.message.startswith("t-0:")]
