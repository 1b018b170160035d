"""What handlers do to their own consumer in the turn in which their outputs are handed over."""

from __future__ import annotations

import asyncio

from aioparallel import Outgoing, Producing, Record
from aioparallel.observe.stats import Stats
from aioparallel.testing.memory import InMemoryBroker
from tests.support.inside import run_of
from tests.support.memory.consuming import committed, consumer_of
from tests.support.memory.sending import broker_with, values
from tests.support.waiting import until


def copy_of(record: Record) -> Outgoing:
    return Outgoing("out", record.value, record.key)


async def copied(record: Record) -> Outgoing:
    return copy_of(record)


async def test_statistics_add_up_inside_a_handler_that_produces() -> None:
    """Each handler sees itself in flight and those of its turn before it producing, nothing twice."""
    broker = broker_with([b"%d" % n for n in range(40)])
    seen: list[Stats] = []

    async def handle(record: Record) -> Outgoing:
        if record.offset % 3:
            seen.append(consumer.stats())
        return copy_of(record)

    async with asyncio.timeout(120), consumer_of(broker, until="end") as consumer:
        await consumer.run(handle)
    assert [stats.in_flight for stats in seen] == [1] * len(seen)
    assert all(s.admitted == s.buffered + s.in_flight + s.producing + s.ended for s in seen)
    assert any(stats.producing > 1 for stats in seen)
    assert committed(broker) == 40


async def test_a_handler_may_pause_and_produce() -> None:
    """Nothing starts after it, what was handed over is acknowledged; resume goes on, each output once."""
    broker = broker_with([b"%d" % (n % 7) for n in range(50)])
    seen: list[int] = []

    async def handle(record: Record) -> Outgoing:
        seen.append(record.offset)
        if len(seen) == 5:
            consumer.pause()
        return copy_of(record)

    async with asyncio.timeout(120), consumer_of(broker, until="end") as consumer:
        run = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine and consumer.stats().succeeded == 5)
        assert (len(seen), consumer.stats().producing) == (5, 0)
        consumer.resume()
        await run
    assert sorted(map(int, filter(None, values(broker, "out")))) == list(range(50))


async def test_a_handler_may_stop_the_run_and_produce() -> None:
    """Its output is acknowledged and its offset committed; what has not begun is left."""
    broker = broker_with([b"a", b"b", b"c", b"d", b"e"] * 10)
    seen: list[int] = []

    async def handle(record: Record) -> Outgoing:
        seen.append(record.offset)
        if record.offset == 3:
            consumer.stop()
        return copy_of(record)

    async with asyncio.timeout(120), consumer_of(broker) as consumer:
        await consumer.run(handle)
        stats = consumer.stats()
    assert seen == list(range(len(seen)))
    assert sorted(map(int, filter(None, values(broker, "out")))) == seen
    assert committed(broker) == len(seen)
    assert stats.admitted == stats.ended + stats.dropped


async def test_a_handler_whose_session_is_lost_while_it_runs_produces_nothing() -> None:
    """Dropped in the middle of the handler's first step: its output stays here, and nothing is committed."""
    broker = broker_with([b"a", b"b", b"c"])

    async def handle(record: Record) -> Outgoing:
        if record.offset == 1:
            engine = run_of(consumer)
            for session in list(engine._processor.scheduler.sources):
                engine._processor.scheduler.drop(session)
            consumer.stop()
        return copy_of(record)

    async with asyncio.timeout(120), consumer_of(broker) as consumer:
        await consumer.run(handle)
        stats = consumer.stats()
    assert values(broker, "out") in ([], [b"0"])
    assert stats.admitted == stats.ended + stats.dropped + stats.producing
    assert committed(broker) in {None, 0}


async def test_a_failing_partition_chooser_does_not_reach_the_turn() -> None:
    """An output that is refused at once fails its record later; those of the same turn are handed over."""
    broker = broker_with([b"a", b"b", b"c"])
    failed: list[int] = []

    async def handle(record: Record) -> Outgoing | None:
        if record.attempt > 1:
            failed.append(record.offset)
            return None
        output = copy_of(record)
        if record.offset == 1:
            output.partition = 99
        return output

    consumer = consumer_of(broker, until="end", producing=Producing(delivery_timeout=0.3))
    async with asyncio.timeout(120), consumer:
        await consumer.run(handle)
    assert failed == [1]
    assert sorted(filter(None, values(broker, "out"))) == [b"0", b"2"]
    assert committed(broker) == 3


async def test_a_handler_that_suspended_hands_over_too() -> None:
    """After a suspension a single output leaves in one step as well, and order by key holds."""
    broker: InMemoryBroker = broker_with([b"a", b"b"] * 20)

    async def handle(record: Record) -> Outgoing:
        await asyncio.sleep(0)
        return Outgoing("out", record.value, record.key, partition=0)

    async with asyncio.timeout(120), consumer_of(broker, until="end") as consumer:
        await consumer.run(handle)
    found = [int(value) for value in values(broker, "out") if value]
    assert [n for n in found if n % 2] == list(range(1, 40, 2))
    assert [n for n in found if n % 2 == 0] == list(range(0, 40, 2))


async def test_on_produced_finds_its_record_producing_and_may_stop_the_run() -> None:
    """The records of a batch end together, after on_produced has heard of each; stopped from there, what is on its way
    is waited for and committed."""
    broker = broker_with([b"%d" % n for n in range(30)])
    seen: list[Stats] = []

    def on_produced(*_: object) -> None:
        seen.append(consumer.stats())
        consumer.stop()

    consumer = consumer_of(broker, producing=Producing(on_produced=on_produced))
    async with asyncio.timeout(120), consumer:
        await consumer.run(copied)
        stats = consumer.stats()
    assert all(s.producing and s.admitted == s.buffered + s.in_flight + s.producing + s.ended for s in seen)
    assert stats.succeeded == committed(broker) == len(seen) == len(values(broker, "out"))
    assert stats.admitted == stats.ended + stats.dropped


async def test_acknowledged_in_the_turn_in_which_the_session_goes() -> None:
    """A session that is lost after an output was acknowledged and before its record has ended: the record is dropped,
    its ledger is left alone, and the key opens again."""
    broker = broker_with([b"a"])
    told = 0

    def on_produced(*_: object) -> None:
        nonlocal told
        told += 1
        engine = run_of(consumer)
        scheduler = engine._processor.scheduler
        for session in list(scheduler.sources):
            scheduler.drop(session)
        consumer.stop()

    consumer = consumer_of(broker, producing=Producing(on_produced=on_produced))
    async with asyncio.timeout(120), consumer:
        await consumer.run(copied)
        engine, stats = run_of(consumer), consumer.stats()
    assert (told, stats.succeeded, stats.dropped, stats.producing) == (1, 0, 1, 0)
    assert not engine._processor.scheduler._stale_lanes.left
    assert committed(broker) in {None, 0}
