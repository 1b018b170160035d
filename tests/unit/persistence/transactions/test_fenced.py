"""Somebody else uses the transactional id."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from aioparallel import InstanceFenced, Outgoing, ParallelConsumer, Record
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryClient, InMemoryTransactionalProducer, Request
from tests.support.transactions import consuming
from tests.support.transactions.consuming import copy
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import until

COUNT = 20


def consumer_of(broker: InMemoryBroker) -> ParallelConsumer[Any, Any]:
    """Of group "g", that keeps its partitions when another member joins."""
    client = InMemoryClient(broker, "g", isolation_level="read_committed", heartbeat_interval=0.05, cooperative=True)
    return consuming.consumer_of(broker, client=client, drain_timeout=1.0, commit_timeout=2.0)


def test_what_was_being_committed_when_the_id_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can say from there whether it is: partitions that the member keeps are read anew, and what is committed
    is not written again."""
    caplog.set_level(logging.WARNING)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_lose_the_id())
    assert not any("aborted" in record.message for record in caplog.records)


async def _lose_the_id() -> None:
    broker = InMemoryBroker(nodes=1)
    broker.create_topic("in", 4)
    broker.create_topic("out")
    consumer, other = consumer_of(broker), consumer_of(broker)
    async with consumer:
        run = asyncio.create_task(consumer.run(copy))
        await asyncio.sleep(0.3)
        figures = consumer.stats().transactions
        assert figures is not None
        broker.faults.always(Request.END_TXN, Fault(is_response_lost=True))
        for number in range(COUNT):
            broker.append("in", b"%d" % number, key=b"%d" % number, partition=number % 4)
        await asyncio.sleep(0.15)
        assert len(broker.records("out")) == COUNT
        broker.faults.always(Request.JOIN, Fault(request_delay=1.0))  # it is told when it joins again already
        async with other:
            run_other = asyncio.create_task(other.run(copy))
            await asyncio.sleep(1.5)
            impostor = InMemoryTransactionalProducer(broker, "g")
            await impostor.start(1.0)
            impostor.identify_as(figures.transactional_id)
            await impostor.initialize(None, 10.0, 1.0)
            broker.faults.heal(Request.END_TXN)
            await asyncio.sleep(4.0)
            broker.faults.heal()
            await asyncio.sleep(10.0)
            found = Counter(record.value for record in broker.records("out"))
            assert found == Counter(b"%d" % number for number in range(COUNT))
            after = consumer.stats().transactions
            assert after is not None
            assert after.transactional_id != figures.transactional_id
            other.stop()
            await run_other
        consumer.stop()
        await run


async def slow_copy(record: Record) -> Outgoing:
    """To topic "out", a moment later."""
    await asyncio.sleep(0.5)
    return await copy(record)


def static(broker: InMemoryBroker) -> ParallelConsumer[Any, Any]:
    """Of group "g", with the instance id "one", of which no heartbeat tells in time."""
    client = InMemoryClient(
        broker,
        "g",
        isolation_level="read_committed",
        session_timeout=3_000.0,
        heartbeat_interval=1_000.0,
        group_instance_id="one",
    )
    producer = InMemoryTransactionalProducer(broker, "g", group_instance_id="one")
    return consuming.consumer_of(broker, client=client, producer=producer)


@pytest.mark.parametrize("ends", [False, True])
def test_the_transaction_of_one_whose_instance_id_another_has(ends: bool) -> None:
    """Its offsets are refused, so it is aborted; the run ends with that, also where it was to end by itself, and each
    output is there once."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_take_the_place(ends=ends))


async def _take_the_place(*, ends: bool) -> None:
    broker = consuming.broker_of()
    async with static(broker) as consumer, static(broker) as other:
        run = asyncio.create_task(consumer.run(slow_copy))
        await until(lambda: broker.group("g").offsets)  # where it begins
        run_other = asyncio.create_task(other.run(copy))
        await until(lambda: other.health().joined)
        broker.faults.always(Request.JOIN, Fault(is_request_lost=True))  # which would tell it as well
        for number in range(COUNT):
            broker.append("in", b"%d" % number, key=b"%d" % number)
        await until(lambda: consumer.stats().in_flight)
        if ends:
            consumer.stop()
        with pytest.raises(InstanceFenced, match="'one'"):
            async with asyncio.timeout(500):
                await run
        await until(lambda: other.stats().succeeded == COUNT and not other.stats().producing)
        found = Counter(record.value for record in broker.records("out"))
        assert found == Counter(b"%d" % number for number in range(COUNT))
        other.stop()
        await run_other


def test_a_member_whose_last_transaction_lost_its_partition_is_ready_again() -> None:
    """Nothing is left to commit there, so nobody waits for the next commit, which may be hours away."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_lose_what_was_to_be_committed())


async def _lose_what_was_to_be_committed() -> None:
    broker = consuming.broker_of(2)
    async with eager(broker) as consumer, eager(broker) as other:
        run = asyncio.create_task(consumer.run(copy))
        await until(lambda: len(broker.group("g").offsets) == 2)  # where it begins
        broker.faults.always(Request.TXN_OFFSETS, Fault(is_request_lost=True))
        broker.append("in", b"1", key=b"1", partition=1)
        await until(lambda: consumer.stats().succeeded)
        run_other = asyncio.create_task(other.run(copy))
        await until(lambda: other.stats().succeeded)
        broker.faults.heal()
        await until(lambda: broker.group("g").offsets[TopicPartition("in", 1)].offset == 1)
        await asyncio.sleep(60)
        figures = consumer.stats().transactions
        assert figures is not None
        assert figures.aborted == 1
        assert consumer.health().problems == ()
        assert consumer.health().ready
        for one, running in ((consumer, run), (other, run_other)):
            one.stop()
            await running
    assert [record.value for record in broker.records("out")] == [b"1"]


def eager(broker: InMemoryBroker) -> ParallelConsumer[Any, Any]:
    """A member that gives its partitions up soon."""
    client = InMemoryClient(broker, "g", isolation_level="read_committed", heartbeat_interval=0.05)
    return consuming.consumer_of(broker, client=client, drain_timeout=1.0, commit_timeout=2.0)
