"""Batches where something else goes wrong beside them: what was found by attacking them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioparallel import Batch, FailurePolicy, Outgoing, Producing, Record, RetryPolicy, batches, parallel_map
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import consumer_of, produce
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import until
from tests.unit.handlers.batches.test_batches_of_items import AT_ONCE, Called, all_of
from tests.unit.handlers.batches.test_batches_of_records import Saved, broker_with, run


def put_away_in(dead: list[int]) -> Any:
    """A dead-letter function."""

    async def put_away(record: Record, error: Exception) -> None:
        dead.append(record.offset)

    return put_away


async def test_a_bad_output_of_the_whole_batch_gives_up_one_record() -> None:
    """With a single attempt: its records run alone before any is given up."""
    broker = broker_with(10, keys=10)
    broker.create_topic("out", 1)
    dead: list[int] = []

    async def work(batch: Batch[Record]) -> list[Outgoing]:
        return [Outgoing("nowhere" if record.offset == 3 else "out", b"x") for record in batch]

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away_in(dead))
    await run(broker, batches(Saved(work), size=10), failures=policy, producing=Producing(delivery_timeout=0.3))
    assert dead == [3]


async def test_who_raises_after_failing_one_gives_up_that_one_alone() -> None:
    """The exception may be for the sake of the failed one."""
    dead: list[int] = []

    async def work(batch: Batch[Record]) -> None:
        for record in batch:
            if record.offset == 1:
                batch.fail(record, ValueError("bad"))
                raise RuntimeError("there was a bad one")

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away_in(dead))
    await run(broker_with(2, keys=2), batches(Saved(work), size=2), failures=policy)
    assert dead == [1]


@pytest.mark.parametrize("how", ["failed", "outputs"])
async def test_large_batches_take_linear_time(how: str) -> None:
    """20,000 records, each failed by name, or with an output of its own: in quadratic time it takes seconds."""
    broker = broker_with(20_000, keys=20_000)
    broker.create_topic("out", 1)
    first = True
    took = 0.0

    async def work(batch: Batch[Record]) -> Any:
        nonlocal first, took
        if not first:
            return None
        first = False
        if how == "outputs":
            return {record: Outgoing("out", b"x") for record in batch}
        began = asyncio.get_running_loop().time()
        for record in batch:
            batch.fail(record, ValueError())
        took = asyncio.get_running_loop().time() - began
        return None

    async with asyncio.timeout(20):
        await run(broker, batches(Saved(work), size=20_000, linger=0.2), max_buffered=20_000)
    assert took < 2


async def test_hanging_batches_leave_others_their_slots() -> None:
    """One handler hangs in batches far smaller than they may be; another topic's records go on."""
    broker = InMemoryBroker()
    for topic in ("hangs", "goes"):
        broker.create_topic(topic, 4)
        for partition in range(4):
            produce(broker, [b"%d" % n for n in range(200)], partition, topic)
    done = 0

    async def hang(batch: Batch[Record]) -> None:
        await asyncio.Event().wait()

    async def go(record: Record) -> None:
        nonlocal done
        await asyncio.sleep(0.001)
        done += 1

    options: dict[str, Any] = {"max_concurrency": 20, "drain_timeout": 0}
    async with asyncio.timeout(20), consumer_of(broker, ["hangs", "goes"], **options) as consumer:
        handlers: Any = {"hangs": batches(hang, size=500, linger=0, by="lane"), "goes": go}
        running = asyncio.create_task(consumer.run(handlers))
        await until(lambda: done == 800)
        consumer.stop()
        await running


def test_collecting_outputs_lets_others_start() -> None:
    """A handler that returns an async iterator: ten calls at once, not one after the other."""

    async def outputs(batch: Batch[int]) -> AsyncIterator[int]:
        for item in batch:
            await asyncio.sleep(1)
            yield item

    async def handle(batch: Batch[int]) -> Any:
        return outputs(batch)

    began: list[float] = []

    async def note(batch: Any, call_next: Any) -> Any:
        began.append(asyncio.get_running_loop().time())
        value = await call_next(batch)
        return [one async for one in value] if hasattr(value, "__aiter__") else value

    all_of(batches(handle, size=1), range(10), middleware=[note])
    assert max(began) < 0.1


def test_together_is_one_batch_again_however_many() -> None:
    """3,000 items fail together and come back together, without linger too."""
    left = 1

    async def work(batch: Batch[int]) -> None:
        nonlocal left
        if left:
            left = 0
            raise OSError

    called = Called(work)
    retry = RetryPolicy(first_delay=1, max_attempts=2)
    handler = batches(called, size=3_000, linger=0, on_error="together")
    all_of(handler, range(3_000), retry=retry, max_buffered=5_000)
    assert called.sizes[-1] == 3_000 or sum(called.sizes[:-1]) == 3_000  # it may begin with what was there first


async def test_a_full_buffer_does_not_wait_for_an_idle_partition() -> None:
    """by="any", one partition with all records and one without: the buffer is full, so nobody lingers."""
    broker = InMemoryBroker()
    broker.create_topic("t", 2)
    produce(broker, [b"%d" % n for n in range(3_000)], 0)
    saved = Saved()
    async with asyncio.timeout(20), consumer_of(broker, max_buffered=1_000) as consumer:
        running = asyncio.create_task(consumer.run(batches(saved, size=100_000, linger=3600)))
        await until(lambda: len(saved.saved) >= 2_000)
        consumer.stop()
        await running


async def test_a_batch_is_never_larger_than_its_size() -> None:
    """Records of one retry topic for two handlers, with few keys: those behind others fill a batch before it starts."""
    broker = broker_with(60, topics=("a", "b"), keys=3)
    broker.create_topic("again", 1)
    sizes: Counter[int] = Counter()
    ended: set[tuple[str, int]] = set()
    failed: set[tuple[str, int]] = set()

    def handler(size: int) -> Any:
        async def handle(batch: Batch[Record]) -> None:
            sizes[len(batch)] += 1
            assert len(batch) <= size
            for record in batch:
                place = record.origin.topic, record.origin.offset
                if place in failed:
                    ended.add(place)
                else:
                    failed.add(place)
                    batch.fail(record, ValueError("first time"))

        return batches(handle, size=size, linger=0.02)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"again": 0.01}, dead_letter=put_away_in([]))
    async with asyncio.timeout(20), consumer_of(broker, ["a", "b"], failures=policy) as consumer:
        running = asyncio.create_task(consumer.run({"a": handler(2), "b": handler(3)}))
        await until(lambda: len(ended) == 120)
        consumer.stop()
        await running


def test_keys_that_trickle_in_behind_others_fill_a_batch() -> None:
    """One key, items one by one: a batch is full as soon as its last item is there, not when its linger is over."""

    async def source() -> AsyncIterator[int]:
        for number in itertools.count():
            if number == 40:
                return
            yield number
            await asyncio.sleep(0.01)

    called = Called()

    async def go() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcomes = parallel_map(batches(called, size=10, linger=3600), source(), key=lambda item: 0, retry=AT_ONCE)
        async for _ in outcomes:
            pass
        return loop.time() - began

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(go()) < 1
    assert max(called.sizes) == 10


async def test_middleware_passes_on_the_batch_that_it_got(caplog: pytest.LogCaptureFixture) -> None:
    """Of another one nobody would hear what fails, and what it leaves out would count as handled."""
    left = 1

    async def filtering(batch: Any, call_next: Any) -> Any:
        nonlocal left
        if left:
            left = 0
            return await call_next(Batch.of(list(batch)[1:]))
        return await call_next(batch)

    saved = Saved()
    await run(broker_with(3, keys=3), batches(saved, size=3), middleware=[filtering])
    assert sorted(saved.offsets()) == [0, 1, 2]
    assert "instead of the batch that it got" in caplog.text


async def test_what_is_behind_a_record_that_is_not_due_is_not_either() -> None:
    """Two records of one key in a retry topic: neither runs again before its time."""
    broker = broker_with(2, keys=1)
    broker.create_topic("again", 1)
    loop = asyncio.get_running_loop()
    first: dict[int, float] = {}
    second: dict[int, float] = {}

    async def handle(batch: Batch[Record]) -> None:
        for record in batch:
            seen = second if record.topic == "again" else first
            seen[record.origin.offset] = loop.time()
            if seen is first:
                if record.origin.offset == 1:
                    await asyncio.sleep(0.3)  # so that the second is due later than the first
                batch.fail(record, ValueError("first time"))
                break

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"again": 0.5}, dead_letter=put_away_in([]))
    async with asyncio.timeout(20), consumer_of(broker, failures=policy) as consumer:
        running = asyncio.create_task(consumer.run(batches(handle, size=5, linger=0.05)))
        await until(lambda: len(second) == 2)
        consumer.stop()
        await running
    assert all(second[offset] - first[offset] > 0.45 for offset in range(2)), (first, second)


async def test_idle_workers_keep_no_items() -> None:
    """When ten workers have ended ten calls of ten items only what the reader has taken last is alive."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    read = asyncio.Event()

    class Item:
        def __init__(self) -> None:
            alive.add(self)

    async def handle(batch: Batch[Any]) -> list[None]:
        await asyncio.sleep(0.01)
        return [None] * len(batch)

    async def source() -> AsyncIterator[Any]:
        for _ in range(100):
            yield Item()
        await read.wait()
        yield Item()

    outcomes = parallel_map(batches(handle, size=10, linger=0.02), source(), max_concurrency=10, max_buffered=1)
    count = 0
    async for _ in outcomes:
        count += 1
        if count == 100:
            assert gc.collect() >= 0
            assert len(alive) <= 25  # a quarter of what may be read ahead
            read.set()


@pytest.mark.parametrize("max_buffered", [10_000, 20])
def test_without_keys_batches_by_lane_are_full_where_nothing_more_can_come(max_buffered: int) -> None:
    """All that is ready goes together, at the end of the input and where the buffer is full."""
    called = Called()
    all_of(batches(called, size=20, linger=3600, by="lane"), range(1_010), max_buffered=max_buffered)
    assert sum(called.sizes) == 1_010
    assert len(called.sizes) < 110


async def test_records_of_a_retry_topic_are_batches_where_nothing_more_can_come() -> None:
    """Two topics go through one retry topic, so each record may go elsewhere than the next."""
    broker = broker_with(100, topics=("a", "b"), keys=100)
    broker.create_topic("again", 1)
    sizes: dict[str, list[int]] = {"a": [], "b": []}

    def handler(topic: str) -> Any:
        async def handle(batch: Batch[Record]) -> None:
            if batch[0].topic != "again":
                for record in batch:
                    batch.fail(record, ValueError("first time"))
            else:
                sizes[topic].append(len(batch))

        return batches(handle, size=100, linger=0)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"again": 0.3}, dead_letter=put_away_in([]))
    async with asyncio.timeout(20), consumer_of(broker, ["a", "b"], failures=policy) as consumer:
        running = asyncio.create_task(consumer.run({"a": handler("a"), "b": handler("b")}))
        await until(lambda: sum(sizes["a"]) == sum(sizes["b"]) == 100)
        consumer.stop()
        await running
    assert len(sizes["a"] + sizes["b"]) < 100, sizes


async def test_a_batch_handler_may_yield_and_is_tested_as_it_is() -> None:
    """An async generator: its outputs are those of the batch as a whole, and a test of it gets them in a list."""

    async def outputs(batch: Batch[Record]) -> AsyncIterator[Outgoing]:
        for record in batch:
            yield Outgoing("out", record.value)

    handler = batches(outputs, size=5)
    of_test: Any = Batch.of([Record("t", 0, 0, value=b"one"), Record("t", 0, 1, value=b"two")])
    assert [output.value for output in await handler(of_test)] == [b"one", b"two"]
    broker = broker_with(10)
    broker.create_topic("out", 1)
    await run(broker, handler)
    assert len(broker.records("out")) == 10


@pytest.mark.parametrize(("value", "found"), [(5, "an int"), ([5], "a list with an int in it")])
async def test_a_wrong_output_of_a_batch_says_what_a_batch_may_return(
    value: Any, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not what records by themselves may."""
    left = 1

    async def handle(batch: Batch[Record]) -> Any:
        nonlocal left
        if left:
            left = 0
            return value
        return None

    await run(broker_with(3), batches(handle, size=3))
    assert f"returned {found}: it may return None" in caplog.text
    assert "{record: outputs}" in caplog.text
    assert "results(" not in caplog.text


async def test_what_goes_back_unseen_still_knows_where_it_is_from() -> None:
    """Records of one key come back through one retry topic, for two handlers: those behind one that fails are put back
    before anybody has looked at their headers, and later go to their own handler, with their origin."""
    broker = InMemoryBroker()
    for topic in ("a", "b", "again"):
        broker.create_topic(topic, 1)
    for topic in ("a", "b"):
        produce(broker, [topic.encode()] * 30, topic=topic)
    done: set[tuple[str, int]] = set()
    failed: set[tuple[str, int]] = set()

    def handler(topic: str) -> Any:
        async def handle(batch: Batch[Record]) -> None:
            for record in batch:
                assert record.origin.topic == topic
                place = record.origin.topic, record.origin.offset
                if record.topic == topic:
                    batch.fail(record, ValueError("first time"))
                elif place not in failed:
                    failed.add(place)
                    batch.fail(record, ValueError("second time"))
                else:
                    done.add(place)

        return batches(handle, size=10, linger=0.02)

    dead: list[int] = []
    policy = FailurePolicy(
        retry=RetryPolicy(max_attempts=2, first_delay=0.001),
        retry_topics={"again": 0.02},
        dead_letter=put_away_in(dead),
    )
    async with asyncio.timeout(20), consumer_of(broker, ["a", "b"], failures=policy) as consumer:
        running = asyncio.create_task(consumer.run({"a": handler("a"), "b": handler("b")}))
        await until(lambda: len(done) == 60)
        consumer.stop()
        await running
    assert not dead


async def test_what_is_ready_in_other_partitions_fills_a_batch_where_nothing_more_can_come() -> None:
    """Thirty partitions with ten records each and a full buffer, or the end of the log: batches of what is there in all
    of them, not one for each partition."""
    saved = Saved()
    await run(broker_with(10, partitions=30), batches(saved, size=100, linger=3600), max_buffered=300)
    assert len(saved.saved) == 300
    assert len(saved.calls) < 10


def test_together_comes_back_as_one_batch_from_all_partitions() -> None:
    """The same with what comes due at one time."""
    broker = broker_with(100, partitions=5, keys=100)
    left = 1

    async def work(batch: Batch[Record]) -> None:
        nonlocal left
        if left and len(batch) == 500:
            left = 0
            raise OSError

    saved = Saved(work)
    asyncio.run(
        run(broker, batches(saved, size=500, linger=1, on_error="together"), failures=FailurePolicy(retry=AT_ONCE))
    )
    assert [len(call) for call in saved.calls] == [500, 500]
