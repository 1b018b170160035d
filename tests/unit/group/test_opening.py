"""Partitions that come: one of which nobody knows the log holds up no other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping

import pytest

from aioparallel import ParallelConsumer
from aioparallel.group.client import Committed
from aioparallel.observe.health import ProblemKind
from aioparallel.records.errors import NotAuthorized
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from tests.support.inside import run_of
from tests.support.memory.consuming import GROUP, Seen, committed, consumer_of, produce
from tests.support.waiting import until

KNOWN, FRESH, UNKNOWN = (TopicPartition("m", number) for number in range(3))


class Leaderless(InMemoryClient):
    """Of one partition nobody tells where its log begins and ends, until somebody leads it."""

    led = False

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, int]:
        if UNKNOWN in partitions and not self.led:
            await asyncio.sleep(timeout)
            raise TimeoutError
        return await super().beginning_offsets(partitions, timeout)


async def test_a_partition_whose_log_nobody_knows_holds_up_no_other(broker: InMemoryBroker) -> None:
    """One that has committed goes on at once, one that has not as soon as it is asked for by itself; the last one when
    it has a leader."""
    broker.create_topic("m", 3)
    for partition in range(3):
        produce(broker, [b"k"] * 5, partition, "m")
    broker.group(GROUP).offsets[KNOWN] = Committed(2, "")
    client = Leaderless(broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(300), ParallelConsumer("m", group_id=GROUP, client=client) as consumer:
        running = asyncio.create_task(consumer.run(seen := Seen()))
        began = loop.time()
        await until(lambda: len(seen.ended) == 3)
        assert loop.time() - began < 1
        await until(lambda: len(seen.ended) == 8)
        assert loop.time() - began < 4
        assert not [record for record in seen.ended if record.partition == UNKNOWN.partition]
        await asyncio.sleep(30)
        assert not running.done()
        client.led = True
        await until(lambda: len(seen.ended) == 13)
        await consumer.commit_now()
        assert [committed(broker, partition) for partition in (KNOWN, FRESH, UNKNOWN)] == [5, 5, 5]
        consumer.stop()
        await running


async def test_nor_does_one_of_a_topic_that_was_made_anew(broker: InMemoryBroker) -> None:
    """All were lost meanwhile; those with a leader are read from their beginnings at once."""
    broker.create_topic("m", 3)
    for partition in range(3):
        produce(broker, [b"k"] * 5, partition, "m")
    client = Leaderless(broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
    client.led = True
    async with asyncio.timeout(300), ParallelConsumer("m", group_id=GROUP, client=client) as consumer:
        running = asyncio.create_task(consumer.run(seen := Seen()))
        await until(lambda: len(seen.ended) == 15)
        await consumer.commit_now()
        client.led = False
        client.fenced(run_of(consumer)._rebalancer.assignments[KNOWN].generation)
        broker.delete_topic("m")
        broker.create_topic("m", 3)
        for partition in range(3):
            produce(broker, [b"k"] * 7, partition, "m")
        began = asyncio.get_running_loop().time()
        await until(lambda: len(seen.ended) == 15 + 14)
        assert asyncio.get_running_loop().time() - began < 5
        client.led = True
        await until(lambda: len(seen.ended) == 15 + 21)
        consumer.stop()
        await running


async def test_a_position_whose_log_has_no_leader_is_asked_about_now_and_then(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, once; the others are open, and the brokers are left in peace."""
    broker.create_topic("m", 3)
    for partition in range(3):
        produce(broker, [b"k"] * 5, partition, "m")
        broker.group(GROUP).offsets[TopicPartition("m", partition)] = Committed(2, "", 0)
    asked = 0

    class Unled(Leaderless):
        async def valid_ends(
            self, epochs: Mapping[TopicPartition, int], timeout: float
        ) -> Mapping[TopicPartition, int]:
            nonlocal asked
            asked += 1
            return {
                p: end for p, end in (await super().valid_ends(epochs, timeout)).items() if self.led or p != UNKNOWN
            }

    client = Unled(broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
    async with asyncio.timeout(300), ParallelConsumer("m", group_id=GROUP, client=client) as consumer:
        running = asyncio.create_task(consumer.run(seen := Seen()))
        await until(lambda: len(seen.ended) == 6)
        await asyncio.sleep(30)
        assert len(seen.ended) == 6
        assert asked <= 62
        assert caplog.text.count("m-2: no leader answers whether the log still holds the committed records") == 1
        client.led = True
        await until(lambda: len(seen.ended) == 9)
        consumer.stop()
        await running


async def test_what_is_asked_for_by_itself_may_end_the_run(broker: InMemoryBroker) -> None:
    """An error of one of them ends the run as ever, and nothing of the others is left."""
    broker.create_topic("m", 3)

    class Odd(Leaderless):
        async def beginning_offsets(
            self, partitions: Collection[TopicPartition], timeout: float
        ) -> Mapping[TopicPartition, int]:
            if set(partitions) == {FRESH}:
                raise NotAuthorized(f"asking where {FRESH} begins")
            return await super().beginning_offsets(partitions, timeout)

    before = asyncio.all_tasks()
    async with asyncio.timeout(300), ParallelConsumer("m", group_id=GROUP, client=Odd(broker, GROUP)) as consumer:
        with pytest.raises(NotAuthorized, match="m-1"):
            await consumer.run(Seen())
    assert asyncio.all_tasks() == before


async def test_a_topic_that_is_gone_is_told(broker: InMemoryBroker) -> None:
    """By its name while it is away; a pattern expects no topic."""
    for name in ("t1", "t2"):
        broker.create_topic(name, 1)

    for topics, expected in ((["t1", "t2"], ["t2"]), (re.compile("t."), [])):
        async with asyncio.timeout(120), consumer_of(broker, topics) as consumer:
            running = asyncio.create_task(consumer.run(Seen()))
            await until(lambda consumer=consumer: consumer.health().ready)  # type: ignore[misc]
            assert consumer.health().healthy
            broker.delete_topic("t2")
            problems = consumer.health().problems
            assert [problem.kind for problem in problems] == [ProblemKind.TOPIC_GONE] * len(expected)
            assert all("t2" in problem.message for problem in problems)
            broker.create_topic("t2", 1)
            assert consumer.health().healthy
            consumer.stop()
            await running
