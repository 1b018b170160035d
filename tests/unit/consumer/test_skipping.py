"""``skip()`` of single records, wherever they are, together with everything that may happen meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel import (
    Batch,
    ConfigurationError,
    ConsumerStateError,
    Extension,
    FailurePolicy,
    NotCommitted,
    NotSkipped,
    Ordering,
    Outgoing,
    ParallelConsumer,
    Record,
    RetryPolicy,
    Skipped,
    Transactions,
    batches,
)
from aioparallel.group import skipping
from aioparallel.offsets import decode_offset_map
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from aioparallel.testing.memory.faults import Fault, Request
from tests.support.inside import run_of
from tests.support.memory.consuming import GROUP, T0, committed, consumer_of, produce
from tests.support.memory.keeping_state import broker_of, keeping, sums
from tests.support.transactions.consuming import broker_of as transactions_broker
from tests.support.transactions.consuming import consumer_of as transactional
from tests.support.waiting import until

LATER = FailurePolicy(retry=RetryPolicy(first_delay=30, max_delay=30))


class Handler:
    """Holds the handlers of some offsets until they are let go, and lets those of others fail."""

    def __init__(self, held: Collection[int] = (), failing: Collection[int] = ()) -> None:
        self.held = set(held)
        self.failing = set(failing)
        self.started: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.on_cancel: Callable[[], object] = lambda: None
        self.swallows = False
        self.go = asyncio.Event()

    async def __call__(self, record: Record) -> Any:
        self.started.append(record.offset)
        if record.offset in self.failing:
            raise ValueError(record.offset)
        try:
            if record.offset in self.held:
                await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(record.offset)
            if not self.swallows:
                raise
            self.on_cancel()
            return None
        self.ended.append(record.offset)
        return None


@asynccontextmanager
async def running(consumer: ParallelConsumer[Any, Any], handler: Any) -> AsyncIterator[None]:
    """Runs it for the length of the block."""
    async with asyncio.timeout(3_000), consumer:
        task = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.health().ready or task.done())
        yield
        consumer.stop()
        await task


def complete(broker: InMemoryBroker, partition: Any = T0) -> Callable[[int], bool]:
    """What the group's commit has as complete."""
    position = broker.group(GROUP).offsets[partition]
    return decode_offset_map(position.offset, position.metadata).is_complete


async def test_a_record_that_waits_behind_others_is_skipped(broker: InMemoryBroker) -> None:
    """The head of a lane, one in its middle and its last one: the others of the key run, in order."""
    produce(broker, [b"a"] * 6)
    handler = Handler(held=[0])
    consumer = consumer_of(broker)
    async with running(consumer, handler):
        await until(lambda: handler.started == [0] and consumer.stats().buffered == 5)
        assert await consumer.skip(T0, 5, 2, 1) == [Skipped(offset, "buffered", True) for offset in (1, 2, 5)]
        stats = consumer.stats()
        assert (stats.skipped, stats.buffered, stats.in_flight) == (3, 2, 1)
        assert stats.admitted == stats.buffered + stats.in_flight + stats.ended
        assert [complete(broker)(offset) for offset in range(6)] == [False, True, True, False, False, True]
        handler.go.set()
        await until(lambda: committed(broker) == 6)
    assert handler.ended == [0, 3, 4]


@pytest.mark.parametrize("ordering", [Ordering.UNORDERED, Ordering.KEY, Ordering.PARTITION])
async def test_records_that_may_start_are_skipped_while_the_consumer_is_paused(
    broker: InMemoryBroker, ordering: Ordering
) -> None:
    """Heads of lanes and records without an order."""
    produce(broker, [b"a", b"b", b"a", b"b", None, None])
    handler = Handler()
    async with running(consumer := consumer_of(broker, ordering=ordering, max_concurrency=1), handler):
        handler.held = {0}
        handler.started.clear()
        # Only one handler at a time: the rest is ready.
        await until(lambda: consumer.stats().ended == 6 or 0 in handler.started)
    broker.create_topic("u", 1)
    produce(broker, [b"a", b"b", b"a", b"b", None, None], topic="u")
    handler = Handler(held=[0])
    place = T0._replace(topic="u")
    async with running(consumer := consumer_of(broker, "u", ordering=ordering, max_concurrency=1), handler):
        await until(lambda: handler.started == [0] and consumer.stats().buffered == 5)
        assert [one.was for one in await consumer.skip(place, 1, 4)] == ["buffered"] * 2
        handler.go.set()
        await until(lambda: committed(broker, place) == 6)
    assert sorted(handler.ended) == [0, 2, 3, 5]


async def test_a_handler_that_runs_is_cancelled(broker: InMemoryBroker) -> None:
    """Its record is skipped, and the next one of its key starts."""
    produce(broker, [b"a"] * 2)
    handler = Handler(held=[0])
    consumer = consumer_of(broker)
    async with running(consumer, handler):
        await until(lambda: handler.started == [0])
        assert await consumer.skip(T0, 0) == [Skipped(0, "in flight", True)]
        assert handler.cancelled == [0]
        assert committed(broker) in (1, 2)
        await until(lambda: committed(broker) == 2)
        assert consumer.stats().skipped == 1
        assert consumer.stats().failed_attempts == 0
    assert handler.ended == [1]


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    while task.cancelling():
        task.uncancel()


def _fails() -> None:
    raise ValueError


@pytest.mark.parametrize("isolation", ["context", "task"])
@pytest.mark.parametrize("then", [lambda: None, _uncancel, _fails])
async def test_whatever_a_cancelled_handler_does_its_record_is_skipped(
    broker: InMemoryBroker, isolation: Any, then: Callable[[], object]
) -> None:
    """It returns, takes the cancellation back, or raises another error."""
    produce(broker, [b"a"] * 2)
    handler = Handler(held=[0])
    handler.swallows, handler.on_cancel = True, then
    consumer = consumer_of(broker, isolation=isolation)
    async with running(consumer, handler):
        await until(lambda: handler.started == [0])
        assert await consumer.skip(T0, 0) == [Skipped(0, "in flight", True)]
        await until(lambda: committed(broker) == 2)
        assert consumer.stats().skipped == 1
    assert handler.started == [0, 1]


async def test_a_handler_that_does_not_end_keeps_its_key(broker: InMemoryBroker) -> None:
    """The error says so after drain_timeout; the record is skipped when its handler ends at last."""
    produce(broker, [b"a", b"a", b"b"])
    started, go = list[int](), asyncio.Event()

    async def handle(record: Record) -> None:
        started.append(record.offset)
        while record.offset == 0 and not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: consumer.stats().ended == 1)
        with pytest.raises(NotSkipped, match=r"t-0: offset 0: its handler still runs 1 s \(drain_timeout\) after"):
            await consumer.skip(T0, 0)
        assert started == [0, 2]
        assert committed(broker) == 0
        go.set()
        await until(lambda: committed(broker) == 2 + 1)
        assert consumer.stats().skipped == 1
    assert started == [0, 2, 1]


async def test_a_record_that_waits_for_its_retry_is_skipped(broker: InMemoryBroker) -> None:
    """Its timer finds nothing, and its key goes on."""
    produce(broker, [b"a", b"a", b"b"])
    handler = Handler(failing=[0])
    async with running(consumer := consumer_of(broker, failures=LATER), handler):
        await until(lambda: consumer.stats().parked == 1 and consumer.stats().ended == 1)
        assert await consumer.skip(T0, 0) == [Skipped(0, "parked", True)]
        await until(lambda: committed(broker) == 3)
        await asyncio.sleep(100)
        assert consumer.stats().skipped == 1
        assert handler.started.count(0) == 1
    assert handler.ended == [2, 1] or sorted(handler.ended) == [1, 2]


async def test_a_record_that_is_not_fetched_yet_is_left_out_when_it_comes(broker: InMemoryBroker) -> None:
    """The offset map has it at once."""
    produce(broker, [b"%d" % n for n in range(200)])
    handler = Handler(held=range(200))
    consumer = consumer_of(broker, max_concurrency=2, max_buffered=20)
    async with running(consumer, handler):
        await until(lambda: consumer.stats().buffered >= 15)
        assert await consumer.skip(T0, 150, 160) == [Skipped(150, "not read", True), Skipped(160, "not read", True)]
        assert [complete(broker)(offset) for offset in (149, 150, 151, 160, 161)] == [False, True, False, True, False]
        handler.go.set()
        await until(lambda: committed(broker) == 200)
        assert consumer.stats().succeeded == 198
    assert sorted(handler.ended) == [n for n in range(200) if n not in (150, 160)]


async def test_what_is_done_already_stays_as_it_is(broker: InMemoryBroker) -> None:
    """Complete above the committed offset, and below it."""
    produce(broker, [b"a", b"b", b"c"])
    handler = Handler(held=[1])
    async with running(consumer := consumer_of(broker), handler):
        await until(lambda: consumer.stats().ended == 2)
        assert await consumer.skip(T0, 0, 2) == [Skipped(0, "complete", False), Skipped(2, "complete", False)]
        assert consumer.stats().skipped == 0
        handler.go.set()


async def test_a_dry_run_changes_nothing(broker: InMemoryBroker) -> None:
    """It says where each record is."""
    produce(broker, [b"a", b"a", b"b", b"c"])
    handler = Handler(held=[0], failing=[2])
    async with running(consumer := consumer_of(broker, failures=LATER), handler):
        await until(lambda: consumer.stats().parked == 1 and consumer.stats().ended == 1)
        before = broker.group(GROUP).offsets[T0]
        assert await consumer.skip(T0, 0, 1, 2, 3, dry_run=True) == [
            Skipped(0, "in flight", True),
            Skipped(1, "buffered", True),
            Skipped(2, "parked", True),
            Skipped(3, "complete", False),
        ]
        assert consumer.stats().skipped == 0
        assert broker.group(GROUP).offsets[T0] == before
        handler.go.set()


async def test_outputs_that_are_sent_are_waited_for(broker: InMemoryBroker) -> None:
    """Then the record has succeeded. If they are not acknowledged in time the error says so; nothing is skipped."""
    broker.create_topic("out", 1)
    produce(broker, [b"a", b"b"])
    broker.faults.latency(Request.PRODUCE, 0.3, 0.3)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", b"x")

    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: consumer.stats().producing == 2)
        assert await consumer.skip(T0, 0) == [Skipped(0, "producing", False)]
        assert consumer.stats().skipped == 0
    broker.faults.heal()
    broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
    produce(broker, [b"a"])
    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: consumer.stats().producing == 1)
        with pytest.raises(NotSkipped, match="its outputs or its dead letter were not acknowledged within 1 s"):
            await consumer.skip(T0, 2)
        broker.faults.heal()
        await until(lambda: committed(broker) == 3)
        assert consumer.stats().skipped == 0


async def test_a_record_that_waits_to_be_a_dead_letter_is_skipped_if_that_fails(broker: InMemoryBroker) -> None:
    """Its outputs are refused: it is skipped, and not tried again."""
    broker.create_topic("out", 1)
    produce(broker, [b"a"])
    broker.faults.latency(Request.PRODUCE, 0.3, 0.3)
    broker.faults.script(Request.PRODUCE, Fault(error=ErrorCode.MESSAGE_TOO_LARGE, response_delay=0.3))

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", b"x")

    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: consumer.stats().producing == 1)
        assert await consumer.skip(T0, 0) == [Skipped(0, "producing", True)]
        assert consumer.stats().skipped == 1


async def test_outputs_of_a_transaction_cannot_be_taken_back() -> None:
    """The record is complete, and its outputs wait for the commit: it is refused. A handler that runs is skipped."""
    broker, place = transactions_broker(), T0._replace(topic="in")
    produce(broker, [b"a", b"b"], topic="in")
    go = asyncio.Event()

    async def handle(record: Record) -> Outgoing:
        if record.offset == 1:
            await go.wait()
        return Outgoing("out", record.value, record.key)

    consumer = transactional(broker, commits=Transactions(interval=5), drain_timeout=1)
    async with running(consumer, handle):
        await until(lambda: consumer.stats().succeeded == 1)
        with pytest.raises(NotSkipped, match="in-0: offset 0: its handler has ended, and its outputs are part of"):
            await consumer.skip(place, 0, 1)
        assert await consumer.skip(place, 1) == [Skipped(1, "in flight", True)]
        assert committed(broker, place) == 2
        assert await consumer.skip(place, 0) == [Skipped(0, "complete", False)]
    assert len(broker.records("out")) == 1


@pytest.mark.parametrize(
    ("partition", "offset", "reason"),
    [
        (T0._replace(partition=7), 0, "t-7: offset 0: this consumer does not have the partition"),
        (T0, 3, "t-0: offset 3: the log ends at 3"),
        (T0, 10**9, "t-0: offset 1000000000: the log ends at 3"),
    ],
)
async def test_what_is_refused(broker: InMemoryBroker, partition: Any, offset: int, reason: str) -> None:
    """With the reason, and nothing is changed."""
    produce(broker, [b"a", b"b", b"c"])
    handler = Handler(held=[0])
    async with running(consumer := consumer_of(broker), handler):
        await until(lambda: consumer.stats().ended == 2)
        with pytest.raises(NotSkipped, match=reason):
            await consumer.skip(partition, 0, offset)
        assert handler.cancelled == []
        assert consumer.stats().skipped == 0
        handler.go.set()


async def test_an_offset_map_that_could_not_hold_it_refuses_it(broker: InMemoryBroker) -> None:
    """After a crash the record would run."""
    produce(broker, [b"%d" % n for n in range(3_000)])
    handler = Handler(held=range(3_000))
    async with running(consumer := consumer_of(broker, max_buffered=20, max_concurrency=1), handler):
        await until(lambda: handler.started == [0])
        run_of(consumer)._committer.limit.characters = 8
        with pytest.raises(NotSkipped, match="the offset map would not fit into the commit's metadata"):
            await consumer.skip(T0, 1_001, 1_003, 1_006, 1_100, 1_103, 1_105, 1_111, 1_234, 1_236)
        assert await consumer.skip(T0, 0) == [Skipped(0, "in flight", True)]
        handler.go.set()


async def test_too_many_unread_offsets_before_it_refuse_it(broker: InMemoryBroker, monkeypatch: Any) -> None:
    """Each commit would list them until they are read, also if they are skipped in several calls."""
    monkeypatch.setattr(skipping, "_MOST_UNREAD", 50)
    produce(broker, [b"%d" % n for n in range(300)])
    handler = Handler(held=range(300))
    async with running(consumer := consumer_of(broker, max_buffered=20, max_concurrency=1), handler):
        await until(lambda: handler.started == [0] and consumer.stats().buffered > 15)
        position = run_of(consumer)._rebalancer.assignments[T0].ledger.position
        with pytest.raises(NotSkipped, match="51 offsets before it are not read yet, and at most 50 may be"):
            await consumer.skip(T0, 0, position + 51)
        assert handler.cancelled == []
        await consumer.skip(T0, *range(position + 50, position + 100))
        with pytest.raises(NotSkipped, match=f"{position + 101}: 51 offsets before it are not read yet"):
            await consumer.skip(T0, position + 101)
        assert (await consumer.skip(T0, 0, position + 49))[0].is_skipped
        handler.go.set()
        await until(lambda: committed(broker) == 300)


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
async def test_an_unread_record_of_an_aborted_transaction(broker: InMemoryBroker, isolation_level: Any) -> None:
    """A consumer that reads what is not committed would run it, so it is skipped; for the others there is no record."""
    produce(broker, [b"%d" % n for n in range(30)])
    transaction = broker.begin_transaction()
    broker.append("t", b"aborted", key=b"x", partition=0, transaction=transaction)
    broker.end_transaction(transaction, commit=False)
    produce(broker, [b"last"])
    is_read = isolation_level == "read_uncommitted"
    handler = Handler(held=[0])
    consumer = consumer_of(broker, isolation_level=isolation_level, max_buffered=10, max_concurrency=1)
    async with running(consumer, handler):
        await until(lambda: handler.started == [0])
        assert await consumer.skip(T0, 30) == [Skipped(30, "not read" if is_read else "no record", is_read)]
        handler.go.set()
        await until(lambda: committed(broker) == 33)
    assert sorted(handler.ended) == [*range(30), 32]


async def test_a_wide_gap_of_the_log_is_crossed_in_few_reads(broker: InMemoryBroker, monkeypatch: Any) -> None:
    """Of a compacted topic; each read is a request and more. The last record below the gap is found."""
    produce(broker, [b"%d" % n for n in range(5_000)])
    broker.compact(T0, [n for n in range(1_000, 4_990) if n != 2_500])
    read, reads = InMemoryClient.read, list[Any]()

    def counted(client: InMemoryClient, spans: Any, **how: Any) -> Any:
        reads.append(spans)
        return read(client, spans, **how)

    monkeypatch.setattr(InMemoryClient, "read", counted)
    handler = Handler(held=[0])
    async with running(consumer := consumer_of(broker, max_buffered=20, max_concurrency=1), handler):
        await until(lambda: handler.started == [0])
        found = await consumer.skip(T0, *range(900, 4_990))
        assert len(reads) < 15
        assert [one.offset for one in found if one.was == "no record"] == list(range(2_501, 4_990))
        assert all(one.is_skipped for one in found if one.offset <= 2_500)
        handler.go.set()
        await until(lambda: committed(broker) == 5_000)
    assert sorted(handler.ended) == [*range(900), *range(4_990, 5_000)]


async def test_wrong_use_is_named(broker: InMemoryBroker) -> None:
    """Before the run, and an offset that is none."""
    produce(broker, [b"a"])
    consumer = consumer_of(broker)
    with pytest.raises(ConsumerStateError, match="does not run"):
        await consumer.skip(T0, 0)
    async with running(consumer, Handler()):
        with pytest.raises(ConfigurationError, match="skip offset=-1: must be a whole number"):
            await consumer.skip(T0, -1)
    with pytest.raises(NotSkipped, match="does not have the partition"):
        await consumer.skip(T0, 0)


# -- batches


async def test_a_batch_that_is_not_full_goes_on_without_the_record(broker: InMemoryBroker) -> None:
    """Its first one, and one behind another in its lane."""
    produce(broker, [b"a", b"a", b"a", b"b"])
    seen: list[list[int]] = []

    @batches(size=10, linger=5)
    async def handle(batch: Batch[Record]) -> None:
        seen.append([record.offset for record in batch])

    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: consumer.stats().buffered == 4)
        await asyncio.sleep(1)
        assert [one.was for one in await consumer.skip(T0, 0, 2)] == ["buffered"] * 2
        await until(lambda: committed(broker) == 4)
    assert sorted(seen[0]) == [1, 3]


async def test_a_batch_that_runs_is_waited_for(broker: InMemoryBroker) -> None:
    """If it succeeds, so does the record. If it fails, the record is skipped, and the others run again."""
    produce(broker, [b"a", b"b", b"b", b"c"])
    seen: list[list[int]] = []
    go, fails = asyncio.Event(), True

    @batches(size=10, linger=0.1)
    async def handle(batch: Batch[Record]) -> None:
        nonlocal fails
        seen.append([record.offset for record in batch])
        await go.wait()
        if fails:
            fails = False
            raise ValueError

    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: bool(seen))
        skips = asyncio.create_task(consumer.skip(T0, 1, 2))
        await asyncio.sleep(0.5)
        assert not skips.done()
        go.set()
        assert await skips == [Skipped(1, "in flight", True), Skipped(2, "in flight", True)]
        await until(lambda: committed(broker) == 4)
        assert consumer.stats().skipped == 2
    assert sorted(offset for batch in seen[1:] for offset in batch) == [0, 3]


async def test_a_batch_that_does_not_end_in_time_keeps_its_record(broker: InMemoryBroker) -> None:
    """The error says so, and the record is handled by its batch, not skipped later."""
    produce(broker, [b"a", b"b"])
    go, calls = asyncio.Event(), 0

    @batches(size=2)
    async def handle(batch: Batch[Record]) -> None:
        nonlocal calls
        calls += 1
        await go.wait()
        if calls == 1:
            raise ValueError

    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: calls == 1)
        with pytest.raises(NotSkipped, match="or that of its batch, has not ended within 1 s"):
            await consumer.skip(T0, 1)
        go.set()
        await until(lambda: committed(broker) == 2)
        assert consumer.stats().skipped == 0


# -- what happens meanwhile


async def test_a_stop_meanwhile_ends_it_with_an_error_or_a_result(broker: InMemoryBroker) -> None:
    """At each of its waits: it ends, and what it says is what is committed."""
    for moment in range(12):
        broker = InMemoryBroker()
        broker.create_topic("t", 1)
        produce(broker, [b"a", b"a", b"b"])
        handler = Handler(held=[0])
        handler.swallows = bool(moment % 2)
        consumer = consumer_of(broker)
        async with asyncio.timeout(300), consumer:
            task = asyncio.create_task(consumer.run(handler))
            await until(lambda h=handler: h.started[:1] == [0])  # type: ignore[misc]
            skip = asyncio.create_task(consumer.skip(T0, 0))
            for _ in range(moment):
                await asyncio.sleep(0)
            consumer.stop()
            handler.go.set() if moment % 3 == 0 else None
            try:
                found = await skip
            except NotSkipped:
                found = []
            await task
            if found:
                assert complete(broker)(0)


async def test_many_records_that_run_are_looked_for_together(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Each look walks all workers once: with a walk for each record, 4,000 of them blocked the event loop until the
    session was over."""
    produce(broker, [None] * 50)
    handler = Handler(held=range(50))
    async with running(consumer := consumer_of(broker, max_concurrency=50), handler):
        await until(lambda: consumer.stats().in_flight == 50)
        pool = run_of(consumer)._processor.pool
        walks, skip = 0, pool.skip

        def counted(records: Collection[Record]) -> None:
            nonlocal walks
            walks += 1
            skip(records)

        pool.skip = counted  # type: ignore[method-assign]
        found = await consumer.skip(T0, *range(50))
        assert {(one.was, one.is_skipped) for one in found} == {("in flight", True)}
        assert walks < 5
        (line,) = [one for one in caplog.records if getattr(one, "action", "") == "skip_requested"]
        assert line.getMessage().endswith("18, 19 and 30 more")
        assert sorted(handler.cancelled) == list(range(50))


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_partition_that_goes_meanwhile_raises_or_is_committed(swallows: bool) -> None:
    """Lost or revoked, at each of its waits."""
    for moment in range(16):
        broker = InMemoryBroker()
        broker.create_topic("t", 1)
        produce(broker, [b"a", b"b", b"c"])
        handler = Handler(held=[0])
        handler.swallows = swallows
        async with running(consumer := consumer_of(broker), handler):
            await until(lambda h=handler: sorted(h.started) == [0, 1, 2])  # type: ignore[misc]
            skip = asyncio.create_task(consumer.skip(T0, 0))
            for _ in range(moment // 2):
                await asyncio.sleep(0)
            if moment % 2:
                run_of(consumer).lost([T0])
            else:
                await run_of(consumer).revoked([T0])
            try:
                await skip
            except NotSkipped as error:
                found = error.reason
            else:
                assert complete(broker)(0)
                found = "revoked"
            assert "revoked" in found or "given away" in found or "not have" in found


async def test_a_commit_that_is_not_acknowledged_is_an_error(broker: InMemoryBroker) -> None:
    """The record is skipped here, and the next commit has it."""
    produce(broker, [b"a", b"b"])
    handler = Handler(held=[0])
    async with running(consumer := consumer_of(broker, commit_timeout=0.1), handler):
        await until(lambda: consumer.stats().ended == 1)
        broker.faults.always(Request.COMMIT, Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        with pytest.raises(NotCommitted):
            await consumer.skip(T0, 0)
        assert consumer.stats().skipped == 1
        broker.faults.heal()
        await until(lambda: committed(broker) == 2)


async def test_a_broker_that_does_not_answer_refuses_what_is_not_read(broker: InMemoryBroker) -> None:
    """Nobody knows whether the record exists."""
    produce(broker, [b"%d" % n for n in range(100)])
    handler = Handler(held=range(100))
    async with running(consumer := consumer_of(broker, max_buffered=10, max_concurrency=2), handler):
        await until(lambda: consumer.stats().buffered > 5)
        broker.faults.always(Request.LIST_OFFSETS, Fault(is_request_lost=True))
        with pytest.raises(NotSkipped, match="t-0: offset 99: no broker has answered whether these records exist"):
            await consumer.skip(T0, 99)
        broker.faults.heal()
        handler.go.set()


async def test_a_cancelled_skip_leaves_nothing_half_done(broker: InMemoryBroker) -> None:
    """After each number of turns: the record is skipped or runs on, and the key goes on."""
    for moment in range(12):
        broker = InMemoryBroker()
        broker.create_topic("t", 1)
        produce(broker, [b"a", b"a"])
        handler = Handler(held=[0])
        async with running(consumer := consumer_of(broker), handler):
            await until(lambda h=handler: h.started == [0])  # type: ignore[misc]
            skip = asyncio.create_task(consumer.skip(T0, 0))
            for _ in range(moment):
                await asyncio.sleep(0)
            skip.cancel()
            await asyncio.wait([skip])
            handler.go.set()
            await until(lambda b=broker: committed(b) == 2)  # type: ignore[misc]
            stats = consumer.stats()
            assert stats.skipped + stats.succeeded == 2
            assert stats.skipped == len(handler.cancelled)


async def test_a_handler_may_skip_its_own_record_and_others(broker: InMemoryBroker) -> None:
    """It is cancelled at its next wait; the others do not run."""
    produce(broker, [b"a", b"a", b"b", b"b"])
    started: list[int] = []

    async def handle(record: Record) -> None:
        started.append(record.offset)
        if record.offset == 0:
            await consumer.skip(T0, 0, 1, 3)

    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: committed(broker) == 4)
        assert consumer.stats().skipped == 3
    assert sorted(started) == [0, 2]


async def test_a_deferred_record_is_skipped(broker: InMemoryBroker) -> None:
    """Its handler has returned; what it waits for does not count any more."""
    produce(broker, [b"a", b"a"])

    async def handle(record: Record) -> None:
        if record.offset == 0:
            record.defer(3_000)

    async with running(consumer := consumer_of(broker), handle):
        await until(lambda: consumer.stats().in_flight == 1)
        assert await consumer.skip(T0, 0) == [Skipped(0, "in flight", True)]
        await until(lambda: committed(broker) == 2)


async def test_the_end_is_reached_by_a_skip(broker: InMemoryBroker) -> None:
    """``until="end"`` waits for nothing else."""
    produce(broker, [b"a", b"b"])
    handler = Handler(failing=[0])
    consumer = consumer_of(broker, failures=LATER, until="end")
    async with asyncio.timeout(100), consumer:
        task = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.stats().parked == 1)
        await consumer.skip(T0, 0)
        await task
    assert committed(broker) == 2


async def test_a_skipped_record_is_no_part_of_the_state(broker: InMemoryBroker) -> None:
    """Neither one that ran nor one that was not read, here and at the next owner."""
    broker, place = broker_of(), T0._replace(topic="in")
    for _ in range(40):
        broker.append("in", b"1", key=b"k")
    handler = Handler(held=[0])
    consumer = keeping(broker, sums(), max_buffered=10)
    async with running(consumer, handler):
        await until(lambda: handler.started == [0])
        assert [one.was for one in await consumer.skip(place, 0, 35)] == ["in flight", "not read"]
        await until(lambda: committed(broker, place) == 40)
        assert consumer.states(place) == {b"k": 38}
    async with running(consumer := keeping(broker, sums()), Handler()):
        assert consumer.states(place) == {b"k": 38}


async def test_extensions_hear_of_it(broker: InMemoryBroker) -> None:
    """The signals that metrics and traces use."""

    class Listens(Extension):
        def __init__(self) -> None:
            self.ended: list[tuple[list[int], str]] = []
            self.failed: list[tuple[int, str]] = []

        def records_ended(self, records: Sequence[Record[Any, Any]], outcome: str) -> None:
            self.ended.append(([record.offset for record in records], outcome))

        def attempt_failed(
            self, record: Record[Any, Any], error: BaseException, follows: str, delay: float | None
        ) -> None:
            self.failed.append((record.offset, follows))

    produce(broker, [b"a", b"a"])
    listens = Listens()
    handler = Handler(held=[0])
    async with running(consumer := consumer_of(broker, extensions=[listens]), handler):
        await until(lambda: handler.started == [0])
        await consumer.skip(T0, 0, 1)
    assert listens.failed == [(0, "skipped")]
    assert sorted(listens.ended) == [([0], "skipped"), ([1], "skipped")]


async def test_a_queue_skips_nothing(broker: InMemoryBroker) -> None:
    """Its offsets are complete before its records run."""
    broker.create_topic("t__markers", 1)
    broker.create_topic("t__undelivered", 1)
    produce(broker, [b"a"])
    client = InMemoryClient(broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
    consumer = KmqConsumer(
        "t", group_id=GROUP, client=client, producer=InMemoryProducer(broker), marker_topic="t__markers"
    )
    async with running(consumer, Handler(held=[0])):
        with pytest.raises(NotSkipped, match="this is a queue"):
            await consumer.skip(T0, 0)
