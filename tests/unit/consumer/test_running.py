"""A consumer's life on the broker in memory: run, stop, pause, restart, end."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from dataclasses import replace

import pytest

from aioparallel import Batch, Extension, Stats, batches
from aioparallel.config.options import OptionFields
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.errors import (
    ClientError,
    ConfigurationError,
    ConsumerStateError,
)
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.memory.consuming import T0, Seen, committed, consumer_of, produce
from tests.support.waiting import until


async def run_to_end(consumer: ParallelConsumer, handler: Seen) -> None:
    async with asyncio.timeout(10), consumer:
        await consumer.run(handler)


async def test_runs_everything_in_key_order_and_commits_the_end(broker: InMemoryBroker) -> None:
    """Each record runs once, each key in order, and the committed offset is the end offset."""
    broker.create_topic("many", 4)
    for partition in range(4):
        produce(broker, [str(i % 7).encode() for i in range(100)], partition, "many")
    seen = Seen(0.001)
    await run_to_end(consumer_of(broker, "many", until="end", max_concurrency=20), seen)
    places = [(record.partition, record.offset) for record in seen.ended]
    assert sorted(places) == [(p, o) for p in range(4) for o in range(100)]
    for key in {(record.partition, record.key) for record in seen.started}:
        offsets = [r.offset for r in seen.started if (r.partition, r.key) == key]
        assert offsets == sorted(offsets)
    assert [committed(broker, TopicPartition("many", p)) for p in range(4)] == [100] * 4


async def test_until_end_on_an_empty_topic_returns(broker: InMemoryBroker) -> None:
    """With nothing to read the run ends at once, and the start is committed."""
    await run_to_end(consumer_of(broker, until="end"), Seen())
    assert committed(broker) == 0


async def test_until_end_leaves_what_comes_later(broker: InMemoryBroker) -> None:
    """Records produced after the start are not run."""
    produce(broker, [b"a"] * 5)
    seen = Seen()

    async def handle(record: Record) -> None:
        if not seen.started:
            produce(broker, [b"late"] * 5)
        await seen(record)

    consumer = consumer_of(broker, until="end")
    async with asyncio.timeout(10), consumer:
        await consumer.run(handle)
    assert (seen.offsets, committed(broker)) == ([0, 1, 2, 3, 4], 5)


async def test_until_end_leaves_what_comes_with_the_same_fetch(broker: InMemoryBroker) -> None:
    """Records produced after the start and before the first fetch: they are neither run nor committed, and the next
    run begins with them."""
    produce(broker, [b"a"] * 5)
    broker.faults.always(Request.FETCH, Fault(request_delay=0.5))
    seen = Seen()
    async with asyncio.timeout(10), consumer_of(broker, until="end") as consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: consumer._engine is not None)
        produce(broker, [b"late"] * 5)
        await running
    assert (seen.offsets, committed(broker)) == ([0, 1, 2, 3, 4], 5)
    again = Seen()
    await run_to_end(consumer_of(broker, until="end"), again)
    assert (again.offsets, committed(broker)) == ([5, 6, 7, 8, 9], 10)


async def test_stop_drains_what_is_in_flight_and_starts_nothing(broker: InMemoryBroker) -> None:
    """stop() lets running handlers end, commits them, and leaves the rest for the next run."""
    produce(broker, [str(i).encode() for i in range(50)])
    seen = Seen(0.05)
    consumer = consumer_of(broker, max_concurrency=5)
    async with asyncio.timeout(10), consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.started) == 5)
        consumer.stop()
        consumer.stop()
        await running
    assert sorted(seen.offsets) == [0, 1, 2, 3, 4]
    assert committed(broker) == 5


async def test_stop_without_drain_cancels(broker: InMemoryBroker) -> None:
    """stop(drain=False) cancels what runs: it is not committed and runs again in the next run."""
    produce(broker, [b"a", b"b"])
    seen = Seen(60)
    consumer = consumer_of(broker)
    async with asyncio.timeout(10), consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.started) == 2)
        consumer.stop(drain=False)
        await running
    assert (seen.ended, committed(broker)) == ([], 0)
    again = Seen()
    await run_to_end(consumer_of(broker, until="end"), again)
    assert again.offsets == [0, 1]


async def test_stop_without_drain_cancels_a_batch(broker: InMemoryBroker) -> None:
    """All its records run again in the next run."""
    produce(broker, [b"a", b"b", b"c"])
    sizes: list[int] = []

    async def hang(batch: Batch[Record]) -> None:
        sizes.append(len(batch))
        await asyncio.sleep(60)

    async with asyncio.timeout(10), consumer_of(broker) as consumer:
        running = asyncio.create_task(consumer.run(batches(hang, size=3, linger=0.01)))
        await until(lambda: sizes == [3])
        assert consumer.stats().in_flight == 3
        consumer.stop(drain=False)
        await running
    assert committed(broker) == 0
    again = Seen()
    await run_to_end(consumer_of(broker, until="end"), again)
    assert again.offsets == [0, 1, 2]


async def test_leaving_the_block_stops_a_run_in_the_background(broker: InMemoryBroker) -> None:
    """The end of `async with` drains, commits and ends the run, as in an application's lifespan."""
    produce(broker, [b"a", b"b"])
    seen = Seen(0.05)
    async with asyncio.timeout(10):
        async with consumer_of(broker) as consumer:
            running = asyncio.create_task(consumer.run(seen))
            await until(lambda: len(seen.started) == 2)
        await running
    assert committed(broker) == len(seen.ended) == 2


async def test_cancelling_the_run_drains_at_the_end_of_the_block(broker: InMemoryBroker) -> None:
    """A cancelled run raises CancelledError at once; leaving the block still drains and commits."""
    produce(broker, [b"a", b"b", b"a"])
    seen = Seen(0.05)
    async with asyncio.timeout(10):
        async with consumer_of(broker) as consumer:
            running = asyncio.create_task(consumer.run(seen))
            await until(lambda: seen.started)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not seen.ended
    assert committed(broker) == len(seen.ended) == 2


async def test_a_handler_that_ignores_cancellation_does_not_hold_the_close(broker: InMemoryBroker) -> None:
    """Close ends within its deadlines, names the handler, and commits nothing of it."""
    produce(broker, [b"a"])
    release = asyncio.Event()

    async def handle(record: Record) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    loop = asyncio.get_running_loop()
    consumer = consumer_of(broker, drain_timeout=0.1)
    async with asyncio.timeout(10):
        async with consumer:
            running = asyncio.create_task(consumer.run(handle))
            await until(lambda: consumer._engine is not None and consumer.stats().in_flight == 1)
            consumer.stop()
            since = loop.time()
            await running
        assert loop.time() - since < 3
    assert committed(broker) == 0
    release.set()
    await asyncio.sleep(0)


async def test_pause_and_resume(broker: InMemoryBroker) -> None:
    """While paused nothing starts, what is in flight ends and is committed; resume goes on."""
    seen = Seen(0.01)
    consumer = consumer_of(broker, max_concurrency=2)
    async with asyncio.timeout(10), consumer:
        running = asyncio.create_task(consumer.run(seen))
        produce(broker, [str(i).encode() for i in range(20)])
        await until(lambda: len(seen.started) >= 4)
        consumer.pause()
        await until(lambda: len(seen.started) == len(seen.ended))
        at = len(seen.started)
        await until(lambda: committed(broker) == at)
        assert (len(seen.started), consumer.stats().intake) == (at, "paused")
        consumer.resume()
        await until(lambda: len(seen.ended) == 20)
        consumer.stop()
        await running


async def test_restart_runs_only_the_stuck_record(broker: InMemoryBroker) -> None:
    """One record stuck, 10,000 complete above it: after a crash exactly the stuck one runs again."""
    produce(broker, [str(i).encode() for i in range(10_001)])
    ended: list[int] = []

    async def stuck_at_first(record: Record) -> None:
        if record.offset == 0:
            await asyncio.Event().wait()
        ended.append(record.offset)

    consumer = consumer_of(broker, max_buffered=20_000)
    async with asyncio.timeout(20), consumer:
        running = asyncio.create_task(consumer.run(stuck_at_first))
        await until(lambda: len(ended) == 10_000)
        await consumer.commit_now()
        stats = consumer.stats().partitions[0]
        assert (stats.committed, stats.incompletes, stats.highest_completed, stats.lag) == (0, 1, 10_000, 1)
        consumer.stop(drain=False)
        await running
    again = Seen()
    await run_to_end(consumer_of(broker, until="end"), again)
    assert again.offsets == [0]
    assert committed(broker) == 10_001


async def test_commit_now_says_when_it_could_not(broker: InMemoryBroker) -> None:
    """commit_now() raises when the broker does not answer in time; the next commit makes up for it."""
    produce(broker, [b"a"])
    seen = Seen()
    consumer = consumer_of(broker, commit_interval=60, commit_timeout=0.2)
    async with asyncio.timeout(10), consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: seen.ended)
        broker.faults.always(Request.COMMIT, Fault(is_request_lost=True))
        with pytest.raises(ClientError, match="no acknowledged commit"):
            await consumer.commit_now()
        broker.faults.heal()
        await consumer.commit_now()
        assert committed(broker) == 1
        consumer.stop()
        await running


async def test_commit_after_so_many_completions(broker: InMemoryBroker) -> None:
    """commit_after commits early, long before commit_interval."""
    produce(broker, [str(i).encode() for i in range(100)])
    consumer = consumer_of(broker, commit_interval=60, commit_after=100)
    async with asyncio.timeout(10), consumer:
        running = asyncio.create_task(consumer.run(Seen()))
        await until(lambda: committed(broker) == 100)
        consumer.stop()
        await running


async def test_handlers_by_topic(broker: InMemoryBroker) -> None:
    """run({topic: handler}) gives each topic its own; a topic without one is refused before anything runs."""
    broker.create_topic("u", 1)
    produce(broker, [b"a"])
    produce(broker, [b"b"], topic="u")
    for_t, for_u = Seen(), Seen()
    async with asyncio.timeout(10), consumer_of(broker, ["t", "u"], until="end") as consumer:
        await consumer.run({"t": for_t, "u": for_u})
    assert [r.topic for r in for_t.ended + for_u.ended] == ["t", "u"]
    async with consumer_of(broker, ["t", "u"]) as consumer:
        with pytest.raises(ConfigurationError, match="has none for topic u"):
            await consumer.run({"t": for_t})


async def test_topics_by_pattern(broker: InMemoryBroker) -> None:
    """A compiled pattern takes in every topic whose whole name matches, later ones too."""
    broker.create_topic("t1", 1)
    broker.create_topic("other-t1", 1)
    produce(broker, [b"a"], topic="t1")
    produce(broker, [b"a"], topic="other-t1")
    seen = Seen()
    consumer = consumer_of(broker, re.compile(r"t\d"))
    async with asyncio.timeout(10), consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: seen.ended)
        broker.create_topic("t2", 1)
        produce(broker, [b"a"], topic="t2")
        await until(lambda: len(seen.ended) == 2)
        consumer.stop()
        await running
    assert [record.topic for record in seen.ended] == ["t1", "t2"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"auto_offset_reset": "earliest"}, [0, 1, 2, 3, 4]),
        ({"auto_offset_reset": "latest"}, []),
        ({"start_at": {T0: 3}}, [3, 4]),
        ({"start_at": dt.datetime.fromtimestamp(2, dt.UTC)}, [2, 3, 4]),
        ({"start_at": dt.datetime.fromtimestamp(2, dt.UTC) + dt.timedelta(microseconds=1)}, [3, 4]),
        ({"start_at": dt.datetime.fromtimestamp(2, dt.UTC) - dt.timedelta(microseconds=1)}, [2, 3, 4]),
        ({"start_at": dt.datetime.fromtimestamp(99, dt.UTC)}, []),
        ({"start_at": {TopicPartition("t", 9): 3}, "auto_offset_reset": "latest"}, []),
    ],
)
async def test_where_a_new_group_starts(broker: InMemoryBroker, options: OptionFields, expected: list[int]) -> None:
    """auto_offset_reset and start_at decide for a group that has committed nothing."""
    for i in range(5):
        broker.append("t", b"v", key=b"k", timestamp=i * 1000)
    seen = Seen()
    options["until"] = "end"
    await run_to_end(consumer_of(broker, **options), seen)
    assert seen.offsets == expected
    assert committed(broker) == 5


async def test_start_at_does_not_move_a_group_that_has_committed(broker: InMemoryBroker) -> None:
    """start_at is for the first start; afterwards the committed offset counts."""
    produce(broker, [b"a"] * 4)
    await run_to_end(consumer_of(broker, until="end"), Seen())
    seen = Seen()
    await run_to_end(consumer_of(broker, until="end", start_at={T0: 0}), seen)
    assert seen.ended == []


async def test_latest_commits_its_first_position(broker: InMemoryBroker) -> None:
    """With "latest", what is produced while the consumer is down after its first start is not skipped."""
    produce(broker, [b"old"] * 3)
    consumer = consumer_of(broker, auto_offset_reset="latest")
    async with asyncio.timeout(10), consumer:
        running = asyncio.create_task(consumer.run(Seen()))
        await until(lambda: committed(broker) == 3)
        consumer.stop(drain=False)
        await running
    produce(broker, [b"new"])
    seen = Seen()
    await run_to_end(consumer_of(broker, auto_offset_reset="latest", until="end"), seen)
    assert seen.offsets == [3]


async def test_a_consumer_runs_once_and_inside_its_block(broker: InMemoryBroker) -> None:
    """Using it out of order is refused with a hint."""
    consumer = consumer_of(broker, until="end")
    with pytest.raises(ConsumerStateError, match="async with"):
        await consumer.run(Seen())
    with pytest.raises(ConsumerStateError, match="async with"):
        consumer.stats()
    async with consumer:
        await consumer.run(Seen())
        with pytest.raises(ConsumerStateError, match="make a new one"):
            await consumer.run(Seen())
    with pytest.raises(ConsumerStateError, match="make a new one"):
        await consumer.__aenter__()


async def test_an_open_consumer_has_statistics_before_it_runs(broker: InMemoryBroker) -> None:
    """Whoever made a task of ``run()`` cannot know when it begins."""
    produce(broker, [b"a"])
    consumer = consumer_of(broker, until="end")
    async with consumer:
        assert consumer.stats().intake == "nothing assigned"
        running = asyncio.create_task(consumer.run(Seen()))
        while not running.done():
            stats = consumer.stats()
            assert stats.admitted == stats.buffered + stats.parked + stats.in_flight + stats.producing + stats.ended
            await asyncio.sleep(0)
        await running
        assert consumer.stats().succeeded == 1


async def test_a_consumer_that_was_stopped_before_it_ran_has_statistics(broker: InMemoryBroker) -> None:
    """Those of its extensions as well."""

    class Counting(Extension):
        def stats(self, found: Stats) -> Stats:
            return replace(found, copies=7)

    consumer = consumer_of(broker, extensions=[Counting()])
    async with consumer:
        consumer.stop()
        await consumer.run(Seen())
    stats = consumer.stats()
    assert (stats.intake, stats.ended, stats.lag, stats.partitions, stats.copies) == ("stopped", 0, None, (), 7)


@pytest.mark.parametrize(
    "handler", [None, 3, lambda: None, {"t": "text"}], ids=["none", "number", "no argument", "text by topic"]
)
async def test_what_is_no_handler_is_refused(broker: InMemoryBroker, handler: object) -> None:
    """run() refuses what cannot be called with a record."""
    async with consumer_of(broker) as consumer:
        with pytest.raises(ConfigurationError, match="handler"):
            await consumer.run(handler)  # type: ignore[arg-type]


async def test_stop_before_run_returns_at_once(broker: InMemoryBroker) -> None:
    """stop() called while nothing runs yet lets run() return without reading."""
    produce(broker, [b"a"])
    seen = Seen()
    async with asyncio.timeout(10), consumer_of(broker) as consumer:
        consumer.stop()
        await consumer.run(seen)
    assert seen.started == []
