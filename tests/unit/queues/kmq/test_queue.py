"""A queue in memory from both sides: leases, redeliveries, rebalances, ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel import ConfigurationError, Ordering, Producing, Record, Reject, RetryPolicy, TopicNotFound
from aioparallel.delivery.letters import original_headers
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker, redeliveries
from aioparallel.queues.kmq.markers import read_marker
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.inside import run_of
from tests.support.waiting import until
from tests.unit.queues.kmq.conftest import consumer, produce, tracker


@asynccontextmanager
async def running(one: Any, *handler: Any) -> AsyncIterator[Any]:
    """While the block runs; what ended it is raised."""
    async with one:
        task = asyncio.create_task(one.run(*handler))
        try:
            await until(lambda: one.health().ready or task.done())
            yield one
        finally:
            one.stop()
            await task


def held(broker: InMemoryBroker, topic: str, partition: int = 0) -> list[Any]:
    """All that a partition holds."""
    log = broker.log(TopicPartition(topic, partition))
    assert log is not None
    return log.read(log.start_offset, 10**6, read_committed=False).records


def open_markers(broker: InMemoryBroker) -> set[tuple[int, int]]:
    """Records that are somebody's, as the marker topic says."""
    found = set[tuple[int, int]]()
    for partition in range(2):
        for one in held(broker, "q-markers", partition):
            marker = read_marker(one.key, one.value)
            assert marker is not None
            assert marker.partition == partition
            if marker.lease is None:
                found.discard((partition, marker.offset))
            else:
                found.add((partition, marker.offset))
    return found


class Handler:
    """Notes what it is given; ``does`` by value."""

    def __init__(self, does: Callable[[Record], Any] = lambda record: None) -> None:
        self.does = does
        self.seen: Counter[bytes | None] = Counter()
        self.counts: list[int] = []
        self.ended: Counter[bytes | None] = Counter()

    async def __call__(self, record: Record) -> None:
        self.seen[record.value] += 1
        self.counts.append(redeliveries(record))
        result = self.does(record)
        if result is not None:
            await result
        self.ended[record.value] += 1


async def test_each_record_has_a_start_and_an_end_marker(broker: InMemoryBroker) -> None:
    """The position is committed when the start markers are written, whatever becomes of the handlers."""
    gate = asyncio.Event()
    handler = Handler(lambda record: gate.wait() if record.value == b"0" else None)
    async with running(consumer(broker), handler) as one:
        produce(broker, [b"%d" % n for n in range(50)])
        produce(broker, [b"x"], partition=1)
        await until(lambda: len(handler.ended) == 50)
        await until(lambda: broker.group("g").offsets[TopicPartition("q", 0)].offset == 50)
        assert broker.group("g").offsets[TopicPartition("q", 0)].metadata == ""
        await until(lambda: open_markers(broker) == {(0, 0)})
        gate.set()
        await until(lambda: not open_markers(broker))
        assert one.stats().succeeded == 51
    assert handler.seen.total() == 51


async def test_what_fails_is_delivered_again_and_then_put_away(broker: InMemoryBroker) -> None:
    """After the lease, with its headers and a count; after the third redelivery it is a dead letter, which has its
    headers too."""

    def fail(record: Record) -> None:
        if record.value == b"bad":
            raise ValueError("no")

    handler = Handler(fail)
    async with running(tracker(broker)) as watching, running(consumer(broker), handler) as one:
        produce(broker, [b"good", b"bad", b"fine"])
        await until(lambda: held(broker, "q__undelivered"))
        await until(lambda: not open_markers(broker))
        assert handler.seen == {b"good": 1, b"bad": 4, b"fine": 1}
        assert sorted(handler.counts) == [0, 0, 0, 1, 2, 3]
        assert one.stats().released == 4
        stats = watching.stats()
        assert (stats.redelivered, stats.dead_lettered, stats.gone) == (3, 1, 0)
    (letter,) = held(broker, "q__undelivered")
    headers = dict(letter.headers)
    assert (letter.key, letter.value, headers["kept"]) == (b"k", b"bad", b"1")
    assert headers["aioparallel.attempts"] == b"4"
    assert "kmq-redelivery-count" not in headers


async def test_a_handler_that_rejects(broker: InMemoryBroker) -> None:
    """A dead letter at once, and an end marker."""

    def reject(record: Record) -> None:
        raise Reject("never")

    handler = Handler(reject)
    async with running(tracker(broker)), running(consumer(broker), handler) as one:
        produce(broker, [b"a"])
        await until(lambda: held(broker, "q__undelivered"))
        await until(lambda: one.stats().dead_lettered == 1 and not open_markers(broker))
        await asyncio.sleep(0.8)
    assert handler.seen.total() == 1


async def test_tries_within_the_lease(broker: InMemoryBroker) -> None:
    """By the policy, and no longer than the lease lasts."""

    def fail(record: Record) -> None:
        raise ValueError("no")

    handler = Handler(fail)
    retry = RetryPolicy(first_delay=0.01, multiplier=1, max_attempts=3)
    async with running(consumer(broker, retry=retry), handler) as one:
        produce(broker, [b"a"])
        await until(lambda: one.stats().released == 1)
        assert handler.seen[b"a"] == 3
        assert one.stats().failed_attempts == 3


async def test_what_waits_keeps_its_lease(broker: InMemoryBroker) -> None:
    """Handlers that take most of a lease, and three times as many records as there are handlers: each of them has the
    whole lease to itself, however long it waited, and nothing is delivered again."""
    handler = Handler(lambda record: asyncio.sleep(0.6))
    both = consumer(broker, lease=1, max_concurrency=2)
    async with running(tracker(broker)) as watching, running(both, handler) as one:
        produce(broker, [b"%d" % n for n in range(12)])
        await until(lambda: len(handler.ended) == 12)
        await until(lambda: not open_markers(broker))
        assert one.stats().released == watching.stats().redelivered == 0
    assert handler.seen.total() == 12


async def test_what_waits_for_handlers_that_hang_goes_to_others(broker: InMemoryBroker) -> None:
    """When handlers that keep within their lease would have come to it: not at the end of the first one, nor never."""
    gate = asyncio.Event()
    handler = Handler(lambda record: gate.wait() if record.value == b"0" else None)
    both = consumer(broker, max_concurrency=1, max_buffered=2, lease=0.4)
    time = asyncio.get_running_loop().time
    async with running(tracker(broker)) as watching, running(both, handler) as one:
        produce(broker, [b"0", b"1", b"2"])
        await until(lambda: handler.seen == {b"0": 1})
        began = time()
        await until(lambda: watching.stats().redelivered == 3)
        assert time() - began > 0.9
        gate.set()
        await until(lambda: one.stats().released == 2)
        await until(lambda: handler.ended[b"1"] == handler.ended[b"2"] == 1)
        await until(lambda: not open_markers(broker))


async def test_a_lease_can_be_extended_and_differ(broker: InMemoryBroker) -> None:
    """By record, and by the handler while it works."""
    one = consumer(broker, lease=lambda record: 5.0 if record.value == b"long" else 0.3)

    async def handle(record: Record) -> None:
        if record.value == b"extended":
            await one.extend(record, 5)
        await asyncio.sleep(1)

    async with running(tracker(broker)) as watching, running(one, handle):
        produce(broker, [b"long", b"extended", b"short"])
        await until(lambda: one.stats().succeeded >= 3)
        await until(lambda: watching.stats().redelivered)
    assert {record.value for record in held(broker, "q")[3:]} == {b"short"}


async def test_a_rebalance_ends_no_handler(broker: InMemoryBroker) -> None:
    """What was begun here ends here, and nobody else gets it."""
    gate = asyncio.Event()
    handler = Handler(lambda record: gate.wait())
    async with running(consumer(broker, lease=30), handler) as one:
        produce(broker, [b"%d" % n for n in range(10)])
        produce(broker, [b"x%d" % n for n in range(10)], partition=1)
        await until(lambda: handler.seen.total() == 20)
        other = Handler()
        async with running(consumer(broker, lease=30), other) as second:
            await until(lambda: second.health().ready and one.health().ready)
            assert one.stats().in_flight == 20
            gate.set()
            await until(lambda: one.stats().succeeded == 20)
            await until(lambda: not open_markers(broker))
        assert not other.seen
    assert set(handler.seen.values()) == {1}


async def test_a_stop_runs_what_was_read(broker: InMemoryBroker) -> None:
    """As far as there is time: it is this consumer's already."""
    handler = Handler(lambda record: asyncio.sleep(0.05))
    one = consumer(broker, max_concurrency=5, max_buffered=20)
    async with running(one, handler):
        produce(broker, [b"%d" % n for n in range(100)])
        await until(lambda: handler.ended)
    assert not open_markers(broker)
    assert broker.group("g").offsets[TopicPartition("q", 0)].offset == handler.ended.total() < 100


async def test_a_tracker_goes_on_where_another_stopped(broker: InMemoryBroker) -> None:
    """At the first open marker; what ended meanwhile is not delivered again."""
    handler = Handler(lambda record: asyncio.sleep(600) if record.value == b"7" else None)
    async with running(tracker(broker)) as first:
        async with running(consumer(broker, lease=0.6, drain_timeout=0), handler):
            produce(broker, [b"%d" % n for n in range(20)])
            await until(lambda: handler.ended.total() == 19)
            await until(lambda: open_markers(broker) == {(0, 7)})
        await until(lambda: first.stats().open == 1)
    begins = broker.group("trackers").offsets[TopicPartition("q-markers", 0)]
    assert begins.offset == 7
    async with running(tracker(broker)) as second:
        await until(lambda: second.stats().redelivered == 1)
        await until(lambda: not open_markers(broker))
    assert held(broker, "q")[-1].value == b"7"
    assert len(held(broker, "q")) == 21


async def test_a_record_that_is_gone_is_told(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """And another is not sent in its place."""
    handler = Handler(lambda record: asyncio.sleep(600))
    async with running(consumer(broker, drain_timeout=0), handler):
        produce(broker, [b"a", b"b"])
        await until(lambda: handler.seen.total() == 2)
    broker.delete_before(TopicPartition("q", 0), 1)
    async with running(tracker(broker)) as watching:
        await until(lambda: watching.stats().gone == 1 and watching.stats().redelivered == 1)
        await until(lambda: not open_markers(broker))
    assert [one.value for one in held(broker, "q")] == [b"b", b"b"]
    assert "q-0 offset 0 was not handled in time and cannot be redelivered" in caplog.text


async def test_a_batch_that_cannot_be_read_again_is_passed_over_where_it_is_named(broker: InMemoryBroker) -> None:
    """Its records are told as gone, and what stands behind it is delivered again."""
    handler = Handler(lambda record: asyncio.sleep(600))
    async with running(consumer(broker, drain_timeout=0), handler):
        produce(broker, [b"a", b"b", b"c"])
        await until(lambda: handler.seen.total() == 3)
    broker.corrupt(TopicPartition("q", 0), 0, 2)
    async with running(tracker(broker, skip_unreadable=[("q", 0, 0)])) as watching:
        await until(lambda: watching.stats().gone == 2 and watching.stats().redelivered == 1)
        await until(lambda: not open_markers(broker))
    assert [one.value for one in held(broker, "q")] == [b"a", b"b", b"c", b"c"]


@pytest.mark.parametrize("lease", [60.0, lambda record: 1 // 0], ids=["seconds", "function"])
async def test_a_record_that_cannot_be_decoded_is_put_away_at_once(broker: InMemoryBroker, lease: Any) -> None:
    """It is not delivered again, and its marker is ended; no function of the user's has seen it."""
    raw = b"\xff".decode("utf-8", "surrogateescape")
    broker.append("q", b"odd", partition=0, headers=((raw, b"1"),))
    handler = Handler()
    async with running(consumer(broker, lease=lease), handler):
        await until(lambda: len(held(broker, "q__undelivered")) == 1)
        await until(lambda: not open_markers(broker))
    assert not handler.seen
    (letter,) = held(broker, "q__undelivered")
    assert original_headers(letter.headers) == ((raw, b"1"),)
    assert b"UndecodableRecord" in dict(letter.headers)["aioparallel.error.type"]


async def test_options_are_checked(broker: InMemoryBroker) -> None:
    """With the reason; topics where they are looked up."""
    cases: list[dict[str, Any]] = [
        {"ordering": Ordering.KEY},
        {"ordering": Ordering.PARTITION},
        {"order_by": lambda record: 1},
        {"lease": 0},
        {"lease": "30"},
        {"retry": RetryPolicy()},
        {"retry": RetryPolicy(max_attempts=10)},
        {"retry": RetryPolicy(max_attempts=2, first_delay=0), "handler_timeout": 0.4},
        {"marker_topic": "q"},
        {"dead_letter": ""},
    ]
    for options in cases:
        with pytest.raises(ConfigurationError):
            consumer(broker, **options)
    for wrong in ({"max_redeliveries": -1}, {"use_now_after": -1}):
        with pytest.raises(ConfigurationError):
            tracker(broker, **wrong)
    broker.create_topic("one", 1)
    with pytest.raises(ConfigurationError, match="has 1 partitions and q has 2"):
        async with consumer(broker, marker_topic="one"):
            pass
    with pytest.raises(TopicNotFound, match="nowhere"):
        async with tracker(broker, dead_letter="nowhere"):
            pass
    assert isinstance(consumer(broker), KmqConsumer)
    assert isinstance(tracker(broker), RedeliveryTracker)


@pytest.mark.parametrize("made", [consumer, tracker])
async def test_all_missing_topics_are_named_at_once(made: Callable[[InMemoryBroker], Any]) -> None:
    """Each with what it is for, and with the option of the queue that names it."""
    with pytest.raises(TopicNotFound) as raised:
        async with made(InMemoryBroker()):
            pass
    assert raised.value.topics == ("q", "q-markers", "q__undelivered")
    assert (
        "q (the queue), q-markers (the markers of its records; marker_topic= names it), q__undelivered (its dead "
        "letters; dead_letter= names it); create them first"
    ) in str(raised.value)


async def test_its_partitions_tell_what_they_hold(broker: InMemoryBroker) -> None:
    """Though its records are not the assignment's: what is buffered and parked, and how old the first is."""
    gate = asyncio.Event()
    handler = Handler(lambda record: gate.wait())
    one = consumer(broker, lease=30, max_concurrency=2, max_buffered=10)
    async with running(one, handler):
        produce(broker, [b"%d" % n for n in range(8)])
        await until(lambda: len(handler.seen) == 2 and one.stats().buffered == 6)
        found = one.stats().partitions[0]
        assert (found.buffered, found.parked) == (6, 0)
        assert found.oldest is not None
        gate.set()
        await until(lambda: one.stats().succeeded == 8)
        assert one.stats().partitions[0].oldest is None


def test_a_client_of_the_users_own_runs_no_tracker(broker: InMemoryBroker) -> None:
    """Asked for, it is refused; not asked for, there is none."""
    with pytest.raises(ConfigurationError, match="tracker=True: cannot run with a client"):
        consumer(broker, tracker=True)
    assert consumer(broker).tracker is None
    assert KmqConsumer("q", group_id="g").tracker is not None
    producing = Producing(client_options={"max_request_size": 5_000_000})  # records that large are to be sent again
    beside = KmqConsumer("q", group_id="g", producing=producing).tracker
    assert beside is not None
    assert beside._markers.options.producing is producing
    assert KmqConsumer("q", group_id="g", tracker=False).tracker is None


async def test_a_tracker_runs_with_its_consumer(broker: InMemoryBroker) -> None:
    """It redelivers what the consumer has released, through the drain, and is closed with the consumer."""
    one, beside = consumer(broker), tracker(broker)
    one._leasing.tracker = beside
    handler = Handler(lambda record: asyncio.sleep(0.3) if record.value == b"slow" else None)
    async with running(one, handler):
        await until(lambda: beside.health().ready)
        produce(broker, [b"slow"])
        await until(lambda: handler.seen[b"slow"] == 1)
        assert one.health().healthy
    assert handler.ended == {b"slow": 1}
    assert not open_markers(broker)
    assert not beside.health().running
    assert not broker.group("trackers").members


async def test_a_tracker_that_fails_ends_the_run(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nothing would be redelivered, and nobody would know."""
    one, beside = consumer(broker), tracker(broker)
    one._leasing.tracker = beside

    async def failing() -> None:
        raise ValueError("no tracker")

    monkeypatch.setattr(beside, "run", failing)
    with pytest.raises(ValueError, match="no tracker"):
        async with one:
            await one.run(Handler())
    assert not broker.group("trackers").members


async def test_a_partition_that_goes_takes_nothing_more(broker: InMemoryBroker) -> None:
    """While the markers of what was read are waited for: what is read then is its next owner's, and would be waited for
    as well."""
    one = consumer(broker, lease=30)
    async with running(one, Handler()):
        broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
        produce(broker, [b"a"])
        await until(lambda: one._engine is not None and not one._leasing.is_idle)
        assignments = list(run_of(one)._rebalancer.assignments.values())
        settling = asyncio.create_task(one._leasing.settle(assignments, 1, 0))
        await asyncio.sleep(0.01)
        assert not settling.done()
        assert all(assignment.stopped for assignment in assignments)
        broker.faults.heal()
        await settling


@pytest.mark.parametrize("lease", [0, -1, 0.0005, float("nan"), float("inf"), "30"])
def test_leases_that_are_none(broker: InMemoryBroker, lease: Any) -> None:
    """Markers count milliseconds: what is less than one would be delivered again for ever."""
    with pytest.raises(ConfigurationError, match="lease"):
        consumer(broker, lease=lease)
