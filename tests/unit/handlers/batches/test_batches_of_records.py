"""Batches in a consumer: topics, partitions, outputs, what is around handlers, and how it all ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from aioparallel import (
    Batch,
    CallNext,
    ConfigurationError,
    ConsumerStateError,
    FailurePolicy,
    Ordering,
    Outgoing,
    Producing,
    Record,
    RecordStopped,
    RetryPolicy,
    TopicPartition,
    batches,
)
from aioparallel.handlers.batches import By
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until


class Saved:
    """A batch handler that notes what it got, and does ``work`` first."""

    def __init__(self, work: Callable[[Batch[Record]], Awaitable[object]] | None = None) -> None:
        self.calls: list[list[tuple[str, int, int]]] = []
        self.saved: list[tuple[str, int, int]] = []
        self._work = work

    async def __call__(self, batch: Batch[Record]) -> Any:
        places = [(record.topic, record.partition, record.offset) for record in batch]
        self.calls.append(places)
        given = None if self._work is None else await self._work(batch)
        self.saved += [place for number, place in enumerate(places) if number not in batch.failures]
        return given

    def offsets(self, partition: int = 0, topic: str = "t") -> list[int]:
        return [place[2] for place in self.saved if place[:2] == (topic, partition)]


def broker_with(
    records: int, *, partitions: int = 1, keys: int = 5, topics: tuple[str, ...] = ("t",)
) -> InMemoryBroker:
    broker = InMemoryBroker()
    for topic in topics:
        broker.create_topic(topic, partitions)
        for partition in range(partitions):
            produce(broker, [b"%d" % (number % keys) for number in range(records)], partition, topic)
    return broker


async def run(broker: InMemoryBroker, handler: Any, topics: Any = "t", **options: Any) -> None:
    """To the end of the log."""
    async with asyncio.timeout(20):
        async with consumer_of(broker, topics, until="end", **options) as consumer:
            await consumer.run(handler)


# -- where they come from -------------------------------------------------------------------------------


async def test_by_any_partitions_share_batches_and_by_partition_they_do_not() -> None:
    """Three partitions with ten records each make one batch of thirty, or three."""
    for by, sizes in (("any", [30]), ("partition", [10, 10, 10])):
        saved = Saved()
        handler = batches(saved, size=100, linger=0.5, by=cast("By", by))
        await run(broker_with(10, partitions=3), handler)
        assert sorted(map(len, saved.calls)) == sizes
        assert sorted(saved.saved) == [("t", partition, n) for partition in range(3) for n in range(10)]


async def test_by_lane_a_batch_is_of_one_key() -> None:
    """Five keys of twenty records each, by eight at most."""
    keys: list[set[bytes | None]] = []

    async def work(batch: Batch[Record]) -> None:
        keys.append({record.key for record in batch})

    saved = Saved(work)
    await run(broker_with(100), batches(saved, size=8, by="lane"))
    assert all(len(one) == 1 for one in keys)
    assert max(map(len, saved.calls)) == 8
    assert sorted(saved.offsets()) == list(range(100))


async def test_topics_have_handlers_of_both_kinds() -> None:
    """One topic by itself, two that share a batch handler."""
    broker = broker_with(10, topics=("a", "b", "c"))
    single: list[Record] = []

    async def one(record: Record) -> None:
        single.append(record)

    saved = Saved()
    both = batches(saved, size=20, linger=0.5)
    await run(broker, {"a": one, "b": both, "c": both}, ["a", "b", "c"])
    assert [(record.topic, record.offset) for record in single] == [("a", n) for n in range(10)]
    assert [len(call) for call in saved.calls] == [20]
    assert sorted(saved.saved) == [(topic, 0, n) for topic in "bc" for n in range(10)]


async def test_records_of_a_retry_topic_go_where_they_came_from() -> None:
    """What fails goes through one retry topic, from a batch handler and from a plain one."""
    broker = broker_with(10, topics=("a", "b"))
    broker.create_topic("again", 1)
    failed: set[tuple[str, int]] = set()
    ended: Counter[str] = Counter()

    async def one(record: Record) -> None:
        place = record.origin.topic, record.origin.offset
        assert place[0] == "a"
        if place not in failed:
            failed.add(place)
            raise ValueError("first time")
        ended["a"] += 1

    async def many(batch: Batch[Record]) -> None:
        for record in batch:
            place = record.origin.topic, record.origin.offset
            assert place[0] == "b"
            if place in failed:
                ended["b"] += 1
            else:
                failed.add(place)
                batch.fail(record, ValueError("first time"))

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"again": 0.05}, dead_letter=bury)
    async with asyncio.timeout(20), consumer_of(broker, ["a", "b"], failures=policy) as consumer:
        running = asyncio.create_task(consumer.run({"a": one, "b": batches(many, size=4, linger=0.02)}))
        await until(lambda: ended == {"a": 10, "b": 10})
        consumer.stop()
        await running


async def bury(record: Record, error: Exception) -> None:
    pytest.fail(f"{record} was given up: {error!r}")


async def test_bytes_bound_a_batch() -> None:
    """Values of one byte and keys of one: four records fit into eight bytes."""
    for keys in (1, 10):
        saved = Saved()
        await run(broker_with(10, keys=keys), batches(saved, size=100, max_bytes=8, linger=0.2))
        assert [len(call) for call in saved.calls] == [4, 4, 2]
        assert sorted(saved.offsets()) == list(range(10))


# -- what is around it ----------------------------------------------------------------------------------


async def test_a_record_that_cannot_be_read_fails_alone() -> None:
    """The others of its batch are handled; what is behind it with its key waits for it."""
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    produce(broker, [b"a", b"b", b"b", b"c", b"b"])
    values: list[int] = []
    dead: list[int] = []

    def read(value: bytes) -> int:
        if value == b"1":
            raise ValueError("no ones")
        return int(value)

    async def handle(batch: Batch[Record[Any, Any]]) -> None:
        values.extend(record.value for record in batch)

    async def put_away(record: Record, error: Exception) -> None:
        dead.append(record.offset)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=2, first_delay=0.01), dead_letter=put_away)
    await run(broker, batches(handle, size=5), value_deserializer=read, failures=policy)
    assert (values, dead) == ([0, 3, 2, 4], [1])


async def test_middleware_gets_the_batch() -> None:
    """It is around each call."""
    sizes: list[int] = []

    async def around(batch: Any, call_next: CallNext) -> object:
        sizes.append(len(batch))
        return await call_next(batch)

    saved = Saved()
    await run(broker_with(10), batches(saved, size=5), middleware=[around])
    assert sizes == [5, 5]
    assert len(saved.saved) == 10


async def test_in_a_task_of_its_own() -> None:
    """isolation="task" holds for batches too."""
    tasks: list[str] = []

    async def work(batch: Batch[Record]) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task.get_name())

    await run(broker_with(10), batches(Saved(work), size=5), isolation="task")
    assert len(tasks) >= 2
    assert all(name.startswith("handler-") for name in tasks)


async def test_records_of_a_batch_cannot_be_deferred() -> None:
    """It is said at once; the batch fails with it."""
    told: list[str] = []

    async def work(batch: Batch[Record]) -> None:
        with pytest.raises(ConsumerStateError, match=r"in a batch: defer\(\) works only for") as raised:
            batch[0].defer(5)
        told.append(str(raised.value))

    await run(broker_with(3), batches(Saved(work)))
    assert told


async def test_results_are_those_of_single_records() -> None:
    """results() refuses it, before anything is read."""
    async with consumer_of(broker_with(1)) as consumer:
        with pytest.raises(ConfigurationError, match="batch handlers work only"):
            async for _ in consumer.results(batches(Saved())):
                pass


# -- outputs --------------------------------------------------------------------------------------------


async def test_outputs_of_the_batch_as_a_whole() -> None:
    """All of its records are complete when the last output is acknowledged."""
    broker = broker_with(10)
    broker.create_topic("out", 1)

    async def work(batch: Batch[Record]) -> list[Outgoing]:
        return [Outgoing("out", b"%d" % record.offset) for record in batch]

    await run(broker, batches(Saved(work), size=5))
    assert sorted(int(record.value or b"") for record in broker.records("out")) == list(range(10))
    assert committed(broker) == 10


async def test_outputs_by_record() -> None:
    """A mapping says whose they are; a failed record's are left out."""
    broker = broker_with(6, keys=6)
    broker.create_topic("out", 1)
    left = 1

    async def work(batch: Batch[Record]) -> dict[Record, Any]:
        nonlocal left
        outputs = {record: Outgoing("out", b"%d" % record.offset) for record in batch}
        for record in batch:
            if record.offset == 3 and left:
                left = 0
                batch.fail(record, ValueError("not now"))
        return outputs

    await run(broker, batches(Saved(work), size=6))
    assert sorted(int(record.value or b"") for record in broker.records("out")) == list(range(6))


async def test_outputs_of_strange_records_fail_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    """The keys of the mapping must be records of the batch."""
    times = 0

    async def work(batch: Batch[Record]) -> object:
        nonlocal times
        times += 1
        return {0: Outgoing("out", b"")} if times == 1 else None

    saved = Saved(work)
    await run(broker_with(2), batches(saved, size=2))
    assert [len(call) for call in saved.calls] == [2, 1, 1]
    assert "keys that are not records of its batch, the first an int" in caplog.text


async def test_an_output_that_cannot_be_written_fails_its_record_alone() -> None:
    """A topic that does not exist: the others complete."""
    broker = broker_with(4, keys=4)
    broker.create_topic("out", 1)
    dead: list[int] = []

    async def work(batch: Batch[Record]) -> dict[Record, Any]:
        return {record: Outgoing("out" if record.offset != 2 else "nowhere", b"x") for record in batch}

    async def put_away(record: Record, error: Exception) -> None:
        dead.append(record.offset)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    await run(broker, batches(Saved(work), size=4), failures=policy, producing=Producing(delivery_timeout=0.5))
    assert dead == [2]
    assert len(broker.records("out")) == 3
    assert committed(broker) == 4


# -- failures -------------------------------------------------------------------------------------------


async def test_one_bad_record_alone_becomes_a_dead_letter() -> None:
    """With a single attempt, of five hundred with one bad one."""
    broker = broker_with(500, keys=50)
    dead: list[int] = []

    async def work(batch: Batch[Record]) -> None:
        if any(record.offset == 123 for record in batch):
            raise ValueError("bad row")

    async def put_away(record: Record, error: Exception) -> None:
        dead.append(record.offset)

    saved = Saved(work)
    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    await run(broker, batches(saved, size=500), failures=policy)
    assert dead == [123]
    assert sorted(saved.offsets()) == [n for n in range(500) if n != 123]
    for key in range(50):
        of_key = [n for n in saved.offsets() if n % 50 == key]
        assert of_key == sorted(of_key)


async def test_a_failed_batch_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It names the first record, and how many others."""
    caplog.set_level(logging.WARNING)
    left = 1

    async def work(batch: Batch[Record]) -> None:
        nonlocal left
        if left:
            left = 0
            raise OSError("no database")

    await run(broker_with(20, keys=20), batches(Saved(work), size=20, on_error="together"))
    lines = [record.getMessage() for record in caplog.records if "no database" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("t-0 offset 0 and 19 more of its batch failed (attempt 1): OSError('no database')")


# -- how it ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["any", "partition", "lane"])
async def test_what_lingers_is_left_to_the_next_owner(by: Any) -> None:
    """A stop does not wait for it, and nothing of it is committed."""
    broker = broker_with(10)
    saved = Saved()
    async with asyncio.timeout(20), consumer_of(broker) as consumer:
        running = asyncio.create_task(consumer.run(batches(saved, size=100, linger=3600, by=by)))
        await until(lambda: consumer.health().running and consumer.stats().admitted == 10)
        consumer.stop()
        await running
        assert (saved.calls, consumer.stats().dropped) == ([], 10)
    assert committed(broker) == 0


async def test_a_drain_waits_for_a_call_and_counts_it() -> None:
    """A call in flight ends, and is committed; what is behind it in its lane is not started."""
    broker = broker_with(10, keys=1)
    begun = asyncio.Event()

    async def work(batch: Batch[Record]) -> None:
        begun.set()
        await asyncio.sleep(0.05)

    saved = Saved(work)
    async with asyncio.timeout(20), consumer_of(broker) as consumer:
        running = asyncio.create_task(consumer.run(batches(saved, size=4)))
        await begun.wait()
        consumer.stop()
        await running
    assert saved.offsets() == [0, 1, 2, 3]
    assert committed(broker) == 4


async def test_a_call_that_outlasts_its_drain_is_cancelled() -> None:
    """Its records run again at the next start, with their first attempt."""
    broker = broker_with(4)
    begun = asyncio.Event()
    attempts: list[int] = []

    async def hang(batch: Batch[Record]) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(20), consumer_of(broker, drain_timeout=0.05) as consumer:
        running = asyncio.create_task(consumer.run(batches(hang, size=4)))
        await begun.wait()
        consumer.stop()
        await running

    async def note(batch: Batch[Record]) -> None:
        attempts.extend(record.attempt for record in batch)

    await run(broker, batches(note, size=4))
    assert attempts == [1] * 4


async def test_a_revoked_partition_leaves_the_others_of_its_batch() -> None:
    """One batch of two partitions hangs when one is revoked: the other's records run again at once, its own do not."""
    broker = broker_with(5, partitions=2)
    hung = asyncio.Event()

    async def work(batch: Batch[Record]) -> None:
        if not hung.is_set():
            hung.set()
            await asyncio.Event().wait()

    saved, other = Saved(work), Saved()
    async with (
        asyncio.timeout(20),
        consumer_of(broker, drain_timeout=0.05, cooperative=True) as one,
        consumer_of(broker, cooperative=True) as two,
    ):
        first = asyncio.create_task(one.run(batches(saved, size=10, linger=0.3)))
        await hung.wait()
        assert len(saved.calls[0]) == 10
        second = asyncio.create_task(two.run(batches(other, size=10, linger=0)))
        await until(lambda: len(saved.saved) + len(other.saved) == 10)
        await until(lambda: all(committed(broker, TopicPartition("t", n)) == 5 for n in range(2)))
        one.stop()
        two.stop()
        await asyncio.gather(first, second)
    assert {place[1] for place in saved.saved} != {place[1] for place in other.saved}
    assert sorted(saved.saved + other.saved) == [("t", partition, n) for partition in range(2) for n in range(5)]


async def test_one_that_ignores_its_cancellation_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """In the log and among the problems, with how many records it has."""
    release = asyncio.Event()

    async def stubborn(batch: Batch[Record]) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    broker = broker_with(4)
    async with asyncio.timeout(20), consumer_of(broker, handler_timeout=0.05) as consumer:
        running = asyncio.create_task(consumer.run(batches(stubborn, size=4)))
        await until(lambda: "still runs although it was cancelled" in caplog.text)
        assert "t-0 offset 0 (and 3 more in its batch)" in caplog.text
        await until(lambda: any(problem.kind == "handler_stuck" for problem in consumer.health().problems))
        release.set()
        await until(lambda: consumer.stats().in_flight == 0 and consumer.stats().parked == 0)
        consumer.stop()
        await running


async def test_statistics_count_records_and_the_longest_lane() -> None:
    """While a call of four of one key runs, with six behind."""
    broker = broker_with(10, keys=1)
    begun, go = asyncio.Event(), asyncio.Event()

    async def work(batch: Batch[Record]) -> None:
        begun.set()
        await go.wait()

    async with asyncio.timeout(20), consumer_of(broker) as consumer:
        running = asyncio.create_task(consumer.run(batches(Saved(work), size=4)))
        await begun.wait()
        stats = consumer.stats()
        assert (stats.in_flight, stats.buffered, stats.lanes) == (4, 6, 1)
        assert stats.longest_lane is not None
        assert (stats.longest_lane.length, stats.longest_lane.head_offset) == (10, 0)
        go.set()
        consumer.stop()
        await running


@pytest.mark.parametrize("ordering", list(Ordering))
async def test_a_small_buffer_never_waits_for_more_than_it_holds(ordering: Ordering) -> None:
    """Batches larger than the buffer, and a long linger: it ends at once all the same."""
    saved = Saved()
    broker = broker_with(200, partitions=2)
    async with asyncio.timeout(10):
        await run(broker, batches(saved, size=1_000, linger=3600), max_buffered=20, ordering=ordering)
    assert len(saved.saved) == 400


async def test_failures_stop_the_run_as_others_do() -> None:
    """give_up="stop": the record is named, and what is behind it is not committed."""

    async def work(batch: Batch[Record]) -> None:
        batch.fail(batch[0], ValueError("bad"))

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1))
    with pytest.raises(RecordStopped, match="t-0 offset 0 failed for good"):
        await run(broker_with(3, keys=1), batches(Saved(work)), failures=policy)
