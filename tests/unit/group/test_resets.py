"""Positions outside the log, found again beside everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from aioparallel import ParallelConsumer
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Generation
from aioparallel.records.errors import PositionOutsideLog
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryClient, Request
from tests.support.memory.consuming import GROUP, T0, Seen, committed, consumer_of, produce
from tests.support.waiting import until
from tests.unit.group.test_large_maps import Kept, opener_of


async def test_a_reset_that_gets_no_answer_holds_up_nobody_else(broker: InMemoryBroker) -> None:
    """The broker does not tell where one log begins: the other partitions go on meanwhile, and this one as soon as the
    answer comes. What it had read before is committed all the while."""
    broker.create_topic("m", 2)
    produce(broker, [b"k"] * 10, 0, "m")
    seen = Seen()
    hit, well = TopicPartition("m", 0), TopicPartition("m", 1)
    async with asyncio.timeout(120), consumer_of(broker, "m") as consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: committed(broker, hit) == 10)
        broker.faults.always(Request.LIST_OFFSETS, Fault(is_request_lost=True))
        produce(broker, [b"k"] * 5, 0, "m")
        consumer.pause()
        produce(broker, [b"k"] * 5, 0, "m")
        await asyncio.sleep(0.1)
        produce(broker, [b"k"] * 5, 0, "m")
        end = broker.log(hit)
        assert end is not None
        broker.delete_before(hit, end.readable_end(read_committed=False))
        consumer.resume()
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        began, before = loop.time(), len(seen.ended)
        for count in range(1, 6):
            produce(broker, [b"k"], 1, "m")
            await until(lambda count=count: len(seen.ended) == before + count)  # type: ignore[misc]
        await until(lambda: committed(broker, well) == 5)
        assert loop.time() - began < 1
        assert consumer.stats().intake == "fetching"
        broker.faults.heal()
        produce(broker, [b"k"] * 5, 0, "m")
        await until(lambda: committed(broker, hit) == 30)
        assert consumer.stats().offset_resets == 1
        consumer.stop()
        await running


async def test_a_reset_whose_second_question_gets_no_answer_asks_again(broker: InMemoryBroker) -> None:
    """The broker tells where the log begins, and not where it ends: that wait has a deadline, too (I8)."""
    produce(broker, [b"k"] * 10)
    async with asyncio.timeout(120), consumer_of(broker, auto_offset_reset="latest") as consumer:
        running = asyncio.create_task(consumer.run(seen := Seen()))
        await until(lambda: committed(broker) == 10)
        produce(broker, [b"k"] * 10)
        await until(lambda: committed(broker) == 20)
        broker.faults.script(Request.LIST_OFFSETS, Fault(), Fault(is_request_lost=True))
        broker.truncate_tail(T0, 4)
        await until(lambda: consumer.stats().offset_resets == 1)
        produce(broker, [b"k"] * 3)
        await until(lambda: len(seen.ended) == 13)
        assert seen.offsets[-3:] == [4, 5, 6]
        consumer.stop()
        await running


@pytest.mark.parametrize(("held", "refused"), [(9, True), (10, False), (12, False)])
async def test_a_log_that_ends_before_the_position_is_told_where_resets_are_refused(
    broker: InMemoryBroker, held: int, refused: bool
) -> None:
    """A run that ends at a target below its position reads nothing, so no fetch would tell it."""
    produce(broker, [b"k"] * held)
    client = InMemoryClient(broker, "g")
    await client.start(10)
    store = Kept({T0: Committed(10, "")})
    opener = opener_of(client, store, refuses_resets=True)
    assignment = Assignment(T0, 1, Generation(1, "m"))
    assignment.target = 8
    if refused:
        with pytest.raises(PositionOutsideLog):
            await opener.open([assignment])
    else:
        await opener.open([assignment])
    assert assignment.opened is not refused
    await client.stop(10)


async def test_a_partition_that_goes_during_its_reset_is_given_away(broker: InMemoryBroker) -> None:
    """Stopping does not wait for a reset that gets no answer."""
    produce(broker, [b"k"] * 10)
    async with asyncio.timeout(120), consumer_of(broker, drain_timeout=5) as consumer:
        running = asyncio.create_task(consumer.run(seen := Seen()))
        await until(lambda: len(seen.ended) == 10)
        broker.faults.always(Request.LIST_OFFSETS, Fault(is_request_lost=True))
        broker.truncate_tail(T0, 4)
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        consumer.stop()
        await running
        assert asyncio.get_running_loop().time() - began < 1
    assert committed(broker) == 10


@pytest.mark.parametrize("handled", [0, 60])
async def test_until_end_ends_where_a_truncated_log_ends(broker: InMemoryBroker, handled: int) -> None:
    """The log lost its tail after the start (an unclean election), behind what was read or before it: the run ends at
    the end the log has now."""
    produce(broker, [b"k"] * 100)
    may_go, seen = asyncio.Event(), Seen()

    async def handle(record: object) -> None:
        if len(seen.ended) == handled:
            await may_go.wait()
        await seen(record)  # type: ignore[arg-type]

    async with asyncio.timeout(120), consumer_of(broker, until="end", max_buffered=4) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: len(seen.ended) == handled)
        await asyncio.sleep(0.1)
        broker.truncate_tail(T0, 30)
        may_go.set()
        await running
    assert committed(broker) == 30


async def test_what_retention_has_left_is_read_under_latest(broker: InMemoryBroker) -> None:
    """The log's beginning has overtaken a stopped group: it goes on there. What is left came after its position, and
    "latest" is for groups that have none."""
    async with asyncio.timeout(120):
        async with consumer_of(broker, auto_offset_reset="latest") as consumer:
            running = asyncio.create_task(consumer.run(Seen()))
            await until(lambda: committed(broker) == 0)
            produce(broker, [b"k"] * 5)
            await until(lambda: committed(broker) == 5)
            consumer.stop()
            await running
        produce(broker, [b"k"] * 10)
        broker.delete_before(T0, 8)
        async with consumer_of(broker, auto_offset_reset="latest", until="end") as consumer:
            await consumer.run(seen := Seen())
            assert consumer.stats().offset_resets == 1
    assert seen.offsets == list(range(8, 15))
    assert committed(broker) == 15


async def test_what_is_waited_for_is_told_now_and_then(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is away for minutes may lead hundreds of partitions."""

    class Unled(InMemoryClient):
        is_led = True

        async def valid_ends(
            self, epochs: Mapping[TopicPartition, int], timeout: float
        ) -> Mapping[TopicPartition, int]:
            return await super().valid_ends(epochs, timeout) if self.is_led else {}

    produce(broker, [b"k"] * 5)
    client = Unled(broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
    async with asyncio.timeout(600), ParallelConsumer("t", group_id=GROUP, client=client) as consumer:
        running = asyncio.create_task(consumer.run(seen := Seen()))
        await until(lambda: len(seen.ended) == 5)
        client.is_led = False
        log = broker.log(T0)
        assert log is not None
        log.elect()
        produce(broker, [b"k"] * 5)
        await asyncio.sleep(150)
        assert len(seen.ended) == 5
        assert 2 <= caplog.text.count("may be in another log by now") <= 4
        client.is_led = True
        await until(lambda: len(seen.ended) == 10)
        consumer.stop()
        await running
