"""A state where something goes wrong: brokers that hang, owners that write late, outputs that wait, logs that end
early, functions of the user's that raise."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel import FailurePolicy, Outgoing, ParallelConsumer, Producing, Record, RetryPolicy, State, StateFailed
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Generation
from aioparallel.observe.health import ProblemKind
from aioparallel.persistence.state.increments import Increment, Place, encode_increment, encode_place
from aioparallel.persistence.state.restoring import Restoring
from aioparallel.persistence.state.table import Table
from aioparallel.persistence.state.topics import StateTopics, TopicNames
from aioparallel.persistence.state.unapplied import Unapplied, write_unapplied
from aioparallel.persistence.state.view import Restored, StateView
from aioparallel.persistence.state.writing import Unwanted, write_snapshot
from aioparallel.persistence.transactions import builder
from aioparallel.records.errors import ConfigurationError, PositionOutsideLog, UnreadableBatch
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryProducer, Request
from tests.support.memory.keeping_state import GROUP, P0, broker_of, keeping, sums, totals, write
from tests.support.memory.logs import Logs
from tests.support.waiting import until
from tests.unit.persistence.state.test_model import OPTIONS

both = pytest.mark.parametrize("together", [False, True], ids=["at least once", "transactions"])
both_slowly = pytest.mark.parametrize(
    "together", [pytest.param(False, id="at least once"), pytest.param(True, id="transactions", marks=pytest.mark.slow)]
)
P1 = TopicPartition("in", 1)


async def nothing(record: Record) -> None:
    """Handles it."""


@asynccontextmanager
async def running(consumer: ParallelConsumer[Any, Any], handler: Any = nothing) -> AsyncIterator[asyncio.Task[None]]:
    """While it runs, and all that it holds is open."""
    async with asyncio.timeout(600), consumer:
        task = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.health().joined or task.done())
        yield task
        consumer.stop()
        await task


def committed(broker: InMemoryBroker, partition: TopicPartition = P0) -> int:
    """The group's offset; -1: none."""
    found = broker.group(GROUP).offsets.get(partition)
    return -1 if found is None else found.offset


async def test_what_is_behind_an_output_that_waits_is_not_committed_before_it() -> None:
    """The second record of a key has no output. Committed without the first, it would be in the state before it."""
    broker = broker_of()

    def apply(seen: tuple[bytes, ...], record: Record[Any, Any]) -> tuple[bytes, ...]:
        return (*seen, record.value)

    state = State[tuple[bytes, ...]](
        initial=(), apply=apply, dump=b",".join, load=lambda data: tuple(data.split(b",")) if data else ()
    )

    async def handle(record: Record) -> Outgoing | None:
        if record.value == b"first":
            await asyncio.sleep(0)
        return None if record.value == b"second" else Outgoing("out", bytes(900), record.key)

    def make() -> ParallelConsumer[Any, Any]:
        return keeping(broker, state, together=True, producing=Producing(max_unacknowledged_bytes=1_200))

    for key, value in ((b"k", b"first"), (b"k", b"second"), (b"z", b"other")):
        broker.append("in", value, key=key, partition=0)
    first = make()
    async with first:
        task = asyncio.create_task(first.run(handle))
        while P0 not in broker.group(GROUP).offsets or not broker.group(GROUP).offsets[P0].metadata:
            await asyncio.sleep(0.0005)
        broker.go_down()
        task.cancel()
        await asyncio.wait([task])
    broker.come_back()
    now = asyncio.get_running_loop().time
    for member in sorted(broker.group(GROUP).members):
        broker.expire_session(GROUP, member, now())
    await asyncio.sleep(20)
    broker.advance(now())
    consumer = make()
    async with running(consumer, handle):
        await until(lambda: committed(broker) == 3)
        assert consumer.states(P0) == {b"k": (b"first", b"second"), b"z": (b"other",)}


async def test_what_is_complete_and_not_committed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction is aborted, and handlers let nothing leave, which would wait: so nothing more starts."""
    monkeypatch.setattr(builder, "_MANY_LANES", 50)
    broker = broker_of()
    consumer = keeping(broker, sums(), together=True, max_buffered=1_000)
    async with running(consumer):
        write(broker, 1)
        await until(lambda: committed(broker) == 1)
        broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        for n in range(2, 400):
            write(broker, n)
            await asyncio.sleep(0.02)
        assert consumer.stats().succeeded < 200
        broker.faults.heal()
        await until(lambda: committed(broker) == 399)
        assert consumer.states(P0) == totals(*range(1, 400))


async def test_an_acknowledged_position_settles_no_doubt() -> None:
    """A transaction brings a full snapshot's name for one partition, whose position stands there already, and an output
    of another one; it is not known what became of it. Nothing came: the output is written again."""
    broker = broker_of(2)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", record.value, record.key)

    write(broker, 1, partition=0)
    write(broker, 2, partition=1)
    consumer = keeping(broker, sums(), together=True)
    async with running(consumer, handle):
        await until(lambda: (committed(broker, P0), committed(broker, P1)) == (1, 1))
        await asyncio.sleep(1)
        assert consumer._keyed_state is not None
        consumer._keyed_state._views[P0]._saved = ("another",)
        broker.faults.script(Request.END_TXN, Fault(error=ErrorCode.INVALID_TXN_STATE))
        write(broker, 3, partition=1)
        await until(lambda: committed(broker, P1) == 2)
    assert sorted(record.value or b"" for record in broker.records("out")) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("base", [2, 10], ids=["of its position", "of the one that is committed"])
@pytest.mark.parametrize("successor", [2, 5, 32], ids="generation {}".format)
@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
async def test_an_increment_that_a_former_owner_writes_late_is_passed_over(
    is_compacted: bool, successor: int, base: int
) -> None:
    """What its successor has put away stays out of the state; no cleaner takes that away for it, however soon."""
    logs = Logs()
    for n in range(10):
        logs.append(Outgoing("in", b"%d" % (n % 7), b"k%d" % (n % 2)))

    def wrote(of: int, unapplied: list[int], generation: int) -> None:
        increment = Increment(Committed(of, ""), generation, 0, 0, write_unapplied(unapplied), [])
        key = encode_place(Place("g", P0, 0), generation)
        logs.append(Outgoing("inc", encode_increment(increment), key))

    wrote(2, [], 1)
    wrote(10, [3, 4], successor)
    wrote(base, [], 1)
    if is_compacted:
        logs.compact(TopicPartition("inc", 0))
    topics = StateTopics(TopicNames("inc", "full"), "g", logs.client)
    found = (await topics.last_increments({P0: Committed(10, "")}, 1, 1))[P0]
    assert isinstance(found, Increment)
    restored = await Restoring(P0, Committed(10, ""), topics, OPTIONS).run(found)
    assert sorted(restored.unapplied) == [3, 4]
    assert dict(restored.table.items()) == {b"k0": (0, 2, 6, 8), b"k1": (1, 5, 7, 9)}


@both_slowly
async def test_what_another_group_has_open_in_a_shared_topic_is_waited_for(together: bool) -> None:
    """Its transaction stands before the increment of the position, which says what was put away; nobody guesses. The
    other partition does not wait."""
    broker = broker_of(2)

    async def put_away(record: Record, error: Exception) -> None:
        """A dead letter."""

    async def handle(record: Record) -> None:
        if record.value == b"3":
            raise ValueError

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    for partition in range(2):
        write(broker, *range(10), partition=partition)
    others = broker.begin_transaction()
    broker.append(f"{GROUP}-state", b"of another group", key=b"k", partition=0, transaction=others)
    async with running(keeping(broker, sums(), together=together, failures=policy), handle):
        await until(lambda: (committed(broker, P0), committed(broker, P1)) == (10, 10))
    for partition in range(2):
        write(broker, 10, partition=partition)
    consumer = keeping(broker, sums(), together=together, failures=policy)
    async with consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker, P1) == 11, 5)
        await asyncio.sleep(300)
        assert committed(broker, P0) == 10
        (told,) = [one.message for one in consumer.health().problems if one.kind is ProblemKind.STATE_WAITS]
        assert "a transaction is open" in told
        broker.end_transaction(others, commit=False)
        await until(lambda: committed(broker, P0) == 11)
        assert consumer.states(P0) == consumer.states(P1) == totals(*(set(range(11)) - {3}))
        consumer.stop()
        await task


@both
async def test_a_position_without_an_increment_is_not_waited_for(together: bool) -> None:
    """Somebody has moved it: nothing is open, so nothing is hidden."""
    broker = broker_of()
    write(broker, *range(10))
    async with running(keeping(broker, sums(), together=together)):
        await until(lambda: committed(broker) == 10)
    broker.group(GROUP).offsets[P0] = Committed(5, "")
    consumer = keeping(broker, sums(), together=together)
    async with running(consumer):
        took = await until(lambda: committed(broker) == 10)
        assert took < 2
        assert consumer.states(P0) == totals(*range(10))


async def test_an_increment_without_an_answer_holds_up_no_other_partition() -> None:
    """The broker that leads its topic's partition hangs; the others commit, and health blames the right one."""
    broker = InMemoryBroker(nodes=3)
    for topic in ("in", "g-state", "g-snapshots"):
        broker.create_topic(topic, 2)
        for number in range(2):
            broker.move_leader(TopicPartition(topic, number), 1)
    broker.make_compacted("g-state")
    broker.make_compacted("g-snapshots")
    broker.move_leader(TopicPartition("g-state", 1), 3)
    consumer = keeping(broker, sums(), commit_timeout=5.0)
    async with running(consumer):
        for partition in range(2):
            write(broker, *range(10), partition=partition)
        await until(lambda: (committed(broker, P0), committed(broker, P1)) == (10, 10))
        broker.hang(3)
        for n in range(20):
            for partition in range(2):
                write(broker, n, partition=partition)
            await asyncio.sleep(1)
        assert committed(broker, P0) >= 28
        assert committed(broker, P1) == 10
        told = [one.message for one in consumer.health().problems if one.kind is ProblemKind.STATE_UNSAVED]
        assert [message[:4] for message in told] == ["in-1"]
        broker.unhang(3)
        await until(lambda: committed(broker, P1) == 30)


@both
async def test_a_topic_that_comes_up_later_is_checked_as_well(together: bool) -> None:
    """It has more partitions than the state has room for: the run ends, and says what to do."""
    broker = broker_of(1)
    consumer = keeping(broker, sums(), together=together)
    consumer._topics = re.compile("in.*")
    async with asyncio.timeout(600), consumer:
        task = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().joined)
        broker.create_topic("in2", 3)
        with pytest.raises(ConfigurationError, match=r"State topic='g-state': has 1 partitions.*--alter"):
            await task


def test_many_offsets_that_are_not_in_the_state_are_little_to_write() -> None:
    """A million in a row, or every third of 300,000: an increment is smaller than a message all the same."""
    for offsets in (range(1_000_000), range(0, 300_000, 3)):
        told = write_unapplied(offsets)
        assert len(encode_increment(Increment(Committed(9, ""), 1, 0, 0, told, []))) < 200_000
    assert write_unapplied(()) == Unapplied(0, "")


async def test_a_value_that_cannot_be_dumped_holds_up_no_other_partition() -> None:
    """Health names the partition and the key; the others have their full snapshots."""
    broker = broker_of(3)

    def dump(total: int) -> bytes:
        if total == 666:
            raise ValueError("no")
        return b"%d" % total

    consumer = keeping(broker, sums(dump=dump, snapshot_after=5))
    async with running(consumer):
        broker.append("in", b"666", key=b"bad", partition=0)
        for partition in range(3):
            write(broker, *range(20), partition=partition)
        await until(lambda: (consumer.stats().state or 0) and consumer.stats().state.snapshots == 2)  # type: ignore[union-attr]
        (problem,) = consumer.health().problems
        assert re.match(r"in-0: .*ValueError\('no'\) for the value of key b'bad'", problem.message)


@both
async def test_a_full_snapshot_that_cannot_be_read_is_passed_over(
    together: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before is there, and the log."""
    broker = broker_of()
    for start in (0, 20, 40):
        write(broker, *range(start, start + 20))
        consumer = keeping(broker, sums(snapshot_after=5), together=together, until="end")
        async with asyncio.timeout(60), consumer:
            await consumer.run(nothing)
    place = TopicPartition("g-snapshots", 0)
    log = broker.log(place)
    assert log is not None
    broker.corrupt(place, log.end_offset - 1)
    consumer = keeping(broker, sums(), together=together)
    async with running(consumer):
        assert consumer.states(P0) == totals(*range(60))
    assert "an older one is tried" in caplog.text


async def test_a_restore_that_waits_is_told() -> None:
    """In health, with what it waits for."""
    broker = broker_of()
    write(broker, *range(20))
    async with running(keeping(broker, sums())):
        await until(lambda: committed(broker) == 20)
    broker.faults.always(Request.LIST_OFFSETS, Fault(is_request_lost=True))
    consumer = keeping(broker, sums(), connect_timeout=600)
    async with asyncio.timeout(600), consumer:
        task = asyncio.create_task(consumer.run(nothing))
        await until(lambda: ProblemKind.STATE_WAITS in {one.kind for one in consumer.health().problems})
        broker.faults.heal()
        await until(lambda: consumer.health().joined)
        assert not consumer.health().problems
        consumer.stop()
        await task


async def test_a_full_snapshot_of_a_partition_that_went_is_not_written_on() -> None:
    """Its next owner may write in the same place."""
    assignment = Assignment(P0, generation=Generation(1, "m"))
    view = StateView(sums(), assignment, lambda: 1e9)
    view.restore(Restored(Table(), None, (), (), 0))
    taken = view.take()
    assignment.dropped = True
    broker = broker_of()
    with pytest.raises(Unwanted):
        await write_snapshot(InMemoryProducer(broker), "g-snapshots", GROUP, P0, taken, sums())
    assert not [*broker.records("g-snapshots")]


@both
async def test_a_position_behind_the_end_of_the_log_ends_the_run(together: bool) -> None:
    """Somebody has moved it too far, or the topic was made anew: nothing waits for records that never come."""
    broker = broker_of()
    write(broker, *range(20))
    consumer = keeping(broker, sums(), together=together, until="end")
    async with asyncio.timeout(60), consumer:
        await consumer.run(nothing)
    broker.group(GROUP).offsets[P0] = Committed(50, "")
    consumer = keeping(broker, sums(), together=together)
    async with asyncio.timeout(600), consumer:
        with pytest.raises(PositionOutsideLog, match="in-0: position 50"):
            await consumer.run(nothing)


@both
async def test_short_runs_come_to_full_snapshots(together: bool) -> None:
    """Each handles more than ``snapshot_after``, in no time: the next one reads nothing again."""
    broker = broker_of()
    for turn in range(3):
        write(broker, *range(100))
        consumer = keeping(broker, sums(snapshot_after=50), together=together, until="end")
        async with asyncio.timeout(60), consumer:
            await consumer.run(nothing)
            stats = consumer.stats().state
        assert stats is not None
        assert (stats.snapshots, stats.replayed) == (1, 0), turn


async def test_a_position_that_was_moved_back_finds_an_older_state() -> None:
    """The full snapshot is newer, so it is not used."""
    broker = broker_of()
    write(broker, *range(100))
    consumer = keeping(broker, sums(snapshot_after=50), until="end")
    async with asyncio.timeout(60), consumer:
        await consumer.run(nothing)
    broker.group(GROUP).offsets[P0] = Committed(30, "")
    consumer = keeping(broker, sums())
    consumer.pause()
    async with running(consumer):
        assert consumer.states(P0) == totals(*range(30))


async def test_apply_that_changes_its_value_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Keys would share what it is given first."""
    broker, failures = broker_of(), list[Exception]()
    caplog.set_level(logging.CRITICAL)

    def apply(values: list[int], record: Record[Any, Any]) -> list[int]:
        values.append(int(record.value))
        return values

    async def put_away(record: Record, error: Exception) -> None:
        failures.append(error)

    state = State[list[int]](initial=[], apply=apply, dump=lambda v: repr(v).encode(), load=lambda data: eval(data))
    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    write(broker, 1)
    consumer = keeping(broker, state, until="end", failures=policy)
    async with asyncio.timeout(60), consumer:
        await consumer.run(nothing)
    (failure,) = failures
    assert isinstance(failure, StateFailed)
    assert "it changed the value" in str(failure)


def test_an_apply_that_holds_the_event_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """It, and not what calls it. In real time: who watches is a thread."""
    broker = broker_of()

    def slow_one(total: int, record: Record[Any, Any]) -> int:
        time.sleep(0.3)
        return total + 1

    def lines() -> list[str]:
        return [line.getMessage() for line in caplog.records if getattr(line, "action", "") == "loop_held"]

    async def main() -> None:
        async with running(keeping(broker, sums(apply=slow_one))):
            n = 0
            while not lines():
                write(broker, n := n + 1)
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING), asyncio.Runner() as runner:
        runner.run(main())
    assert re.search(r"its handler .*slow_one blocked the event loop", lines()[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [({"apply": lambda value: value}, "State apply=.*a value and a record"), ({"dump": lambda: b""}, "State dump=")],
)
def test_functions_that_take_something_else_are_refused(given: dict[str, Any], message: str) -> None:
    """At once, not record by record."""
    with pytest.raises(ConfigurationError, match=message):
        sums(**given)


@both
async def test_what_cannot_be_read_of_the_log_is_in_no_state(together: bool) -> None:
    """A record that cannot be decoded was never applied; a batch that is named is passed over when a state is made of
    the log, and holds the run up else."""
    broker = broker_of()

    def forget() -> None:
        for topic in (f"{GROUP}-state", f"{GROUP}-snapshots"):
            broker.delete_topic(topic)
            broker.create_topic(topic, 1)
            broker.make_compacted(topic)

    write(broker, *range(10))
    broker.append("in", b"7", key=b"odd", headers=((b"\xff".decode("utf-8", "surrogateescape"), b""),), partition=0)
    write(broker, *range(11, 20))
    skip = FailurePolicy(give_up="skip")
    consumer = keeping(broker, sums(), together=together, failures=skip, until="end")
    async with asyncio.timeout(60), consumer:
        await consumer.run(nothing)
        assert consumer.stats().skipped == 1
    forget()
    consumer = keeping(broker, sums(), together=together, failures=skip)
    async with running(consumer):
        assert consumer.states(P0) == totals(*range(10), *range(11, 20))
    forget()
    broker.corrupt(P0, 3, 5)
    consumer = keeping(broker, sums(), together=together, failures=skip)
    async with asyncio.timeout(60), consumer:
        with pytest.raises(UnreadableBatch, match="in-0: cannot read at offset 3"):
            await consumer.run(nothing)
    consumer = keeping(broker, sums(), together=together, failures=skip, skip_unreadable=[("in", 0, 3)])
    async with running(consumer):
        assert consumer.states(P0) == totals(0, 1, 2, *range(5, 10), *range(11, 20))
