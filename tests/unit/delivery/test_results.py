"""``async for result in consumer.results(handler)``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aioparallel import Record
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until


def broker_of(count: int) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("t")
    produce(broker, [b"%d" % (i % 5) for i in range(count)])
    return broker


async def double(record: Record) -> int:
    return 2 * record.offset


async def test_every_value_comes_with_its_record_and_all_is_committed() -> None:
    """Each record's value once; after the last one everything is committed."""
    broker = broker_of(200)
    got = []
    async with consumer_of(broker, until="end") as consumer:
        async for record, value in consumer.results(double):
            got.append((record.offset, value))
    assert sorted(got) == [(i, 2 * i) for i in range(200)]
    assert committed(broker) == 200


async def test_none_is_a_result_too() -> None:
    """A handler that returns nothing gives one for each record; so does a deferral."""
    broker = broker_of(4)

    async def handle(record: Record) -> None:
        if record.offset == 2:
            asyncio.get_running_loop().call_soon(record.defer(5).complete)

    async with consumer_of(broker, until="end") as consumer:
        got = sorted([(record.offset, value) async for record, value in consumer.results(handle)])
    assert got == [(0, None), (1, None), (2, None), (3, None)]


async def test_a_slow_reader_slows_the_handlers_down() -> None:
    """Handlers run at most max_concurrency ahead of the unread results, which are as many again."""
    broker = broker_of(200)
    started = 0

    async def handle(record: Record) -> int:
        nonlocal started
        started += 1
        return 0

    async with consumer_of(broker, until="end", max_concurrency=3) as consumer:
        read = 0
        async for _ in consumer.results(handle):
            read += 1
            if read < 40:
                await asyncio.sleep(0.001)
            assert started <= read + 3 + 3 + 1
    assert read == 200


async def test_a_record_completes_when_the_next_result_is_asked_for() -> None:
    """What the reader has in hand is not committed: a crash now would run it again."""
    broker = broker_of(3)
    async with consumer_of(broker, until="end", max_concurrency=1) as consumer:
        results = consumer.results(double)
        await anext(results)
        await consumer.commit_now()
        assert committed(broker) == 0
        await anext(results)
        await consumer.commit_now()
        assert committed(broker) == 1
        await results.aclose()


async def test_leaving_the_loop_early_commits_what_was_read_and_waits_for_nothing() -> None:
    """After ``break`` the consumer closes at once; the unread and the last one run again."""
    broker = broker_of(50)
    loop = asyncio.get_running_loop()
    async with consumer_of(broker, drain_timeout=30) as consumer:
        read = 0
        async for _ in consumer.results(double):
            read += 1
            if read == 10:
                break
        began = loop.time()
    assert loop.time() - began < 15
    again = []
    async with consumer_of(broker, until="end") as consumer:
        async for record, _ in consumer.results(double):
            again.append(record.offset)
    assert len(again) == 41


async def test_an_error_of_the_reader_passes_and_one_of_the_run_is_raised() -> None:
    """The reader's own exception is not hidden; a fatal one of the consumer comes out of the loop."""
    broker = broker_of(5)

    async def exits(record: Record) -> int:
        raise SystemExit(3)

    async def read(handler: Callable[[Record], Awaitable[int]]) -> None:
        async with consumer_of(broker) as consumer:
            async for _ in consumer.results(handler):
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read(double)
    with pytest.raises(SystemExit):
        await read(exits)


async def test_a_handler_that_fails_is_tried_again_and_gives_one_result() -> None:
    """Failures follow the policy; results come of successes only."""
    broker = broker_of(20)

    async def handle(record: Record) -> int:
        if record.attempt == 1 and record.offset % 4 == 0:
            raise ValueError
        return record.attempt

    async with consumer_of(broker, until="end") as consumer:
        got = [(record.offset, value) async for record, value in consumer.results(handle)]
    assert sorted(got) == [(i, 2 if i % 4 == 0 else 1) for i in range(20)]


async def test_stop_ends_the_stream() -> None:
    """stop() from elsewhere: what is on its way is still given, then the loop ends."""
    broker = broker_of(10)
    async with consumer_of(broker) as consumer:
        results = consumer.results(double)
        got = [await anext(results) for _ in range(10)]
        await until(lambda: consumer.stats().buffered == 0)
        consumer.stop()
        got += [result async for result in results]
    assert len(got) == 10
    assert committed(broker) == 10
