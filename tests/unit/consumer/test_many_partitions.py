"""Partitions by the hundred that go at once."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from aioparallel.records.record import Outgoing, Record, TopicPartition
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.inside import run_of
from tests.support.memory.consuming import consumer_of
from tests.support.waiting import until

PARTITIONS, RECORDS = 500, 190


@pytest.mark.parametrize("way", ["lost", "dropped one by one"])
async def test_losing_hundreds_of_partitions_holds_the_loop_for_milliseconds(way: str) -> None:
    """Five hundred assignments whose 190 outputs each are under way are lost in one step, or dropped one after the
    other: none of it holds the loop for long."""
    broker = InMemoryBroker()
    broker.create_topic("t", PARTITIONS)
    broker.create_topic("out", 1)
    for partition in range(PARTITIONS):
        for number in range(RECORDS):
            broker.append("t", b"v", key=b"%d" % number, partition=partition)
    broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", record.value, record.key)

    consumer = consumer_of(broker, max_concurrency=100, max_buffered=100_000)
    async with consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine and consumer.stats().producing == PARTITIONS * RECORDS)
        engine = run_of(consumer)
        rebalancer, scheduler = engine._rebalancer, engine._processor.scheduler
        gc.disable()  # what is left of other tests is not the matter here
        try:
            began = time.process_time()
            if way == "lost":
                rebalancer.lost([TopicPartition("t", number) for number in range(PARTITIONS)])
            else:
                for assignment in list(rebalancer.assignments.values()):
                    scheduler.drop(assignment)
            took = time.process_time() - began
        finally:
            gc.enable()
        print(f"{way}: {took * 1e3:.1f} ms")
        assert took < 0.5
        running.cancel()
        consumer.stop(drain=False)
