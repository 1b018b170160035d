"""Runs of a queue go on, and end, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioparallel import ProduceFailed, Record
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryProducer, Request
from tests.support.waiting import SLACK, until
from tests.unit.queues.kmq.conftest import client, consumer, produce
from tests.unit.queues.kmq.test_queue import Handler, open_markers, running


async def test_a_second_stop_changes_nothing(broker: InMemoryBroker) -> None:
    """Nor does leaving the block while it drains: what was read ahead runs all the same."""
    handler = Handler(lambda record: asyncio.sleep(0.02))
    one = consumer(broker, lease=30, max_concurrency=2, max_buffered=20, drain_timeout=10)
    time = asyncio.get_running_loop().time
    async with running(one, handler):
        produce(broker, [b"%d" % n for n in range(100)])
        await until(lambda: handler.ended)
        one.stop()
        await asyncio.sleep(0.03)
        one.stop()
        began = time()
    assert time() - began < 3
    assert not open_markers(broker)


async def test_room_taken_by_records_of_a_lost_session_is_free_again(broker: InMemoryBroker) -> None:
    """The group expels it while all the room is taken by records whose start markers are on their way."""
    handler = Handler()
    one = KmqConsumer[Any, Any](
        "q",
        group_id="g",
        client=client(broker, "g"),
        producer=InMemoryProducer(broker, delivery_timeout=1),
        commit_interval=0.02,
        max_concurrency=5,
        max_buffered=10,
    )
    async with running(one, handler):
        broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
        produce(broker, [b"%d" % n for n in range(100)])
        await until(lambda: one.stats().intake == "full: max_buffered reached")
        (member,) = broker.member_ids("g")
        broker.expire_session("g", member, asyncio.get_running_loop().time())
        await until(lambda: one.health().ready and one.stats().partitions[0].epoch == 2)
        broker.faults.heal()
        await until(lambda: len(handler.ended) == 100)
        await until(lambda: not open_markers(broker))


async def test_records_that_wait_for_a_handler_take_room(broker: InMemoryBroker) -> None:
    """No more records are leased than are running and may be buffered: other consumers get the rest."""
    release, ended = asyncio.Event(), []

    async def handle(record: Record) -> None:
        await release.wait()
        ended.append(record.offset)

    async with running(consumer(broker, lease=30, max_concurrency=1, max_buffered=10), handle) as one:
        produce(broker, [b"%d" % n for n in range(100)])
        await until(lambda: one.stats().intake == "full: max_buffered reached", SLACK)
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert len(open_markers(broker)) <= 11
        assert one.stats().intake == "full: max_buffered reached"
        release.set()
        await until(lambda: len(ended) == 100)


async def test_what_ends_a_run_that_marks_is_not_waited_for(broker: InMemoryBroker) -> None:
    """A marker topic that may not be written: nothing more comes of those records."""
    time = asyncio.get_running_loop().time
    produce(broker, [b"a"])
    began = time()
    broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ProduceFailed, match="not authorised"):
        async with consumer(broker, drain_timeout=10) as one:
            await one.run(Handler())
    assert time() - began < 5
    assert {one.offset for one in broker.group("g").offsets.values()} == {0}
