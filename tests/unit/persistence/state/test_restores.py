"""A state that is restored where what it is made of is not as it should be: topics that were made anew, transactions
that are open, records that cannot be read, brokers that hang."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy, StateNotRestored
from aioparallel.group.client import Committed
from aioparallel.observe.health import ProblemKind
from aioparallel.observe.stats import StateStats
from aioparallel.persistence.state.increments import Increment, Place, encode_increment, encode_place
from aioparallel.persistence.state.topics import StateTopics, TopicNames
from aioparallel.persistence.state.unapplied import Unapplied, write_unapplied
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from tests.support.memory.keeping_state import GROUP, P0, broker_of, keeping, sums, totals, write
from tests.support.waiting import until
from tests.unit.persistence.state.test_trouble import P1, both, both_slowly, committed, nothing, running

NAMES = TopicNames(f"{GROUP}-state", f"{GROUP}-snapshots")


async def handled(broker: InMemoryBroker, together: bool = False, **given: Any) -> StateStats:
    """All that is there, by one run."""
    consumer = keeping(broker, sums(**given), together=together, until="end")
    async with asyncio.timeout(600), consumer:
        await consumer.run(nothing)
        stats = consumer.stats().state
    assert stats is not None
    return stats


async def nothing_is_read_again(broker: InMemoryBroker, count: int, together: bool = False) -> None:
    """The state of so many records is in a full snapshot."""
    broker.delete_before(P0, count)
    consumer = keeping(broker, sums(), together=together)
    async with running(consumer):
        assert consumer.states(P0) == totals(*range(count))


def problems(consumer: Any, kind: ProblemKind) -> list[str]:
    """What health says of this kind."""
    return [one.message for one in consumer.health().problems if one.kind is kind]


# -- what it is made of ---------------------------------------------------------------------------------


@both
async def test_a_snapshots_topic_that_was_made_anew(together: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It ends before the full snapshots that an increment names: the state is made of the log, at once, and that is
    told, for records that were put away before they were taken count now."""
    broker = broker_of()
    for start in (0, 20):
        write(broker, *range(start, start + 20))
        assert (await handled(broker, together, snapshot_after=5)).snapshots == 1
    broker.delete_topic(NAMES.snapshots)
    broker.create_topic(NAMES.snapshots)
    broker.make_compacted(NAMES.snapshots)
    consumer = keeping(broker, sums(snapshot_after=5), together=together)
    async with running(consumer):
        assert consumer.states(P0) == totals(*range(40))
        assert asyncio.get_running_loop().time() < 10
        assert "its partition ends at offset 0: was the topic deleted and created again?" in caplog.text
        (told,) = [record.message for record in caplog.records if getattr(record, "action", "") == "state_from_log"]
        assert told.startswith("in-0: none of the full snapshots of its state can be used: the state is made of all")
        await until(lambda: consumer.stats().state.snapshots == 1)  # type: ignore[union-attr]
    await nothing_is_read_again(broker, 40, together)


@both_slowly
async def test_a_position_behind_an_open_transaction_is_not_outside_the_log(together: bool) -> None:
    """Somebody has moved it there: what is undecided is waited for, and told."""
    broker = broker_of()
    write(broker, *range(10))
    await handled(broker, together)
    others = broker.begin_transaction()
    for number in (10, 11, 12):
        broker.append("in", b"%d" % number, key=b"k%d" % (number % 10), partition=0, transaction=others)
    broker.group(GROUP).offsets[P0] = Committed(13, "")
    consumer = keeping(broker, sums(), together=together)
    async with asyncio.timeout(600), consumer:
        task = asyncio.create_task(consumer.run(nothing))
        await until(lambda: task.done() or problems(consumer, ProblemKind.STATE_WAITS))
        if task.done():
            await task
        broker.end_transaction(others, commit=True)
        await until(lambda: consumer.health().joined)
        assert consumer.states(P0) == totals(*range(13))
        assert not consumer.health().problems
        consumer.stop()
        await task


# -- the increment that counts --------------------------------------------------------------------------


def increment_of(offset: int, unapplied: Unapplied, generation: int = 1) -> tuple[bytes, bytes]:
    """Key and value of one."""
    increment = Increment(Committed(offset, ""), generation, 0, 0, unapplied, [])
    return encode_place(Place(GROUP, P0, 0), generation), encode_increment(increment)


async def test_no_increment_of_the_position_counts_before_all_can_be_seen() -> None:
    """The one that is seen may be a former owner's: its successor's, of the same position, is still undecided."""
    broker = broker_of()

    def wrote(generation: int, unapplied: list[int], transaction: Any = None) -> None:
        key, value = increment_of(10, write_unapplied(unapplied), generation)
        broker.append(NAMES.increments, value, key=key, partition=0, transaction=transaction)

    topics = StateTopics(NAMES, GROUP, InMemoryClient(broker, GROUP))
    wanted = {P0: Committed(10, "")}
    wrote(1, [])
    others = broker.begin_transaction()
    wrote(2, [3, 4], others)
    assert await topics.last_increments(wanted, 1, 1) == {}
    broker.end_transaction(others, commit=True)
    found = (await topics.last_increments(wanted, 1, 1))[P0]
    assert isinstance(found, Increment)
    assert found.generation == 2


async def test_an_increments_topic_whose_end_is_not_told_is_not_empty() -> None:
    """Nor is one that is not there for a moment: what stands in it is not known, so nothing is made of the log."""
    broker = broker_of(2)
    topics = StateTopics(NAMES, GROUP, InMemoryClient(broker, GROUP))
    wanted = {P0: Committed(10, ""), P1: Committed(10, "")}
    assert await topics.last_increments(wanted, 1, 1) == dict.fromkeys(wanted)
    broker.delete_topic(NAMES.increments)
    broker.create_topic(NAMES.increments, 1)
    assert await topics.last_increments(wanted, 1, 1) == {P0: None}


@both
async def test_an_increment_that_cannot_be_read_is_not_passed_over(together: bool) -> None:
    """It might be the one that counts. The error says where it is and what to do, and whoever does that has the state
    as it was, without what was put away."""
    broker, place = broker_of(2), TopicPartition(NAMES.increments, 1)

    async def put_away(record: Record, error: Exception) -> None:
        """A dead letter."""

    async def handle(record: Record) -> None:
        if record.value == b"3":
            raise ValueError

    def make() -> ParallelConsumer[Any, Any]:
        policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
        return keeping(broker, sums(), together=together, failures=policy)

    async with running(make(), handle):
        for number in range(10):
            write(broker, number, partition=1)
            await until(lambda: committed(broker, P1) == number + 1)  # noqa: B023 - it has ended by then
    offset = [record.offset for record in broker.records(NAMES.increments)][-2]
    broker.corrupt(place, offset)
    consumer = make()
    told = (
        f"in-1: its state .*{place}: cannot read at offset {offset}.*delete-records.sh, offset {offset + 1} of {place}"
    )
    async with asyncio.timeout(60), consumer:
        with pytest.raises(StateNotRestored, match=told):
            await consumer.run(handle)
    broker.delete_before(place, offset + 1)
    broker.corrupt(place, None)
    consumer = make()
    async with running(consumer, handle):
        assert consumer.states(P1) == totals(0, 1, 2, 4, 5, 6, 7, 8, 9)


async def test_a_tombstone_among_the_increments_does_not_count() -> None:
    """Somebody has written it: what stands before it is there, be it of the position or not."""
    broker = broker_of()
    key, value = increment_of(5, write_unapplied([3]))
    broker.append(NAMES.increments, value, key=key, partition=0)
    broker.append(NAMES.increments, None, key=key, partition=0)
    topics = StateTopics(NAMES, GROUP, InMemoryClient(broker, GROUP))
    for committed_offset in (5, 10):
        found = (await topics.last_increments({P0: Committed(committed_offset, "")}, 1, 1))[P0]
        assert isinstance(found, Increment)
        assert found.position.offset == 5


@both
async def test_an_increment_whose_offsets_cannot_be_read(together: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Which records are not in the state is no offset map: that is told, and the state is made of the log."""
    broker = broker_of()
    write(broker, *range(10))
    key, value = increment_of(10, Unapplied(3, "no map"))
    broker.append(NAMES.increments, value, key=key, partition=0)
    broker.group(GROUP).offsets[P0] = Committed(10, "")
    consumer = keeping(broker, sums(), together=together)
    async with running(consumer):
        assert consumer.states(P0) == totals(*range(10))
    told = {getattr(record, "action", ""): record.message for record in caplog.records}
    assert told["increment_unreadable"].startswith("in-0: the increment of its state in g-state cannot be read")
    assert "state_from_log" in told
