"""pause() of topics and partitions and pause_keys(), in virtual time: what is paused waits, and all else goes on."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel import (
    Batch,
    ConfigurationError,
    Extension,
    FailurePolicy,
    Ordering,
    Outgoing,
    ParallelConsumer,
    Paused,
    Record,
    RetryPolicy,
    TopicPartition,
    Transactions,
    batches,
)
from aioparallel.engine.outcomes.gates import Gate, name_woken
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.queues.priority import PriorityConsumer
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer, InMemoryTransactionalProducer
from tests.support.memory.consuming import QUICK, T0, Seen, committed, consumer_of, produce
from tests.support.waiting import until

T1 = TopicPartition("t", 1)
LONG = 5.0  # seconds, virtual: by then all that may start has started


@asynccontextmanager
async def running(consumer: ParallelConsumer[Any, Any], handler: Any) -> AsyncIterator[None]:
    async with asyncio.timeout(600), consumer:
        run = asyncio.create_task(consumer.run(handler))
        yield
        consumer.stop()
        await run


def broker_with(**partitions: int) -> InMemoryBroker:
    broker = InMemoryBroker()
    for topic, count in partitions.items():
        broker.create_topic(topic, count)
    return broker


def places(records: list[Record]) -> set[tuple[str, int, int]]:
    return {(record.topic, record.partition, record.offset) for record in records}


async def test_a_paused_topic_waits_and_the_others_go_on() -> None:
    """It is neither fetched nor started; the other one is, and is committed."""
    broker, seen = broker_with(a=2, b=1), Seen()
    consumer = consumer_of(broker, ["a", "b"])
    async with running(consumer, seen):
        consumer.pause("a")
        produce(broker, [b"x", b"y"], topic="a")
        produce(broker, [b"x", b"y"], topic="b")
        await until(lambda: committed(broker, TopicPartition("b", 0)) == 2)
        await asyncio.sleep(LONG)
        assert places(seen.started) == {("b", 0, 0), ("b", 0, 1)}
        assert consumer.paused == Paused(topics=("a",)) == consumer.stats().paused == consumer.health().paused
        assert [one.paused for one in consumer.stats().partitions] == [True, True, False]
        consumer.resume("a")
        await until(lambda: committed(broker, TopicPartition("a", 0)) == 2)
    assert not consumer.paused


async def test_a_paused_partition_starts_nothing_more_in_its_turn() -> None:
    """A handler that does not suspend pauses the partition that it has a record of: none of the next ones starts."""
    broker, seen = broker_with(t=2), list[Record]()

    async def handle(record: Record) -> None:
        seen.append(record)
        if record.topic_partition == T0:
            consumer.pause(T0)

    consumer = consumer_of(broker)
    for partition in (0, 1):
        produce(broker, [b"%d" % number for number in range(20)], partition)
    async with running(consumer, handle):
        await until(lambda: committed(broker, T1) == 20)
        await asyncio.sleep(LONG)
        assert [record.offset for record in seen if record.partition == 0] == [0]
        assert committed(broker) == 1
        assert consumer.stats().buffered == 19
        assert consumer.stats().intake == "fetching"
        consumer.resume(T0)
        consumer.pause(T0)
        await asyncio.sleep(LONG)
        assert len(seen) == 21
        for offset in range(1, 20):
            consumer.resume(T0)
            await until(lambda offset=offset: committed(broker) == offset + 1)  # type: ignore[misc]


async def test_what_runs_goes_on_and_is_not_tried_again() -> None:
    """A handler in flight ends; if it fails, its record waits with the others."""
    broker, calls = broker_with(t=1), 0

    async def handle(record: Record) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1)
        if calls == 1:
            raise ValueError

    consumer = consumer_of(broker, stuck_after=3)
    produce(broker, [b"x"])
    async with running(consumer, handle):
        await until(lambda: calls == 1)
        consumer.pause("t")
        await until(lambda: consumer.stats().parked == 1)
        await asyncio.sleep(10 * LONG)
        assert (calls, consumer.stats().failed_attempts) == (1, 1)
        assert consumer.health().healthy, "a pause is no problem"
        consumer.resume("t")
        await until(lambda: committed(broker) == 1)
    assert calls == 2


async def test_a_paused_key_waits_and_the_others_go_on() -> None:
    """What is complete above it is in the offset map, so after a stop only its records run."""
    broker, seen = broker_with(t=1), Seen()
    consumer = consumer_of(broker)
    async with running(consumer, seen):
        consumer.pause_keys("t", b"x")
        produce(broker, [b"x", b"y", b"x", b"z", None] * 10)
        await until(lambda: len(seen.ended) == 30)
        await consumer.commit_now()
        assert committed(broker) == 0
        assert consumer.paused.keys == {"t": (b"x",)}
        stats = consumer.stats()
        assert (stats.buffered, stats.partitions[0].paused, str(stats.paused)) == (20, False, "1 key of t")
    assert not consumer.health().problems
    assert b"x" not in [record.key for record in seen.started]
    again = Seen()
    async with consumer_of(broker, until="end") as rest:
        await rest.run(again)
    assert [record.key for record in again.ended] == [b"x"] * 20


async def test_keys_keep_their_order_over_pauses() -> None:
    """Keys are paused and resumed while they run: of each key one record runs after the other."""
    broker, seen = broker_with(t=2), Seen(0.01)
    consumer = consumer_of(broker, max_concurrency=3)
    keys = [b"a", b"b", b"c", None]
    for partition in (0, 1):
        produce(broker, keys * 10, partition)
    async with running(consumer, seen):
        for key in [b"a", b"b", b"c"] * 5:
            consumer.pause_keys("t", key)
            await asyncio.sleep(0.02)
            consumer.resume_keys("t", key)
            consumer.pause_keys("t", b"c", b"a")
            await asyncio.sleep(0.01)
            consumer.resume_keys("t", b"a", b"c")
        await until(lambda: len(seen.ended) == 80)
    for partition in (0, 1):
        for key in (b"a", b"b", b"c"):
            of_key = [r.offset for r in seen.started if (r.partition, r.key) == (partition, key)]
            assert of_key == sorted(of_key)


async def test_no_key_at_all_is_refused() -> None:
    """``pause()`` without arguments pauses everything, so this might be meant as all keys."""
    consumer = consumer_of(broker_with(t=1))
    with pytest.raises(ConfigurationError, match="keys"):
        consumer.pause_keys("t")


async def test_keys_of_order_by() -> None:
    """A key is what ``order_by`` returns."""
    broker, seen = broker_with(t=1), Seen()
    consumer = consumer_of(broker, order_by=lambda record: (record.key, 1) if record.key else None)
    async with running(consumer, seen):
        consumer.pause_keys("t", (b"x", 1))
        produce(broker, [b"x", b"y", None])
        await until(lambda: len(seen.ended) == 2)
        await asyncio.sleep(LONG)
        assert seen.offsets == [1, 2]
        consumer.resume_keys("t", (b"x", 1))
        await until(lambda: committed(broker) == 3)


async def test_a_pause_is_for_what_is_assigned_later() -> None:
    """A pause before the run, and one of a partition that another member has."""
    broker, first, second = broker_with(t=2), Seen(), Seen()
    consumer, other = consumer_of(broker), consumer_of(broker)
    consumer.pause(T1)
    consumer.pause_keys("t", b"x")
    async with running(consumer, first):
        async with running(other, second):
            await until(lambda: len(other.stats().partitions) == len(consumer.stats().partitions) == 1)
        await until(lambda: len(consumer.stats().partitions) == 2)
        for partition in (0, 1):
            produce(broker, [b"x", b"y"], partition)
        await until(lambda: len(first.ended) == 1)
        await asyncio.sleep(LONG)
        assert places(first.started) == {("t", 0, 1)}
        consumer.resume(T1)
        consumer.resume_keys("t", b"x")
        await until(lambda: len(first.ended) == 4)


async def test_each_pause_ends_by_itself() -> None:
    """``resume()`` ends ``pause()`` only, and a topic's pause is not that of its partition."""
    broker, seen = broker_with(t=2), Seen()
    consumer = consumer_of(broker)
    async with running(consumer, seen):
        consumer.pause()
        consumer.pause("t", T0)
        produce(broker, [b"x"], 0)
        produce(broker, [b"x"], 1)
        assert consumer.paused == Paused(everything=True, topics=("t",), partitions=(T0,))
        assert str(consumer.paused) == "everything, t, t-0"
        consumer.resume(T1)
        consumer.resume("t")
        await asyncio.sleep(LONG)
        assert not seen.started
        consumer.resume()
        await until(lambda: len(seen.ended) == 1)
        await asyncio.sleep(LONG)
        assert places(seen.started) == {("t", 1, 0)}
        consumer.resume(("t", 0))  # type: ignore[arg-type]  # compares like a TopicPartition
        await until(lambda: len(seen.ended) == 2)


async def test_a_run_to_the_end_waits_for_what_is_paused() -> None:
    """With ``until="end"`` it is not at its end before."""
    for paused in ("key", "partition"):
        broker, seen = broker_with(t=2), Seen()
        produce(broker, [b"x", b"y"], 0)
        produce(broker, [b"y"], 1)
        consumer = consumer_of(broker, until="end")
        consumer.pause_keys("t", b"x") if paused == "key" else consumer.pause(T0)
        async with asyncio.timeout(60), consumer:
            run = asyncio.create_task(consumer.run(seen))
            await asyncio.sleep(LONG)
            assert len(seen.ended) == (2 if paused == "key" else 1)
            assert not run.done()
            consumer.resume_keys("t", b"x") if paused == "key" else consumer.resume(T0)
            await run
        assert len(seen.ended) == 3


async def test_a_stop_begins_nothing_that_is_paused() -> None:
    """It drains what runs and does not wait for the others."""
    broker, seen = broker_with(t=1), Seen(0.5)
    consumer = consumer_of(broker)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60), consumer:
        run = asyncio.create_task(consumer.run(seen))
        produce(broker, [b"x", b"y", b"x"])
        await until(lambda: len(seen.started) == 2)
        consumer.pause_keys("t", b"x")
        began = loop.time()
        consumer.stop()
        await run
        assert loop.time() - began < 0.7
    assert sorted(seen.offsets) == [0, 1]
    assert committed(broker) == 2


@pytest.mark.parametrize("key", [False, True])
async def test_what_is_paused_leaves_others_their_part_of_the_buffer(key: bool) -> None:
    """A backlog that is paused when it fills the buffer: the others still read and run as many at once as before."""
    broker, most, at_once = broker_with(t=2), 0, set[Record]()
    release = asyncio.Event()

    async def handle(record: Record) -> None:
        nonlocal most
        at_once.add(record)
        most = max(most, len([one for one in at_once if one.partition == 1]))
        await (release.wait() if record.partition == 0 else asyncio.sleep(0.1))
        at_once.discard(record)

    consumer = consumer_of(broker, max_buffered=64, max_concurrency=20, drain_timeout=0)
    produce(broker, [b"hot"] * 500, 0)
    async with running(consumer, handle):
        await until(lambda: consumer.stats().buffered >= 40)  # it borrows: it has few keys
        consumer.pause_keys("t", b"hot") if key else consumer.pause(T0)
        produce(broker, [b"%d" % number for number in range(2_000)], 1)
        await until(lambda: committed(broker, T1) == 2_000)
        assert consumer.stats().buffered <= (64 if key else 128)
        assert most == 19
        if not key:
            assert consumer.stats().intake == "fetching"


@pytest.mark.parametrize("first", range(60, 480, 100))
@pytest.mark.parametrize("paused", [True, False], ids=["paused", "slow"])
async def test_a_blocked_backlog_that_fits_does_not_stop_the_rest(first: int, paused: bool) -> None:
    """Two partitions, one of which is at its end early. The records of a paused key, or of one with a slow handler, fit
    into the buffer. So all others run, although fewer records can start than the fetcher would wait for."""
    broker, ended, release = broker_with(t=2), Counter[bytes | None](), asyncio.Event()

    async def handle(record: Record) -> None:
        await (release.wait() if record.key == b"0" else asyncio.sleep(0.001))
        ended[record.key] += 1

    consumer = consumer_of(broker, max_buffered=500, max_concurrency=4)
    keys = [b"%d" % (number % 3) for number in range(600)]
    if paused:
        consumer.pause_keys("t", b"0")
    async with running(consumer, handle):
        for partition, part in [(0, keys[:first]), (1, keys[:first]), (0, keys[first:]), (1, keys[first:])]:
            produce(broker, part, partition)
            await asyncio.sleep(0.02)
        await until(lambda: ended.total() == 800, 60, lambda: str(consumer.stats()))
        release.set()


async def test_memory_is_bounded_when_one_partition_after_the_other_is_paused() -> None:
    """Records of paused partitions count half: together they never take more than twice the buffer."""
    broker, seen = broker_with(t=12), Seen(1e6)
    consumer = consumer_of(broker, max_buffered=100, max_concurrency=1, drain_timeout=0)
    async with running(consumer, seen):
        for partition in range(12):
            produce(broker, [b"%d" % number for number in range(300)], partition)
            await asyncio.sleep(LONG)
            consumer.pause(TopicPartition("t", partition))
        assert 150 < consumer.stats().buffered <= 200


async def test_a_batch_that_waits_loses_what_is_paused() -> None:
    """A paused record leaves the batch that lingers, and the batch does not wait for its partition."""
    broker, calls = broker_with(t=2), list[list[tuple[int, int]]]()

    async def handle(records: Batch[Record]) -> None:
        calls.append([(record.partition, record.offset) for record in records])

    consumer = consumer_of(broker)
    async with running(consumer, batches(handle, size=10, linger=2.0, by="any")):
        await until(lambda: len(consumer.stats().partitions) == 2)
        produce(broker, [b"x", b"y", b"x"], 0)
        produce(broker, [b"z"], 1)
        await until(lambda: consumer.stats().buffered == 4)
        await asyncio.sleep(0.5)
        consumer.pause_keys("t", b"x")
        consumer.pause(T1)
        await until(lambda: bool(calls))
        assert calls == [[(0, 1)]]
        consumer.resume(T1)
        consumer.resume_keys("t", b"x")
        await until(lambda: committed(broker) == 3 and committed(broker, T1) == 1)
        assert sorted(place for call in calls[1:] for place in call) == [(0, 0), (0, 2), (1, 0)]


async def test_a_topic_is_paused_with_its_records_in_retry_topics() -> None:
    """Others in the same retry topic go on; the same is true of keys."""
    broker = broker_with(a=1, b=1, again=1, dead=1)
    calls = list[tuple[str, Any]]()

    async def handle(record: Record) -> None:
        calls.append((record.origin.topic, record.key))
        if record.attempt == 1:
            raise ValueError

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"again": 1.0}, dead_letter="dead")
    consumer = consumer_of(broker, ["a", "b"], failures=failures)
    async with running(consumer, handle):
        produce(broker, [b"1", b"2"], topic="a")
        produce(broker, [b"3", b"4"], topic="b")
        await until(lambda: len(calls) == 4)
        consumer.pause("a")
        consumer.pause_keys("b", b"3")
        await until(lambda: len(calls) == 5)
        await asyncio.sleep(LONG)
        assert calls[4:] == [("b", b"4")]
        consumer.resume("a")
        await until(lambda: len(calls) == 7)
        await asyncio.sleep(LONG)
        assert sorted(calls[5:]) == [("a", b"1"), ("a", b"2")]
        consumer.resume_keys("b", b"3")
        await until(lambda: len(calls) == 8)


async def test_a_partition_of_a_queue() -> None:
    """Its leases are not renewed, so others get its records; the other partition goes on, and a stop does not wait."""
    broker, seen = broker_with(**{"q": 2, "q-markers": 2, "q__undelivered": 1}), Seen(0.01)
    consumer = KmqConsumer[Any, Any](
        "q", group_id="g", client=InMemoryClient(broker, "g"), producer=InMemoryProducer(broker), lease=5
    )
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(600), consumer:
        run = asyncio.create_task(consumer.run(seen))
        for partition in (0, 1):
            produce(broker, [None] * 300, partition, topic="q")
        await until(lambda: bool(seen.ended))
        consumer.pause(TopicPartition("q", 0))
        await until(lambda: len([one for one in seen.ended if one.partition == 1]) == 300)
        assert len([one for one in seen.ended if one.partition == 0]) < 300
        assert consumer.stats().buffered
        with pytest.raises(ConfigurationError, match=r"ordering=<Ordering.UNORDERED.*has no keys"):
            consumer.pause_keys("q", b"x")
        began = loop.time()
        consumer.stop()
        await run
    assert loop.time() - began < 1


async def test_a_topic_of_several_priorities() -> None:
    """It is paused by its own name in all priorities, or by the name of one."""
    broker, seen = broker_with(**{"t-0": 1, "t-1": 1, "u-0": 1, "u-1": 1}), Seen()
    clients = [InMemoryClient(broker, f"g-{priority}") for priority in range(2)]
    consumer = PriorityConsumer[Any, Any](
        ["t", "u"], priorities=2, group_id="g", clients=clients, producer=InMemoryProducer(broker)
    )
    async with running(consumer, seen):
        consumer.pause("t")
        assert consumer.paused.topics == ("t-0", "t-1")
        for topic in ("t-0", "t-1", "u-0", "u-1"):
            produce(broker, [b"x"], topic=topic)
        await until(lambda: len(seen.ended) == 2)
        await asyncio.sleep(LONG)
        assert {record.topic for record in seen.started} == {"u-0", "u-1"}
        consumer.resume("t-1")
        await until(lambda: len(seen.ended) == 3)
        assert seen.ended[-1].topic == "t-1"


async def test_parked_records_of_a_paused_topic_leave_others_their_part() -> None:
    """Too many parked records of a paused topic are no problem, and none of them is tried."""
    broker, calls = broker_with(a=1, b=1), 0

    async def handle(record: Record) -> None:
        nonlocal calls
        calls += 1
        if record.topic == "a":
            raise ValueError

    consumer = consumer_of(broker, ["a", "b"], max_concurrency=2, max_parked=8, failures=FailurePolicy(retry=QUICK))
    produce(broker, [b"%d" % number for number in range(100)], topic="a")
    async with running(consumer, handle):
        await until(lambda: any(one.kind == "max_parked" for one in consumer.health().problems))
        consumer.pause("a")
        await asyncio.sleep(LONG)
        before = calls
        assert consumer.health().healthy
        produce(broker, [b"%d" % number for number in range(100)], topic="b")
        await until(lambda: committed(broker, TopicPartition("b", 0)) == 100)
        assert calls == before + 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.pause("T"), "topic='T': is not read by this consumer, which reads t"),
        (lambda one: one.resume(("u", 0)), "topic='u': is not read by this consumer, which reads t"),
        (lambda one: one.pause(3), "targets=3: must be the name of a topic, or a TopicPartition"),
        (lambda one: one.pause(("t", "0")), "targets=('t', '0'): must be the name of a topic, or a TopicPartition"),
        (lambda one: one.pause_keys(T0, b"x"), "topic=TopicPartition(topic='t', partition=0): must be the name of a"),
        (lambda one: one.pause_keys("t", "x"), "keys='x': must be bytes, as the key is before it is deserialised"),
        (lambda one: one.pause_keys("t", None), "keys=None: is the key of records without order"),
    ],
)
async def test_wrong_targets(change: Callable[[Any], None], message: str, broker: InMemoryBroker) -> None:
    """The message says what is allowed; nothing is paused."""
    consumer = consumer_of(broker)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        change(consumer)
    assert not consumer.paused


async def test_orders_without_keys(broker: InMemoryBroker) -> None:
    """PARTITION and UNORDERED have none."""
    for ordering in (Ordering.PARTITION, Ordering.UNORDERED):
        with pytest.raises(ConfigurationError, match="has no keys that could be paused: pause a topic or a partition"):
            consumer_of(broker, ordering=ordering).pause_keys("t", b"x")
    by_list = consumer_of(broker, order_by=lambda record: record.key)
    with pytest.raises(ConfigurationError, match=r"must be hashable, as what order_by returns; it is a list"):
        by_list.pause_keys("t", [])  # type: ignore[arg-type]


async def test_topics_of_a_pattern(broker: InMemoryBroker) -> None:
    """Any topic that the pattern matches may be paused, even before it exists."""
    consumer = consumer_of(broker, re.compile("t.*"))
    consumer.pause("tomorrow")
    with pytest.raises(ConfigurationError, match="which reads topics that match"):
        consumer.pause("yesterday")
    assert consumer.paused.topics == ("tomorrow",)


async def test_from_another_thread(broker: InMemoryBroker) -> None:
    """As the other calls, it acts in the event loop."""
    seen = Seen()
    consumer = consumer_of(broker)
    async with running(consumer, seen):
        await until(lambda: consumer.health().ready)
        await asyncio.to_thread(consumer.pause_keys, "t", b"x")
        await asyncio.to_thread(consumer.pause, T0)
        await until(lambda: bool(consumer.paused.partitions and consumer.paused.keys))
        produce(broker, [b"x", b"y"])
        await asyncio.to_thread(consumer.resume, T0)
        await until(lambda: len(seen.ended) == 1)
        assert (await asyncio.to_thread(lambda: consumer.paused)).keys == {"t": (b"x",)}
        await asyncio.to_thread(consumer.resume_keys, "t", b"x")
        await until(lambda: len(seen.ended) == 2)


class Woken(Extension):
    """Names the record that a gate has woken, as a handler with gates of its own does."""

    def may_attempt(self, record: Record[Any, Any]) -> None:
        name_woken(record)


async def test_a_paused_record_holds_no_place_at_a_gate() -> None:
    """Records of two topics wait for the same place. Those of the paused one let the others pass, and come later."""
    broker, entered = broker_with(a=1, b=1), list[str]()
    gate: Gate | None = None

    async def handle(record: Record) -> None:
        nonlocal gate
        gate = gate or Gate("here", 1)
        gate.enter()
        entered.append(record.topic)
        try:
            await asyncio.sleep(0.5)
        finally:
            gate.leave()

    consumer = consumer_of(broker, ["a", "b"], extensions=[Woken()], stuck_after=30)
    async with running(consumer, handle):
        produce(broker, [b"%d" % number for number in range(20)], topic="a")
        await until(lambda: consumer.stats().parked == 19)
        produce(broker, [b"%d" % number for number in range(20)], topic="b")
        await until(lambda: consumer.stats().parked == 39)
        before = entered.count("a")
        consumer.pause("a")
        await until(lambda: entered.count("b") == 20, what=lambda: str(entered))
        await asyncio.sleep(60)
        assert entered.count("a") <= before + 1
        assert consumer.health().healthy, consumer.health()
        consumer.resume("a")
        await until(lambda: entered.count("a") == 20)
    assert gate is not None
    assert gate.is_idle


async def test_in_transactions() -> None:
    """Outputs of what goes on are committed with a map; those of the paused key follow, and nothing is written
    twice."""
    broker = broker_with(**{"in": 2, "out": 1})
    for partition in (0, 1):
        produce(broker, [b"x", b"y", b"z"] * 20, partition, topic="in")

    async def copy(record: Record) -> Outgoing:
        return Outgoing("out", record.value, record.key)

    def member(**options: Any) -> ParallelConsumer[Any, Any]:
        return ParallelConsumer(
            "in",
            group_id="g",
            client=InMemoryClient(broker, "g", isolation_level="read_committed"),
            producer=InMemoryTransactionalProducer(broker, "g"),
            commits=Transactions(interval=0.05),
            **options,
        )

    first = member()
    first.pause_keys("in", b"x")
    async with running(first, copy):
        await until(lambda: len(broker.records("out")) == 80)
        await asyncio.sleep(LONG)
        assert first.stats().buffered == 40
        first.pause(TopicPartition("in", 1))
        first.resume_keys("in", b"x")
        await until(lambda: len(broker.records("out")) == 100)
    async with member(until="end") as second:
        await second.run(copy)
    assert second.stats().admitted == 20
    assert Counter(record.key for record in broker.records("out")) == {b"x": 40, b"y": 40, b"z": 40}
