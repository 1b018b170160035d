"""Leases by record, partitions without markers, batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aioparallel import (
    Batch,
    ConfigurationError,
    ConsumerStateError,
    Ordering,
    Record,
    RetryLater,
    RetryPolicy,
    batches,
)
from aioparallel.engine.outcomes.gates import Gate, name_woken
from aioparallel.observe.health import ProblemKind
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.queues.kmq.leases import Leased
from aioparallel.queues.kmq.markers import read_marker
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryProducer, Request
from tests.simulation.clocks import one_source_of_chance
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import until
from tests.unit.queues.kmq.conftest import client, consumer, produce, tracker
from tests.unit.queues.kmq.test_queue import Handler, held, open_markers, running


def number(record: Record[bytes, int]) -> float:
    """A lease by a value that was deserialised."""
    return record.value / 10


def wrong(record: Record) -> float:
    """No lease."""
    return float("nan")


def broken(record: Record) -> float:
    """Nor here."""
    raise KeyError("no lease")


async def test_a_lease_by_what_the_record_holds(broker: InMemoryBroker) -> None:
    """The function gets the record as the handler does; what cannot be deserialised fails by itself."""
    handler = Handler()
    async with running(consumer(broker, lease=number, value_deserializer=int), handler) as one:
        produce(broker, [b"5", b"none", b"700"])
        await until(lambda: one.stats().succeeded == 2 and one.stats().released == 1)
    starts = [read_marker(found.key, found.value) for found in held(broker, "q-markers")]
    assert [one.lease for one in starts if one is not None and one.lease is not None] == [500, 30_000, 70_000]
    assert open_markers(broker) == {(0, 1)}


@pytest.mark.parametrize("lease", [wrong, broken])
async def test_a_lease_that_cannot_be_told(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture, lease: Callable[[Record], float]
) -> None:
    """Its record fails, whose handler is not called, and no other."""
    handler = Handler()
    both = consumer(broker, lease=lambda record: lease(record) if record.value == b"bad" else 1)
    async with running(both, handler) as one:
        produce(broker, [b"bad", b"good"])
        await until(lambda: one.stats().succeeded == 1 and one.stats().released == 1)
    assert handler.seen == {b"good": 1}
    assert "q-0 offset 0 failed" in caplog.text
    assert "the function lease has failed for it" in caplog.text


async def test_a_lease_is_extended_by_seconds(broker: InMemoryBroker) -> None:
    """That a marker can say."""
    found: list[Exception] = []
    one = consumer(broker)

    async def handle(record: Record) -> None:
        for seconds in (0, -1, float("nan"), 1e300, 0.0001):
            with pytest.raises(ConfigurationError) as error:
                await one.extend(record, seconds)
            found.append(error.value)

    async with running(one, handle):
        produce(broker, [b"a"])
        await until(lambda: one.stats().succeeded == 1)
    assert len(found) == 5


async def test_an_acknowledged_extension_holds_up_no_renewal(broker: InMemoryBroker) -> None:
    """Only those without an answer do."""
    found: list[int] = []
    one = consumer(broker)

    async def handle(record: Record) -> None:
        await one.extend(record, 30)
        source = record._source
        assert isinstance(source, Leased)
        found.append(source.leases[record.offset].extensions)

    async with running(one, handle):
        produce(broker, [b"a"])
        await until(lambda: one.stats().succeeded == 1)
    assert found == [0]


def test_a_thousand_attempts_fit_no_lease(broker: InMemoryBroker) -> None:
    """Their delays are not added up."""
    with pytest.raises(ConfigurationError, match="the lease is 3600 s: make them fit"):
        consumer(broker, lease=3600, retry=RetryPolicy(first_delay=0.001, max_delay=0.001, max_attempts=1_000))


async def test_an_extended_lease_is_the_records_own(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that fails when its first lease would be over is tried again here, and nobody is told so."""
    calls: list[int] = []
    one = consumer(broker, lease=0.3, retry=RetryPolicy(first_delay=0.01, max_attempts=2))

    async def handle(record: Record) -> None:
        calls.append(record.attempt)
        if len(calls) == 1:
            await one.extend(record, 30)
            await asyncio.sleep(0.6)
            raise ValueError("once")

    async with running(one, handle):
        produce(broker, [b"a"])
        await until(lambda: one.stats().succeeded == 1)
        assert one.stats().released == 0
    assert calls == [1, 2]
    assert "lease_outlived" not in [getattr(line, "action", "") for line in caplog.records]


def slow_brokers(broker: InMemoryBroker) -> KmqConsumer[Any, Any]:
    """One handler at a time, leases of ten seconds, and a producer that waits for its brokers for long."""
    return KmqConsumer(
        "q",
        group_id="g",
        client=client(broker, "g"),
        producer=InMemoryProducer(broker),
        lease=10,
        max_concurrency=1,
        max_buffered=2,
        drain_timeout=1,
    )


def test_no_renewal_replaces_an_extension(broker: InMemoryBroker) -> None:
    """The last marker counts. Brokers are slow, a handler is called late and extends its lease: its lease was due to be
    renewed while the extension was not acknowledged."""
    later: list[bytes | None] = []

    async def play() -> None:
        one = slow_brokers(broker)

        async def handle(record: Record) -> None:
            if record.value == b"first":
                await asyncio.sleep(3)
                return
            broker.faults.script(Request.PRODUCE, *[Fault(is_response_lost=True)] * 6)
            await one.extend(record, 100)
            await asyncio.sleep(30)
            later.append(record.value)

        async with running(one, handle):
            produce(broker, [b"first", b"second"])
            await until(lambda: bool(later), 60)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())
    markers = [read_marker(found.key, found.value) for found in held(broker, "q-markers")]
    leases = [one.lease for one in markers if one is not None and one.offset == 1]
    assert leases == [10_000, 100_000, None]


def test_a_renewal_that_is_late_is_not_the_last_one(broker: InMemoryBroker) -> None:
    """Brokers acknowledge it after the lease would have ended: the record still waits for its handler, and keeps its
    lease."""

    async def play() -> int:
        one = slow_brokers(broker)

        async def handle(record: Record) -> None:
            if record.value == b"first":
                await one.extend(record, 100)
                await asyncio.sleep(6)
                broker.faults.script(Request.PRODUCE, *[Fault(is_response_lost=True)] * 4)
                await asyncio.sleep(18)
                ended.set()

        ended = asyncio.Event()
        async with running(one, handle):
            produce(broker, [b"first", b"second"])
            await ended.wait()
            await until(lambda: one.stats().succeeded + one.stats().released == 2, 60)
            return one.stats().released

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(play()) == 0


async def test_there_is_no_lease_before_it_runs(broker: InMemoryBroker) -> None:
    """Nor of a record that it has not read."""
    one = consumer(broker)
    with pytest.raises(ConsumerStateError):
        await one.extend(Record("q", 0, 0), 5)
    async with running(one, Handler()):
        produce(broker, [b"a"])
        await until(lambda: one.stats().succeeded == 1)
        with pytest.raises(ConsumerStateError, match="no lease here"):
            await one.extend(Record("q", 0, 0), 5)


async def test_a_partition_without_one_of_markers(broker: InMemoryBroker) -> None:
    """The queue has grown and its markers have not: health tells, the other partitions go on, and once there is one its
    records run."""
    handler = Handler()
    async with running(tracker(broker)), running(consumer(broker), handler) as one:
        broker.add_partitions("q", 3)
        broker.append("q", b"new", partition=2)
        await until(lambda: one.health().problems)
        (problem,) = one.health().problems
        assert problem.kind is ProblemKind.NOT_MARKED
        assert "q-2" in problem.message
        produce(broker, [b"a"])
        await until(lambda: handler.ended[b"a"])
        broker.add_partitions("q-markers", 4)
        await until(lambda: handler.ended[b"new"])
        assert not one.health().problems


async def test_batches_of_a_queue(broker: InMemoryBroker) -> None:
    """A batch that fails runs one by one, within the lease; what fails by itself comes again."""
    calls: list[int] = []

    @batches(size=10, linger=0.02)
    async def save(batch: Batch[Record]) -> None:
        calls.append(len(batch))
        if any(record.value == b"bad" for record in batch):
            raise ValueError("no")

    async with running(tracker(broker)), running(consumer(broker, ordering=Ordering.UNORDERED), save) as one:
        produce(broker, [b"%d" % n for n in range(25)] + [b"bad"])
        await until(lambda: held(broker, "q__undelivered") and not open_markers(broker))
        assert one.stats().succeeded == 25
        assert one.stats().released == 4
    assert max(calls) > 1


async def test_a_handler_that_outlives_the_lease_is_told(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It has succeeded, and its record comes again all the same: nobody would know why."""
    handler = Handler(lambda record: asyncio.sleep(0.5) if record.value == b"slow" else None)
    async with running(consumer(broker, lease=0.2), handler) as one:
        produce(broker, [b"slow", b"quick"])
        await until(lambda: one.stats().succeeded == 2)
    (line,) = [found for found in caplog.records if getattr(found, "action", None) == "lease_outlived"]
    assert "1 record was handled after the lease had ended, the last one 0." in line.getMessage()
    assert "q-0 offset 0. Each is redelivered, " in line.getMessage()
    assert "one whose every delivery takes longer than its lease is dead-lettered in the end" in line.getMessage()


async def test_a_handler_that_runs_at_the_drain_deadline(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is cancelled, and a line says so: its record waits for no next owner, but for the end of its lease."""
    async with running(consumer(broker, lease=30, drain_timeout=0.5), Handler(lambda _: asyncio.sleep(600))) as one:
        produce(broker, [b"slow"])
        await until(lambda: one.stats().in_flight == 1)
    (line,) = [found for found in caplog.records if getattr(found, "action", None) == "drain_over"]
    assert line.getMessage() == (
        "The drain has lasted 0.5 s (drain_timeout): 1 handler that still runs is cancelled, the first of them for q-0 "
        "offset 0. Records that do not end now run again when their leases have ended"
    )


def test_a_lease_that_would_be_awaited(broker: InMemoryBroker) -> None:
    """Refused at once: it would fail each record, and all would be put away in the end."""

    async def lease(record: Record) -> float:
        return 1

    with pytest.raises(ConfigurationError, match="must be a plain function"):
        consumer(broker, lease=lease)


async def test_a_function_that_returns_something_to_await(broker: InMemoryBroker) -> None:
    """The record fails with a message that says so, and the coroutine is closed."""

    async def lease(record: Record) -> float:
        return 1

    one = consumer(broker, lease=lambda record: lease(record))
    async with running(one, Handler()):
        produce(broker, [b"a"])
        await until(lambda: one.stats().released == 1)
    assert one.stats().succeeded == 0


def test_who_waits_for_room_keeps_its_lease(broker: InMemoryBroker) -> None:
    """A host is shut for longer than all deliveries of a record would last: each record is delivered once, and sent."""
    handler = Handler()

    async def play() -> None:
        gate = Gate("https://busy", 1)
        gate.shut(4.0)

        async def handle(record: Record) -> None:
            name_woken(record)
            gate.enter()
            try:
                await handler(record)
            finally:
                gate.leave()

        async with (
            running(tracker(broker, max_redeliveries=2)),
            running(consumer(broker, lease=0.3, retry=RetryPolicy(first_delay=0.05, max_attempts=2)), handle) as one,
        ):
            produce(broker, [b"%d" % number for number in range(5)])
            await until(lambda: one.stats().succeeded == 5, 30)

    loop = VirtualLoop()
    with one_source_of_chance(0, loop.time, 1e-6), asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(play())
    assert handler.seen == {b"%d" % number: 1 for number in range(5)}
    assert len(held(broker, "q")) == 5
    assert not held(broker, "q__undelivered")


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_handler_that_was_called_late_has_the_whole_lease(broker: InMemoryBroker, is_stopped: bool) -> None:
    """However little late it was, and through the drain of a stop: one further marker, and only for those that take
    long."""
    left: dict[bytes, float] = {}

    async def handle(record: Record) -> None:
        value = record.value or b""
        await asyncio.sleep({b"first": 0.8, b"long": 9.6}.get(value, 0.05))
        assert isinstance(record._source, Leased)
        left[value] = record._source.lease_left(record.offset)

    async def play() -> None:
        both = consumer(broker, lease=10, max_concurrency=1, max_buffered=100, drain_timeout=30)
        async with running(both, handle) as one:
            produce(broker, [b"first", b"long", *[b"%d" % n for n in range(5)]])
            await until(lambda: b"first" in left)
            if is_stopped:
                one.stop()
            await until(lambda: len(left) == 7 and not open_markers(broker))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())
    assert 0.3 < left[b"long"] < 0.5
    starts = [read_marker(found.key, found.value) for found in held(broker, "q-markers")]
    again = [one.offset for one in starts if one is not None and one.lease is not None]
    assert again.count(1) == 2
    assert again.count(0) == 1


@pytest.mark.parametrize("delay", [0.2, 2.0], ids=["again and again", "once"])
async def test_a_delay_that_a_handler_asks_for_keeps_its_lease(broker: InMemoryBroker, delay: float) -> None:
    """In all it is longer than all deliveries of a record would last: nobody else gets the record, and it is done."""
    handler, began = Handler(), dict[bytes | None, float]()
    time = asyncio.get_running_loop().time

    async def handle(record: Record) -> None:
        if time() - began.setdefault(record.value, time()) < 1.9:
            raise RetryLater(delay)
        await handler(record)

    async with (
        running(tracker(broker, max_redeliveries=2)) as watching,
        running(consumer(broker, lease=0.3), handle) as one,
    ):
        produce(broker, [b"%d" % number for number in range(5)])
        await until(lambda: one.stats().succeeded == 5, 30)
        assert one.stats().released == watching.stats().redelivered == 0
    assert handler.seen == {b"%d" % number: 1 for number in range(5)}
    assert len(held(broker, "q")) == 5
    assert not held(broker, "q__undelivered")


async def test_a_delay_beyond_max_wait_is_left_to_others(broker: InMemoryBroker) -> None:
    """``max_wait`` bounds it: then the record comes again, and is put away in the end."""
    calls = 0

    async def handle(record: Record) -> None:
        nonlocal calls
        calls += 1
        raise RetryLater(0.1)

    async with (
        running(tracker(broker, max_redeliveries=1)),
        running(consumer(broker, lease=0.3, retry=RetryPolicy(max_attempts=1, max_wait=0.25)), handle),
    ):
        produce(broker, [b"0"])
        await until(lambda: held(broker, "q__undelivered"), 30)
    assert calls >= 4  # of two deliveries


async def test_waits_that_count_are_failed_attempts(broker: InMemoryBroker) -> None:
    """``count_waits``: after ``max_attempts`` of them the record is released, although its lease has not ended."""
    calls = 0

    async def handle(record: Record) -> None:
        nonlocal calls
        calls += 1
        raise RetryLater(0.01)

    retry = RetryPolicy(max_attempts=3, count_waits=True)
    async with running(consumer(broker, lease=30, retry=retry), handle) as one:
        produce(broker, [b"0"])
        await until(lambda: one.stats().released == 1)
    assert calls == 3


async def test_what_is_due_runs_before_a_stop(broker: InMemoryBroker) -> None:
    """Its delay is over while the consumer pauses: it waits for nothing, so it is not left to others."""
    calls = 0

    async def handle(record: Record) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RetryLater(0.1)

    async with running(consumer(broker, lease=5), handle) as one:
        produce(broker, [b"0"])
        await until(lambda: one.stats().parked == 1)
        one.pause()
        await asyncio.sleep(0.3)
    assert calls == 2
    assert not open_markers(broker)
